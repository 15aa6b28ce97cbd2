"""What the record shows: faults and how soon the loops ran again, and what must not have happened.

Pure functions of the notes, in the order of their time.
"""

import bisect
import itertools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from tests.chaos.record import Note

BEGINS = "start"
SETTLED = "RunSettled"
ENDS = ("end", "failed", "cancelled")
# What takes a delivery from a process, and cancels its run.
LOSSES = ("ConnectionLost", "ConsumerInterrupted", "died")
# From the moment a process knows, until its runs have ended.
CANCEL_TIME = 2.0
# From the moment the broker has given a message to somebody else, until its process knows.
NOTICE_TIME = 10.0
# For so long after it was sent, an ack may be lost with the connection, or with a node behind it.
ACK_TIME = 3.0
# For so long after a node failed, a token may come twice: as what was never confirmed, beside that
# of whoever ran the tick again; or because the node had handed it on without noting it.
TWICE_FOR = 30.0
# How long supervision may take to put a loop right whose token somebody tampered with.
TAMPERED_FOR = 60.0


@dataclass(frozen=True, slots=True)
class Violation:
    """Something that a guarantee forbids."""

    at: float
    what: str
    detail: str


@dataclass(slots=True)
class Strike:
    """A fault, and what came after it.

    Attributes:
        healed_at: when it was over, as far as it lasts.
        awaited: the loops that have not run again since.
        recovered_at: when the last of them had.
    """

    kind: str
    at: float
    healed_at: float = inf
    awaited: frozenset[str] = frozenset()
    recovered_at: float | None = None

    @property
    def recovery(self) -> float | None:
        """Seconds from the end of the fault until every loop had run again."""
        return None if self.recovered_at is None else self.recovered_at - self.healed_at


class Pulse:
    """Follows the notes: who is up, what is paused, and which loops have run since a fault.

    Args:
        loops: the names of all.
    """

    def __init__(self, loops: Iterable[str]) -> None:
        self._loops = frozenset(loops)
        self._awaited: set[str] = set()
        self.paused: set[str] = set()
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
                self._heal(note.at)
            case "start":
                self._hear_of(note.loop, note.at)
            case "paused":
                self.paused.add(note.loop)
                self._hear_of(note.loop, note.at)
            case "resumed":
                self.paused.discard(note.loop)
            case "ProcessorStarted" | "Connected" | "ready":
                self.up.add(note.who)
            case "ConnectionLost" | "died":
                self.up.discard(note.who)
            case _:
                pass

    def _heal(self, at: float) -> None:
        self.strikes[-1].healed_at = at
        self._awaited = set(self._loops - self.paused)
        self.strikes[-1].awaited = self.awaited

    def _hear_of(self, loop: str, at: float) -> None:
        """A loop has run, or was paused: it is not waited for any more."""
        if loop not in self._awaited or at < self.strikes[-1].healed_at:
            return
        self._awaited.discard(loop)
        self.strikes[-1].awaited = self.awaited
        if not self._awaited:
            self.strikes[-1].recovered_at = at


@dataclass(slots=True)
class Run:
    """One run of a loop's task, as the notes tell it.

    Attributes:
        ended_at: infinite, if nothing tells its end.
        settled_at: when it was acked, after its successor was confirmed; infinite: it was not.
    """

    who: str
    loop: str
    progress: tuple[int, int]
    started_at: float
    ended_at: float = inf
    settled_at: float = inf

    def __str__(self) -> str:
        seq, attempt = self.progress
        return f"{self.loop} #{seq}/{attempt} in {self.who}"


@dataclass(frozen=True, slots=True)
class Clash:
    """Two runs of a loop that should not both be.

    Attributes:
        excused: one of them had lost its connection, and with it its token, and ended in time; or
            a node of the broker had failed.
    """

    first: Run
    second: Run
    excused: bool

    @property
    def overlap(self) -> float:
        """For how many seconds they went on beside each other."""
        return max(min(self.first.ended_at, self.second.ended_at) - self.second.started_at, 0)


