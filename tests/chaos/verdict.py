"""What the record shows: faults and how soon the loops ran again, and what must not have happened.

Pure functions of the notes, in the order of their time.
"""

import bisect
import itertools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import TypeAlias

from tests.chaos.record import Note

BEGINS = "start"
SETTLED = "RunSettled"
ENDS = ("end", "failed", "cancelled")
# What verbs are told as, when they have returned.
REPORTS = ("paused", "resumed", "triggered", "seeded", "started")
# What takes a delivery from a process, and cancels its run.
LOSSES = ("ConnectionLost", "ConsumerInterrupted", "died")
# From the moment a process knows, until its runs have ended.
CANCEL_TIME = 2.0
# From the moment the broker has given a message to somebody else, until its process knows.
NOTICE_TIME = 10.0
# For so long after it was sent, an ack may be lost with the connection, or with a node behind it.
ACK_TIME = 3.0
# From the moment an epoch has begun, until all have read so in the roster, where no roll call told.
LEARN_TIME = 5.0
# For so long after a node failed, a token may come twice: as what was never confirmed, beside that
# of whoever ran the tick again; or because the node had handed it on without noting it.
TWICE_FOR = 30.0
# How long supervision may take to put a loop right: one whose token somebody tampered with, or that
# has two lines, as a token of it came twice.
PUT_RIGHT_WITHIN = 60.0


@dataclass(frozen=True, slots=True)
class Violation:
    """Something that a guarantee forbids."""

    at: float
    what: str
    detail: str


Violations: TypeAlias = Iterator[Violation]
OPERATORS_DEATH = "kill-operator"


@dataclass(slots=True)
class Strike:
    """A fault, and what came after it.

    Attributes:
        healed_at: when it was over, as far as it lasts.
        awaited: the loops that have not run again since.
        recovered_at: when the last of them had.
        broke_off: whether it ended a verb of the operator half-way, as the operator's death does.
    """

    kind: str
    at: float
    healed_at: float = inf
    awaited: frozenset[str] = frozenset()
    recovered_at: float | None = None
    broke_off: bool = False

    @property
    def recovery(self) -> float | None:
        """Seconds from the end of the fault until every loop had run again."""
        return None if self.recovered_at is None else self.recovered_at - self.healed_at


class Pulse:
    """Follows the notes: who is up, which loops are to run, and which have since a fault.

    Args:
        loops: the names of all, but the keyed ones: those are told as they are started.
    """

    def __init__(self, loops: Iterable[str]) -> None:
        self._loops = set(loops)
        self._awaited: set[str] = set()
        self._since = inf
        self.up: set[str] = set()
        self.strikes: list[Strike] = []

    @property
    def awaited(self) -> frozenset[str]:
        return frozenset(self._awaited)

    def see(self, note: Note) -> None:
        match note.what:
            case "strike":
                self.strikes.append(Strike(note.detail, note.at))
            case "heal":
                self._await(note.at)
                self.strikes[-1].healed_at = note.at
                self.strikes[-1].awaited = self.awaited
            case "calm":
                self._await(note.at)
            case "start":
                self._hear_of(note.loop, note.at)
            case "paused" | "stopped":
                self._loops.discard(note.loop)
                self._hear_of(note.loop, note.at)
            case "resumed" | "started":
                self._loops.add(note.loop)
            case "ProcessorStarted" | "Connected" | "ready":
                self.up.add(note.who)
            case "ConnectionLost" | "died":
                self.up.discard(note.who)
            case "refused" if self.strikes:
                self.strikes[-1].broke_off = True
            case _:
                pass

    def _await(self, since: float) -> None:
        self._awaited = set(self._loops)
        self._since = since

    def _hear_of(self, loop: str, at: float) -> None:
        """A loop has run, or was paused or stopped: it is not waited for any more."""
        if loop not in self._awaited or at < self._since:
            return
        self._awaited.discard(loop)
        if self.strikes and (last := self.strikes[-1]).recovered_at is None:
            last.awaited = self.awaited
            last.recovered_at = None if self._awaited else at


