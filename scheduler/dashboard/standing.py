"""Judge loops and tasks at a moment, from the picture, without I/O."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import MappingProxyType

from scheduler.brokers.contract import Depth
from scheduler.control.loops import Where
from scheduler.dashboard.acknowledgements import Acknowledgement
from scheduler.dashboard.picture import DAY, RUNS_KEPT, LoopPicture, Picture
from scheduler.protocol.hatchery import timers
from scheduler.protocol.tokens import Ending
from scheduler.protocol.topology import Names
from scheduler.queues.failed import kind_of
from scheduler.queues.history import BEHIND, CallTotals
from scheduler.queues.listing import RosterEntry
from scheduler.spelling import counted, listed
from scheduler.tasks.loops import App, queues_of
from scheduler.timing.durations import format_duration
from scheduler.timing.schedules import Schedule

MANY = 3
FAILING = (Ending.RETRIED, Ending.ESCALATED)
SPANS = (
    ("seconds", timedelta(minutes=1)),
    ("minutes", timedelta(hours=1)),
    ("hours", timedelta(days=1)),
    ("days", timedelta.max),
)
MARKS = {
    "failing": "bad",
    Where.LOST: "bad",
    Where.UNATTENDED: "warn",
    Where.LATE: "late",
    Where.UNSEEDED: "miss",
    Where.REMOVED: "skip",
    Where.UNHEARD: "help",
    Where.READY: "queue",
    Where.RUNNING: "run",
    Where.PAUSED: "hold",
    Where.WAITING: "ok",
}
"""The shape of each state."""
MEANINGS = {where: f"{where.meaning[0].upper()}{where.meaning[1:]}." for where in Where}
AT_REST = (Where.WAITING, Where.PAUSED, Where.UNSEEDED, Where.REMOVED)
MILD = (Where.LATE, Where.UNSEEDED)
LEVELS = ("ok", "hold", "off", "warn", "bad")
CLAUSES = 2
RECENT_SLOTS = 30
TROUBLES = (Where.LOST, Where.UNATTENDED, Where.LATE, Where.UNSEEDED)


@dataclass(frozen=True, slots=True)
class Standing:
    """Judge one loop at a moment.

    Attributes:
        schedule: as it was seeded.
        failures: how many of its last attempts have failed, in a row.
        was_late: how late a run of the last day began, if seriously so.
        task_pause: the entry that pauses its task, if the loop is not paused itself.
        is_failing: whether a tick has failed for the last time, or one is failing again and again.
    """

    name: str
    state: Where
    loop: LoopPicture
    schedule: Schedule
    in_code: bool
    failures: int
    was_late: timedelta | None = None
    task_pause: RosterEntry | None = None
    is_failing: bool = field(init=False)

    def __post_init__(self) -> None:
        last = self.loop.last
        is_over = last is not None and last.ending is Ending.ESCALATED
        object.__setattr__(self, "is_failing", self.failures >= MANY or is_over)

    @property
    def failed_attempts(self) -> str:
        """Return how many attempts have failed in a row: "30+" if no more are stored."""
        return _capped(self.failures, self.failures >= RUNS_KEPT)

    @property
    def word(self) -> str:
        """Return its state; "failing" outranks the states of timing."""
        is_timing = self.state in (Where.WAITING, Where.RUNNING, Where.READY, Where.LATE)
        return "failing" if self.is_failing and is_timing else self.state.value

    @property
    def meaning(self) -> str:
        return MEANINGS[self.state]


def pauses_in_words(app: App, picture: Picture) -> list[str]:
    """Describe each paused task."""
    sentences = list[str]()
    for task in app.tasks:
        if (pause := picture.listing.pause_of(task)) is not None:
            depth = picture.depth_of(queues_of(app, task))
            waiting = f"; {counted(depth.ready, 'message')} waiting" if depth else ""
            sentences.append(f"Task {task} is paused by {pause.by}: {pause.reason}{waiting}.")
    return sentences


def delays_in_words(
    app: App, picture: Picture, calls: Mapping[str, CallTotals], now: datetime
) -> list[str]:
    """Describe each task whose calls wait for longer than they should."""
    sentences = list[str]()
    for task, totals in calls.items():
        depth = picture.depth_of(queues_of(app, task))
        oldest = totals.oldest(now)
        if depth is None or not (depth.ready and depth.consumers):
            continue
        if oldest is not None and oldest > BEHIND:
            waiting = counted(depth.ready, "call")
            sentences.append(
                f"{waiting} of {task} waiting, the oldest for {format_duration(oldest)}."
            )
    return sentences


def leftovers_in_words(picture: Picture) -> list[str]:
    """Describe each task that the code does not have."""
    return [
        f"The broker has a task that the code does not have: {each}. `scheduler seed --prune` "
        "parks what waits."
        for each in picture.leftovers
    ]


@dataclass(frozen=True, slots=True)
class Trouble:
    """Describe a problem of loops, the worst first, and the query that selects them.

    Attributes:
        acknowledged: how many of them fail with acknowledged errors.
    """

    what: str
    advice: str
    loops: Sequence[Standing]
    query: str
    acknowledged: int = 0

    @property
    def level(self) -> str:
        if self.acknowledged == len(self.loops):
            return "hold"
        return "warn" if self.what in MILD else "bad"

    @property
    def sentence(self) -> str:
        count = len(self.loops)
        words = f"{count:,} {'is' if count == 1 else 'are'} {self.what}"
        return f"{words} ({self.acknowledged:,} acknowledged)" if self.acknowledged else words


@dataclass(slots=True)
class Failure:
    """Describe the failures of one task with one kind of error.

    Attributes:
        kind: the error, without numbers and quoted names.
        error: that of the last of them.
        attempts: how many attempts of its loops have failed in a row; if capped, maybe more.
        parked: the number of parked messages, as the journal says.
        succeeded_at: when a run or a call of the task succeeded last, if known.
        acknowledged: who has acknowledged them; None: they were not, or have succeeded since.
        recent: the number of failures in each three minutes of the last 90, the oldest first.
    """

    task: str
    kind: str
    error: str
    loops: list[Standing] = field(default_factory=list[Standing])
    attempts: int = 0
    is_capped: bool = False
    parked: int = 0
    first_at: datetime | None = None
    last_at: datetime | None = None
    succeeded_at: datetime | None = None
    acknowledged: Acknowledgement | None = None
    recent: Sequence[int] = ()

    @property
    def facts(self) -> str:
        """Describe their number in words."""
        is_one = (self.attempts, self.is_capped) == (1, False)
        attempts = (
            f"{_capped(self.attempts, self.is_capped)} attempt{'' if is_one else 's'} in a row"
        )
        of_loops = [f"{counted(len(self.loops), 'loop')} failing, {attempts}"] if self.loops else []
        parked = [f"{self.parked:,} parked"] if self.parked else []
        return "; ".join(of_loops + parked)

    def see(self, first_at: datetime, last_at: datetime, error: str) -> None:
        if self.last_at is None or last_at >= self.last_at:
            self.last_at, self.error = last_at, error or self.error
        self.first_at = min(self.first_at or first_at, first_at)

    def acknowledge(self, known: Acknowledgement | None) -> None:
        """Note the last acknowledgement, unless it was withdrawn, or a success has ended it."""
        if known is None or known.is_withdrawn:
            return
        of_loops = [each.loop.succeeded_at for each in self.loops]
        succeeded = of_loops if self.loops else [self.succeeded_at]
        if all(at is None or at <= known.at for at in succeeded):
            self.acknowledged = known


def failures_of(
    standings: Sequence[Standing], picture: Picture, names: Names, now: datetime
) -> list[Failure]:
    """Group failures by task and error: failing loops, and messages parked without a success
    since.
    """
    found: dict[tuple[str, str], Failure] = {}
    succeeded = picture.succeeded_at
    for each in standings:
        if each.is_failing:
            task = each.loop.id.task
            failed = each.loop.runs[-max(each.failures, 1) :]
            error = each.loop.last.error or "" if each.loop.last else ""
            kind = kind_of(error)
            group = found.setdefault((task, kind), Failure(task, kind, error))
            group.loops.append(each)
            group.attempts += each.failures
            group.is_capped |= each.failures >= RUNS_KEPT
            if failed:
                group.see(failed[0].started_at, failed[-1].started_at, error)
    for (task, kind), parked in picture.parked.items():
        depth = picture.depths.get(names.failed_queue(task))
        is_over = (task, kind) not in found and (
            parked.last_at < now - DAY
            or (depth is not None and depth.ready == 0)
            or succeeded.get(task, parked.first_at) > parked.last_at
        )
        if not is_over:
            group = found.setdefault((task, kind), Failure(task, kind, parked.error))
            group.parked = parked.count
            group.see(parked.first_at, parked.last_at, parked.error)
    for key, group in found.items():
        group.succeeded_at = succeeded.get(group.task)
        group.recent = picture.failures(*key, now, RECENT_SLOTS, 1)
        group.loops.sort(key=lambda each: -each.failures)
        group.acknowledge(picture.acknowledged.get(key))
    return sorted(found.values(), key=_urgency)


def _urgency(failure: Failure) -> tuple[bool, int, int, str]:
    is_known = failure.acknowledged is not None
    return is_known, -len(failure.loops), -failure.parked, failure.task


def _capped(count: int, is_capped: bool) -> str:
    return f"{count:,}+" if is_capped else f"{count:,}"


@dataclass(frozen=True, slots=True)
class HealthVerdict:
    """Summarize everything: a sentence, the problems, and the number of loops in each state.

    Attributes:
        sentence: the two worst problems; without any, that all is well.
        more: further problems, and what is worth knowing.
        level: "ok", "hold" (all problems are acknowledged), "off" (something is not known yet),
            "warn" or "bad".
        late: the number of loops with a seriously late run in the last day.
        calls: the outcomes of calls, for tasks of which at least as many fail as succeed.
    """

    sentence: str
    troubles: Sequence[Trouble]
    counts: Mapping[Where, int]
    more: str = ""
    level: str = "ok"
    late: int = 0
    calls: Mapping[str, CallTotals] = field(default_factory=dict[str, CallTotals])
    failures: Sequence[Failure] = ()

    @property
    def is_fine(self) -> bool:
        return self.level == "ok"


def verdict_of(
    standings: Sequence[Standing],
    calls: Mapping[str, CallTotals] = MappingProxyType({}),
    failures: Sequence[Failure] = (),
    delays: Sequence[str] = (),
    notes: Iterable[str] = (),
    around: Sequence[tuple[str, str]] = (),
) -> HealthVerdict:
    """Judge loops, recent calls and failures; delays and notes are further sentences.

    Args:
        around: the problems of processors and the broker, each with its level.
    """
    troubles = list(_troubles(standings, failures))
    counts = Counter(standing.state for standing in standings)
    late = sum(standing.was_late is not None for standing in standings)
    failing = {task: totals for task, totals in calls.items() if totals.is_failing}
    parked = Counter[str]()
    for each in failures:
        if not each.loops and each.task not in failing:
            parked[each.task] += each.parked
    loops = _sentence(standings, troubles, counts)
    problems = [
        *around,
        *([(loops, worst_of(each.level for each in troubles))] if troubles else []),
        *(
            _of_calls(
                f"{counted(totals.lost, 'call')} of {task} failed in the last 15 minutes",
                is_acknowledged(task, failures),
            )
            for task, totals in failing.items()
        ),
        *(
            _of_calls(
                f"{counted(count, 'message')} of {task} {'is' if count == 1 else 'are'} parked, "
                "and no run has succeeded since",
                is_acknowledged(task, failures),
            )
            for task, count in parked.items()
        ),
        *((delay, "warn") for delay in delays),
    ]
    problems.sort(key=lambda problem: -LEVELS.index(problem[1]))
    said = [sentence for sentence, _ in problems]
    if troubles or not problems:
        first, rest = said[:CLAUSES] or [loops], said[CLAUSES:]
    else:
        first, rest = said[:CLAUSES], [*said[CLAUSES:], loops]
    return HealthVerdict(
        " ".join(first),
        troubles,
        counts,
        " ".join([*rest, *notes]),
        problems[0][1] if problems else "ok",
        late,
        failing,
        failures,
    )


def is_acknowledged(task: str, failures: Iterable[Failure]) -> bool:
    """Return whether all failures of a task are acknowledged."""
    of_task = [each.acknowledged is not None for each in failures if each.task == task]
    return bool(of_task) and all(of_task)


def worst_of(levels: Iterable[str]) -> str:
    return max(levels, key=LEVELS.index, default=LEVELS[0])


def _of_calls(sentence: str, is_known: bool) -> tuple[str, str]:
    return (f"{sentence} (acknowledged).", "hold") if is_known else (f"{sentence}.", "bad")


def _troubles(standings: Sequence[Standing], failures: Iterable[Failure]) -> Iterator[Trouble]:
    for state in TROUBLES:
        of_state = [each for each in standings if each.state is state]
        if of_state:
            of_state.sort(key=_due)
            yield Trouble(state.value, MEANINGS[state], of_state, f"state={state.value}")
    failing = sorted((each for each in standings if each.is_failing), key=lambda x: -x.failures)
    if failing:
        advice = "Their runs exhausted all retries, or fail again and again."
        acknowledged = sum(len(each.loops) for each in failures if each.acknowledged)
        yield Trouble("failing", advice, failing, "failing=1", acknowledged)


def _due(standing: Standing) -> float:
    due_at = standing.loop.due_at
    return 0.0 if due_at is None else due_at.timestamp()


def _sentence(
    standings: Sequence[Standing], troubles: Sequence[Trouble], counts: Mapping[Where, int]
) -> str:
    if not standings:
        return "This app has no loops."
    paused = counts.get(Where.PAUSED, 0)
    but = f", {paused:,} of them paused" if paused else ""
    if not troubles:
        everyone = (
            "The only loop is" if len(standings) == 1 else f"All {len(standings):,} loops are"
        )
        return f"{everyone} on time{but if len(standings) > 1 else ''}."
    parts = [trouble.sentence for trouble in troubles]
    return f"Of {counted(len(standings), 'loop')}, {listed(parts)}."


@dataclass(frozen=True, slots=True)
class Delayed:
    """Count one-off messages that wait for their time, by the unit of their timers."""

    spans: Sequence[tuple[str, int]]

    @property
    def count(self) -> int:
        return sum(count for _, count in self.spans)


def delayed(names: Names, depths: Mapping[str, Depth | None]) -> Delayed | None:
    """Count them by the depths of the timers of calls; None: unknown yet."""
    named = {timer: names.later_timer(timer) for timer in timers()}
    known = {timer: depths[name] for timer, name in named.items() if name in depths}
    if not known:
        return None
    counts = dict.fromkeys([name for name, _ in SPANS], 0)
    for timer, depth in known.items():
        span = next(name for name, limit in SPANS if timer.wait < limit)
        counts[span] += depth.ready if depth else 0
    return Delayed([(name, count) for name, count in counts.items() if count])