def runs(notes: Iterable[Note]) -> list[Run]:
    """The runs of all loops, in the order in which they started."""
    found: list[Run] = []
    last: dict[tuple[str, str, tuple[int, int]], Run] = {}
    going: dict[str, set[tuple[str, str, tuple[int, int]]]] = defaultdict(set)
    for note in notes:
        key = (note.who, note.loop, note.progress)
        if note.what == "died":
            for each in going.pop(note.who, ()):
                last[each].ended_at = note.at
        elif not note.loop or note.message:
            continue
        elif note.what == BEGINS:
            last[key] = Run(*key, note.at)
            found.append(last[key])
            going[note.who].add(key)
        elif key in last and note.what in ENDS:
            last[key].ended_at = note.at
            going[note.who].discard(key)
        elif key in last and note.what == SETTLED:
            last[key].settled_at = note.at
    return found


def losses(notes: Iterable[Note]) -> Mapping[str, list[float]]:
    """When each process lost its connection, a consumer, or its life."""
    found: dict[str, list[float]] = defaultdict(list)
    for note in notes:
        if note.what in LOSSES:
            found[note.who].append(note.at)
    return found


def _was_lost(run: Run, seen_at: float, lost_at: Sequence[float]) -> bool:
    """Whether the broker may have taken the token of this run back, when somebody else had it.

    It ends soon after its process knows; that may be after it has ended by itself.
    """
    known_at = next(iter(lost_at[bisect.bisect_left(lost_at, run.started_at) :]), inf)
    return (
        known_at <= seen_at + NOTICE_TIME
        and run.ended_at <= known_at + CANCEL_TIME
        and run.settled_at >= known_at - ACK_TIME
    )


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
        elif note.at > tampered_at[note.loop] + TAMPERED_FOR:
            kept.append(replace(note, loop=f"{note.loop} of {tampered_at[note.loop]:.0f}"))
    return kept


def overlaps(notes: Sequence[Note], failing: Collection[str] = ()) -> list[Clash]:
    """Runs that began while another one of their loop was going on.

    Args:
        failing: the faults at which a node of the broker fails.
    """
    lost = losses(notes)
    shaken = _Shaken(notes, failing)
    going: dict[str, list[Run]] = defaultdict(list)
    found: list[Clash] = []
    for run in runs(notes):
        others = [other for other in going[run.loop] if other.ended_at > run.started_at]
        for other in others:
            gone = any(_was_lost(each, run.started_at, lost[each.who]) for each in (other, run))
            found.append(Clash(other, run, excused=gone or shaken.at(run.started_at)))
        going[run.loop] = [*others, run]
    return found


def spans(notes: Iterable[Note], kinds: Collection[str]) -> list[tuple[float, float]]:
    """From when to when faults of these kinds lasted."""
    strikes = [note for note in notes if note.what in ("strike", "heal")]
    return [
        (begun.at, healed.at)
        for begun, healed in itertools.pairwise(strikes)
        if begun.what == "strike" and begun.detail in kinds
    ]


class _Shaken:
    """When a token may come twice."""

    def __init__(self, notes: Iterable[Note], failing: Collection[str]) -> None:
        self._spans = [(begun, healed + TWICE_FOR) for begun, healed in spans(notes, failing)]

    def at(self, moment: float, settled_at: float = inf) -> bool:
        """Whether it may at this moment; of what was settled before, if the ack may be lost."""
        return any(
            begun <= moment <= over and settled_at >= begun - ACK_TIME
            for begun, over in self._spans
        )


def repeats(notes: Sequence[Note], failing: Collection[str] = ()) -> list[Clash]:
    """Runs of what had been settled before: of this tick and attempt, or of a later one.

    The first of the two is the run that this one repeats, or the one that was settled.

    Args:
        failing: the faults at which a node of the broker fails.
    """
    lost = losses(notes)
    shaken = _Shaken(notes, failing)
    found: list[Clash] = []
    past: dict[str, _Past] = defaultdict(_Past)
    for run in runs(notes):
        before = past[run.loop].before(run)
        past[run.loop].unsettled.append(run)
        if before is not None:
            gone = any(_was_lost(each, run.started_at, lost[each.who]) for each in (before, run))
            twice = shaken.at(run.started_at, before.settled_at)
            found.append(Clash(before, run, excused=gone or twice))
        past[run.loop].runs[run.progress] = run
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


def overlapping(clashes: Iterable[Clash]) -> list[Violation]:
    return [
        Violation(
            clash.second.started_at,
            "overlap",
            f"{clash.second} beside {clash.first}, for {clash.overlap:.3f} s",
        )
        for clash in clashes
        if not clash.excused
    ]