@dataclass(slots=True)
class Run:
    """One run of a loop's task, as the notes tell it.

    Attributes:
        life: of its token: the epoch of its loop's last start.
        ended_at: infinite, if nothing tells its end.
        settled_at: when it was acked, after its successor was confirmed; infinite: it was not.
    """

    who: str
    loop: str
    progress: tuple[int, int]
    started_at: float
    epoch: int = 0
    life: int = 0
    ended_at: float = inf
    settled_at: float = inf

    def __str__(self) -> str:
        seq, attempt = self.progress
        return f"{self.loop} #{seq}/{attempt} in {self.who}"


@dataclass(frozen=True, slots=True)
class Clash:
    """Two runs of a loop that should not both be.

    Attributes:
        what: how it is told if it is not excused.
        excused: one of them had lost its connection, and with it its token, and ended in time; or
            a node of the broker had failed.
    """

    what: str
    first: Run
    second: Run
    excused: bool

    @property
    def overlap(self) -> float:
        """For how many seconds they went on beside each other."""
        return max(min(self.first.ended_at, self.second.ended_at) - self.second.started_at, 0)

    @property
    def violation(self) -> Violation:
        after = self.second.started_at - self.first.started_at
        text = f"{self.second} began {after:.3f} s after {self.first}, {self.overlap:.3f} s beside"
        return Violation(self.second.started_at, self.what, text)


def in_turn(notes: Iterable[Note]) -> list[tuple[Note, Run | None]]:
    """The notes, each with the run of a loop that it begins, if it begins one."""
    found: list[tuple[Note, Run | None]] = []
    last: dict[str, dict[tuple[str, tuple[int, int]], Run]] = defaultdict(dict)
    for note in notes:
        of_process, key, run = last[note.who], (note.loop, note.progress), None
        if note.what == "died":
            for each in last.pop(note.who).values():
                each.ended_at = min(each.ended_at, note.at)
        elif note.loop and not note.message:
            if note.what == BEGINS:
                run = of_process[key] = Run(note.who, *key, note.at, note.epoch, note.life)
            elif key in of_process and note.what in ENDS:
                of_process[key].ended_at = note.at
            elif key in of_process and note.what == SETTLED:
                of_process[key].settled_at = note.at
        found.append((note, run))
    return found


def runs(notes: Iterable[Note]) -> list[Run]:
    """The runs of all loops, in the order in which they started."""
    return [run for _, run in in_turn(notes) if run]


def untampered(notes: Iterable[Note]) -> list[Note]:
    """The notes with a loop, somebody having tampered with its token, as another one after that.

    What that did to its runs in the first time after it is left out.
    """
    tampered_at: dict[str, float] = {}
    kept: list[Note] = []
    for note in notes:
        if note.what == "tampered":
            tampered_at[note.loop] = note.at
        elif note.loop not in tampered_at:
            kept.append(note)
        elif note.at > tampered_at[note.loop] + PUT_RIGHT_WITHIN:
            kept.append(replace(note, loop=f"{note.loop} of {tampered_at[note.loop]:.0f}"))
    return kept