def repeated(clashes: Iterable[Clash]) -> list[Violation]:
    return [
        Violation(
            clash.second.started_at,
            "settled run repeated",
            f"{clash.second}, {clash.second.started_at - clash.first.settled_at:.3f} s after "
            f"{clash.first} was settled",
        )
        for clash in clashes
        if not clash.excused
    ]


def miscounted(notes: Iterable[Note], counting: Iterable[str]) -> list[Violation]:
    """Runs of the loops that carry their count of ticks, and were handed another one."""
    loops = frozenset(counting)
    return [
        Violation(note.at, "carry", f"{note.loop} #{note.seq} was handed {note.carried}")
        for note in notes
        if note.what == BEGINS and note.loop in loops and (note.carried or 0) != note.seq
    ]


def disobeyed(notes: Iterable[Note]) -> list[Violation]:
    """Runs of a paused loop. The one whose token was on its way when it was paused may end."""
    on_its_way: dict[str, tuple[int, int] | None] = {}
    found: list[Violation] = []
    for note in notes:
        if note.what == "paused":
            on_its_way.setdefault(note.loop, None)
        elif note.what == "resuming":
            on_its_way.pop(note.loop, None)
        elif note.what == BEGINS and note.loop in on_its_way:
            allowed = on_its_way[note.loop]
            on_its_way[note.loop] = note.progress
            if allowed not in (None, note.progress):
                found.append(Violation(note.at, "paused", f"{note.loop} ran {note.progress}"))
    return found


def undone(notes: Iterable[Note]) -> list[Note]:
    """The one-off messages that were confirmed, and neither came to their end nor were parked."""
    sent: dict[str, Note] = {}
    done: set[str] = set()
    for note in notes:
        if note.what == "sent":
            sent[note.message] = note
        elif note.message and note.what in ("end", "MessageParked", "parked"):
            done.add(note.message)
    return [note for message, note in sent.items() if message not in done]


def lost(notes: Iterable[Note]) -> list[Violation]:
    """The one-off messages that are gone."""
    return [Violation(note.at, "one-off lost", note.message) for note in undone(notes)]


def late(strikes: Iterable[Strike], patience: Callable[[str], float]) -> list[Violation]:
    """Faults after which a loop did not run again within the time stated for their kind."""
    found: list[Violation] = []
    for strike in strikes:
        stated = patience(strike.kind)
        if strike.recovery is None:
            missing = ", ".join(sorted(strike.awaited))
            found.append(Violation(strike.at, "dead", f"after {strike.kind}: {missing}"))
        elif strike.recovery > stated:
            text = f"{strike.recovery:.1f} s after {strike.kind}, stated are {stated:g} s"
            found.append(Violation(strike.at, "late", text))
    return found


def failed(notes: Iterable[Note]) -> list[Violation]:
    """Commands and processes that ended badly without being told to."""
    return [
        Violation(note.at, note.what, f"{note.who}: {note.detail}")
        for note in notes
        if note.what in ("failed to stop", "seed failed", "ended by itself")
    ]


def not_single(notes: Iterable[Note]) -> list[Violation]:
    """Loops whose tokens, at rest, are not exactly one."""
    counts = [(note, int(note.detail)) for note in notes if note.what == "tokens"]
    return [
        Violation(note.at, "loop doubled" if count else "loop lost", f"{note.loop}: {count} tokens")
        for note, count in counts
        if count != 1
    ]


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
    counting: Iterable[str],
    patience: Callable[[str], float],
    failing: Collection[str] = (),
) -> Verdict:
    """Everything above."""
    notes = sorted(notes, key=lambda note: note.at)
    pulse = Pulse(loops)
    for note in notes:
        pulse.see(note)
    orderly = untampered(notes)
    beside, again = overlaps(orderly, failing), repeats(orderly, failing)
    violations = [
        *late(pulse.strikes, patience),
        *overlapping(beside),
        *repeated(again),
        *miscounted(orderly, counting),
        *disobeyed(notes),
        *lost(notes),
        *failed(notes),
        *not_single(notes),
    ]
    ordered = sorted(violations, key=lambda violation: violation.at)
    return Verdict(pulse.strikes, beside, again, ordered)