class Excuses:
    """What faults explain: that a token was taken back from its run, or that it came twice.

    Args:
        failing: the faults at which a node of the broker fails.
    """

    def __init__(self, notes: Sequence[Note], failing: Collection[str] = ()) -> None:
        struck = [note.at for note in notes if note.what == "strike"]
        self.failures = spans(notes, failing)
        self._twice = [
            (begun, max(healed + TWICE_FOR, _next(struck, begun)))  # when all loops ran again
            for begun, healed in self.failures
        ]
        self._doubled_at: dict[str, float] = {}
        self._lost_at: dict[str, list[float]] = defaultdict(list)
        for note in notes:
            if note.what in LOSSES:
                self._lost_at[note.who].append(note.at)

    def clash(self, what: str, first: Run, second: Run, settled_at: float = inf) -> Clash:
        twice = self._comes_twice(second, settled_at)
        lost = any(self.was_lost(each, second.started_at) for each in (first, second))
        return Clash(what, first, second, excused=twice or lost)

    def was_lost(self, run: Run, seen_at: float) -> bool:
        """Whether the broker may have taken the token of this run back, when somebody else had it.

        It ends soon after its process knows; that may be after it has ended by itself.
        """
        lost_at = self._lost_at[run.who]
        known_at = next(iter(lost_at[bisect.bisect_left(lost_at, run.started_at) :]), inf)
        return (
            known_at <= seen_at + NOTICE_TIME
            and run.ended_at <= known_at + CANCEL_TIME
            and run.settled_at >= known_at - ACK_TIME
        )

    def _comes_twice(self, run: Run, settled_at: float) -> bool:
        """Whether a run may be of a second line; after what was settled, if the ack was lost.

        Its loop has two lines then, until supervision ends one.
        """
        if run.started_at <= self._doubled_at.get(run.loop, -inf) + PUT_RIGHT_WITHIN:
            return True
        twice = any(
            begun <= run.started_at <= over and settled_at >= begun - ACK_TIME
            for begun, over in self._twice
        )
        if twice:
            self._doubled_at[run.loop] = run.started_at
        return twice


def spans(notes: Iterable[Note], kinds: Collection[str]) -> list[tuple[float, float]]:
    """From when to when faults of these kinds lasted."""
    strikes = [note for note in notes if note.what in ("strike", "heal")]
    return [
        (begun.at, healed.at)
        for begun, healed in itertools.pairwise(strikes)
        if begun.what == "strike" and begun.detail in kinds
    ]


def _next(moments: Sequence[float], moment: float) -> float:
    return next(iter(moments[bisect.bisect_right(moments, moment) :]), moment)


def overlaps(notes: Sequence[Note], excuses: Excuses) -> list[Clash]:
    """Runs that began while another one of their loop was going on."""
    going: dict[str, list[Run]] = defaultdict(list)
    found: list[Clash] = []
    for run in runs(notes):
        others = [other for other in going[run.loop] if other.ended_at > run.started_at]
        found += [excuses.clash("overlap", other, run) for other in others]
        going[run.loop] = [*others, run]
    return found


def repeats(notes: Sequence[Note], excuses: Excuses) -> list[Clash]:
    """Runs of what had been settled before: of this tick and attempt, or of a later one.

    The first of the two is the run that this one repeats, or the one that was settled. A loop that
    is started anew, after it was stopped, has nothing settled.
    """
    found: list[Clash] = []
    past: dict[tuple[str, int], _Past] = defaultdict(_Past)
    for run in runs(notes):
        life = past[run.loop, run.life]
        if before := life.before(run):
            found.append(excuses.clash("settled run repeated", before, run, before.settled_at))
        life.unsettled.append(run)
        life.runs[run.progress] = run
    return found


@dataclass(slots=True)
class _Past:
    """What a loop has done so far."""

    runs: dict[tuple[int, int], Run] = field(default_factory=dict[tuple[int, int], Run])
    unsettled: list[Run] = field(default_factory=list[Run])
    furthest: Run | None = None

    def before(self, run: Run) -> Run | None:
        """What this run should not have come after."""
        settled = [other for other in self.unsettled if other.settled_at <= run.started_at]
        self.unsettled = [other for other in self.unsettled if other not in settled]
        for other in settled:
            if self.furthest is None or other.progress > self.furthest.progress:
                self.furthest = other
        if self.furthest is None or run.progress > self.furthest.progress:
            return None
        return self.runs.get(run.progress, self.furthest)


def miscounted(notes: Iterable[Note], counting: Collection[str]) -> Violations:
    """Runs of the loops that carry their count of ticks, and were handed another one."""
    for note in notes:
        if note.what == BEGINS and note.loop in counting and (note.carried or 0) != note.seq:
            text = f"{note.loop} #{note.seq} was handed {note.carried}"
            yield Violation(note.at, "carry", text)


def disobeyed(notes: Sequence[Note], excuses: Excuses) -> Violations:
    """Runs of a loop that began after it was reported that it is paused, or stopped.

    Excused is one whose process had lost its connection. Where some had not answered, the report
    says so: they have a while to hear of it.
    """
    idle_since: dict[str, float] = {}
    for note, run in in_turn(notes):
        if note.what in ("paused", "stopped"):
            since = note.at + (NOTICE_TIME if note.silent else 0)
            idle_since[note.loop] = min(since, idle_since.get(note.loop, inf))
        elif note.what in ("resuming", "starting"):
            idle_since.pop(note.loop, None)
        elif run and run.started_at > idle_since.get(run.loop, inf):
            late = run.started_at - idle_since[run.loop]
            if not excuses.was_lost(run, run.started_at):
                text = f"{run} began {late:.3f} s after its loop was paused or stopped"
                yield Violation(note.at, "disobeyed", text)


def void(notes: Sequence[Note], excuses: Excuses) -> Violations:
    """Runs of tokens that were void: a later epoch of their loop had begun, and was known.

    It is where a run of a later epoch has begun, as all are asked before; or a while after a verb
    reported that it has begun, at once if all have answered. Excused is a run whose process had
    lost its connection, unless it knew by itself, having run a token of a later epoch.
    """
    known: dict[str, _Known] = defaultdict(_Known)
    for note, run in in_turn(notes):
        if note.what in REPORTS and note.epoch:
            known[note.loop].reported.append((_known_at(note, excuses.failures), note.epoch))
        elif run:
            of_loop = known[run.loop]
            here, anywhere = of_loop.by[run.who], of_loop.at(run.started_at)
            gone = excuses.was_lost(run, run.started_at)
            if run.epoch < here or (run.epoch < anywhere and not gone):
                text = f"{run} is of epoch {run.epoch}, {max(here, anywhere)} had begun"
                yield Violation(run.started_at, "void token ran", text)
            of_loop.by[run.who] = max(here, run.epoch)


def _known_at(report: Note, failures: Sequence[tuple[float, float]]) -> float:
    """When all processors know of the epoch that a verb has begun."""
    if report.what == "paused":
        return report.at + (NOTICE_TIME if report.silent else 0)
    # Whoever reads the roster at a node that failed before that had come reads on when it is back.
    back = (until for since, until in failures if since - LEARN_TIME <= report.at <= until)
    return max((report.at, *back)) + LEARN_TIME


@dataclass(slots=True)
class _Known:
    """Which epochs of a loop are known.

    Attributes:
        reported: from when on, and which.
        by: the latest one of which each process has run a token.
    """

    reported: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])
    by: defaultdict[str, int] = field(default_factory=lambda: defaultdict[str, int](int))

    def at(self, moment: float) -> int:
        """The latest one that all processors must know of."""
        told = (epoch for known_at, epoch in self.reported if known_at <= moment)
        return max((*told, *self.by.values()), default=0)


def brought_back(notes: Iterable[Note]) -> Violations:
    """Runs with another schedule than their loop was given last; of older epochs tells `void`."""
    loops: dict[str, _Given] = defaultdict(_Given)
    for note in notes:
        given = loops[note.loop]
        if note.what in ("seeding", "starting"):
            given.coming[note.who] = note.schedule
            given.allowed.add(note.schedule)
        elif note.what in ("seeded", "started"):
            given.coming.pop(note.who, None)
            if note.epoch >= max(given.since, 1):
                given.allowed = {note.schedule, *given.coming.values()}
                given.since = note.epoch
        elif note.what == "died":
            for each in loops.values():
                each.coming.pop(note.who, None)
        elif note.what == BEGINS and note.epoch >= given.since > 0:
            text = f"{note.loop} #{note.seq} in {note.who} ran with {note.schedule}"
            if note.schedule not in given.allowed:
                yield Violation(note.at, "old schedule", text)


@dataclass(slots=True)
class _Given:
    """The schedules that a loop may run with.

    Attributes:
        since: the epoch that began with the one that was given last; 0: none was.
        coming: what somebody is about to give it.
    """

    since: int = 0
    allowed: set[str] = field(default_factory=set[str])
    coming: dict[str, str] = field(default_factory=dict[str, str])


def undone(notes: Iterable[Note]) -> list[Note]:
    """The one-off messages that were confirmed, and neither came to their end nor were parked."""
    sent: dict[str, Note] = {}
    done: set[str] = set()
    for note in notes:
        if note.what == "sent":
            sent[note.message] = note
        elif note.message and note.what in ("end", "done once", "MessageParked", "parked"):
            done.add(note.message)
    return [note for message, note in sent.items() if message not in done]


def late(strikes: Iterable[Strike], patience: Callable[[str], float]) -> Violations:
    """Faults after which a loop did not run again within the time stated for their kind."""
    for strike in strikes:
        stated = patience(strike.kind)
        if strike.broke_off:
            stated = max(stated, patience(OPERATORS_DEATH))
        if strike.recovery is None:
            missing = ", ".join(sorted(strike.awaited))
            yield Violation(strike.at, "dead", f"after {strike.kind}: {missing}")
        elif strike.recovery > stated:
            text = f"{strike.recovery:.1f} s after {strike.kind}, stated are {stated:g} s"
            yield Violation(strike.at, "late", text)


def failed(notes: Iterable[Note]) -> Violations:
    """Commands and processes that ended badly without being told to."""
    for note in notes:
        if note.what in ("failed to stop", "seed failed", "ended by itself"):
            yield Violation(note.at, note.what, f"{note.who}: {note.detail}")


def not_single(notes: Iterable[Note]) -> Violations:
    """Loops whose tokens, at rest, are not exactly one; or of paused or stopped ones not none."""
    idle: set[str] = set()
    for note in notes:
        if note.what in ("started", "resumed"):
            idle.discard(note.loop)
        elif note.what in ("stopped", "paused"):
            idle.add(note.loop)
        elif note.what == "tokens":
            count, expected = int(note.detail), int(note.loop not in idle)
            if count != expected:
                what = "loop doubled" if count > expected else "loop lost"
                yield Violation(note.at, what, f"{note.loop}: {count} tokens")


@dataclass(slots=True)
class Verdict:
    """All that was found.

    Attributes:
        overlaps, repeats: also those that are excused.
    """

    strikes: list[Strike]
    overlaps: list[Clash]
    repeats: list[Clash]
    violations: list[Violation]

    def during(self, at: float) -> Strike | None:
        """The fault after which something happened."""
        number = bisect.bisect_right(self.strikes, at, key=lambda strike: strike.at)
        return self.strikes[number - 1] if number else None


def judge(
    notes: Sequence[Note],
    *,
    loops: Iterable[str],
    counting: Collection[str],
    patience: Callable[[str], float],
    failing: Collection[str] = (),
) -> Verdict:
    """Everything above."""
    notes = sorted(notes, key=lambda note: note.at)
    pulse = Pulse(loops)
    for note in notes:
        pulse.see(note)
    orderly = untampered(notes)
    beside = overlaps(orderly, Excuses(orderly, failing))
    again = repeats(orderly, Excuses(orderly, failing))
    excuses = Excuses(notes, failing)
    violations = [
        *late(pulse.strikes, patience),
        *(clash.violation for clash in (*beside, *again) if not clash.excused),
        *miscounted(orderly, counting),
        *disobeyed(notes, excuses),
        *void(notes, excuses),
        *brought_back(notes),
        *(Violation(note.at, "one-off lost", note.message) for note in undone(notes)),
        *failed(notes),
        *not_single(notes),
    ]
    ordered = sorted(violations, key=lambda violation: violation.at)
    return Verdict(pulse.strikes, beside, again, ordered)
