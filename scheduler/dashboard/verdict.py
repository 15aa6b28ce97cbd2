"""Judge loops, calls, processors and the broker together, without I/O."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property, partial

from scheduler.control.loops import Where
from scheduler.dashboard import wording
from scheduler.dashboard.acknowledgements import Acknowledgement
from scheduler.dashboard.picture import DAY, RUNS_KEPT, Picture
from scheduler.dashboard.standings import (
    FAILING,
    TROUBLES,
    Standing,
    Workload,
    capped,
    count_listed,
    workloads,
)
from scheduler.dashboard.watch import Roll, Watch, parked_in
from scheduler.protocol.topology import Names
from scheduler.queues.failed import kind_of
from scheduler.queues.history import BEHIND, CallTotals
from scheduler.spelling import counted, listed
from scheduler.tasks.loops import App, queues_of, resting
from scheduler.timing.durations import format_duration
from scheduler.timing.moments import UNIX_EPOCH

MILD = (Where.LATE, Where.UNSEEDED)
LEVELS = ("ok", "hold", "off", "warn", "bad")
CLAUSES = 2
RECENT_SLOTS = 30
FRESH = timedelta(seconds=1)
MANY = 2_000  # loops, from which judging all of them is slow
LEFTOVER = (
    "The broker has a task that the code does not have: {}. `scheduler seed --prune` parks what "
    "waits."
)


def pauses_in_words(app: App, picture: Picture) -> Iterator[str]:
    """Describe each paused task."""
    for task in app.tasks:
        if (pause := picture.listing.pause_of(task)) is not None:
            depth = picture.depth_of(queues_of(app, task))
            waiting = f"; {counted(depth.ready, 'message')} waiting" if depth else ""
            yield f"Task {task} is paused by {pause.by}: {pause.reason}{waiting}."


def delays_in_words(
    app: App, picture: Picture, calls: Mapping[str, CallTotals], now: datetime
) -> Iterator[str]:
    """Describe each task whose calls wait for longer than they should."""
    for task, totals in calls.items():
        depth, oldest = picture.depth_of(queues_of(app, task)), totals.oldest(now)
        if depth and depth.ready and depth.consumers and oldest and oldest > BEHIND:
            waiting = counted(depth.ready, "call")
            yield f"{waiting} of {task} waiting, the oldest for {format_duration(oldest)}."


@dataclass(frozen=True, slots=True)
class Trouble:
    """Describe a problem of loops, the worst first.

    Attributes:
        acknowledged: how many of them fail with acknowledged errors.
    """

    what: str
    loops: Sequence[Standing]
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
            f"{capped(self.attempts, self.is_capped)} attempt{'' if is_one else 's'} in a row"
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
    return sorted(
        found.values(),
        key=lambda each: (each.acknowledged is not None, -len(each.loops), -each.parked, each.task),
    )


@dataclass(frozen=True, slots=True)
class Vital:
    """Judge one of the four: loops, calls, processors, the broker.

    Attributes:
        level: "off": not known yet.
        says: the fact.
        more: its context.
        problems: sentences for the verdict, each with its level.
    """

    what: str
    path: str
    level: str
    says: str
    more: str = ""
    problems: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, slots=True)
class HealthVerdict:
    """Summarize everything: a sentence, the problems, and the number of loops in each state.

    Attributes:
        sentence: the two worst problems; without any, that all is well.
        more: further problems, and what is worth knowing.
        level: "ok", "hold" (all problems are acknowledged), "off" (something is not known yet),
            "warn" or "bad".
    """

    sentence: str
    more: str
    level: str
    vitals: Sequence[Vital]
    troubles: Sequence[Trouble]
    counts: Mapping[Where, int]
    failures: Sequence[Failure]


def verdict_of(
    standings: Sequence[Standing],
    failures: Sequence[Failure] = (),
    others: Sequence[Vital] = (),
    notes: Iterable[str] = (),
) -> HealthVerdict:
    """Judge loops, together with the vitals of calls, processors and the broker."""
    troubles = list(_troubles(standings, failures))
    counts = Counter(standing.state for standing in standings)
    loops = _sentence(standings, troubles, counts)
    vitals = [_vital_of_loops(standings, troubles, counts, loops), *others]
    # A broker that is away explains the rest.
    problems = [problem for vital in reversed(vitals) for problem in vital.problems]
    problems.sort(key=lambda problem: -LEVELS.index(problem[1]))
    said = [sentence for sentence, _ in problems]
    first, rest = said[:CLAUSES] or [loops], said[CLAUSES:]
    if loops not in (*first, *rest):
        rest.append(loops)
    return HealthVerdict(
        " ".join(first),
        " ".join([*rest, *notes]),
        problems[0][1] if problems else "ok",
        vitals,
        troubles,
        counts,
        failures,
    )


def _troubles(standings: Sequence[Standing], failures: Iterable[Failure]) -> Iterator[Trouble]:
    for state in TROUBLES:
        of_state = [each for each in standings if each.state is state]
        if of_state:
            of_state.sort(key=lambda each: each.status.due_at or UNIX_EPOCH)
            yield Trouble(state.value, of_state)
    failing = sorted((each for each in standings if each.is_failing), key=lambda x: -x.failures)
    if failing:
        acknowledged = sum(len(each.loops) for each in failures if each.acknowledged)
        yield Trouble(FAILING, failing, acknowledged)


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


def _vital_of_loops(
    standings: Sequence[Standing],
    troubles: Sequence[Trouble],
    counts: Mapping[Where, int],
    sentence: str,
) -> Vital:
    total = len(standings)
    on_time = counts.get(Where.WAITING, 0) + counts.get(Where.RUNNING, 0)
    other = [
        f"{count:,} {state}"
        for state, count in sorted(counts.items())
        if state not in (Where.WAITING, Where.RUNNING)
    ]
    if not total:
        return Vital("Loops", "/loops", "ok", "None")
    if not troubles:
        return Vital("Loops", "/loops", "ok", f"{total:,} on time", " · ".join(other))
    worst = max(reversed(troubles), key=lambda each: LEVELS.index(each.level))
    says = f"{len(worst.loops):,} of {total:,} {worst.what}"
    rest = [each for each in other if not each.endswith(f" {worst.what}")]
    if worst.acknowledged:
        rest.insert(0, f"{worst.acknowledged:,} acknowledged")
    rest.append(f"{on_time:,} on time")
    path, problems = f"/loops?state={worst.what}", [(sentence, worst.level)]
    return Vital("Loops", path, worst.level, says, " · ".join(rest), problems)


def vital_of_calls(
    app: App,
    calls: Mapping[str, CallTotals],
    failures: Sequence[Failure],
    delays: Iterable[str] = (),
    parked: int | None = None,
) -> Vital:
    """Judge the calls of the last quarter of an hour, and what is parked."""
    problems = [*_problems_of_calls(calls, failures), *((delay, "warn") for delay in delays)]
    level = max((level for _, level in problems), key=LEVELS.index, default="ok")
    more = [] if parked is None else [f"{parked:,} parked"]
    ended = sum(each.succeeded + each.lost for each in calls.values())
    lost = sum(each.lost for each in calls.values())
    if not any(task.called for task in app.tasks.values()):
        says = "No task accepts calls"
    elif lost:
        says = f"{lost:,} of {ended:,} failed in 15 min"
        failing = [task for task, each in calls.items() if each.is_failing]
        more += [f"only {listed(failing)}"] if failing else []
        level = level if problems else "warn"
    else:
        says = f"{ended:,} in 15 min, none failed" if ended else "None in 15 min"
    return Vital("Calls", "/failed", level, says, " · ".join(more), problems)


def _problems_of_calls(
    calls: Mapping[str, CallTotals], failures: Sequence[Failure]
) -> Iterator[tuple[str, str]]:
    """Describe tasks of which at least as many calls fail as succeed, or whose messages stay
    parked; each with its level.
    """
    said = {
        task: f"{counted(totals.lost, 'call')} of {task} failed in the last 15 minutes"
        for task, totals in calls.items()
        if totals.is_failing
    }
    parked = Counter[str]()
    for each in failures:
        if not each.loops and each.task not in said:
            parked[each.task] += each.parked
    for task, count in parked.items():
        what = f"{counted(count, 'message')} of {task} {'is' if count == 1 else 'are'} parked"
        said[task] = f"{what}, and no run has succeeded since"
    for task, sentence in said.items():
        known = [each.acknowledged is not None for each in failures if each.task == task]
        is_known = bool(known) and all(known)
        yield (f"{sentence} (acknowledged).", "hold") if is_known else (f"{sentence}.", "bad")


def vital_of_processors(app: App, picture: Picture, roll: Roll | None, silent: int) -> Vital:
    vital = partial(Vital, "Processors", "/processors")
    presence = picture.depths.get(app.names.presence)
    if presence is None:
        unknown = "The number of processors is not known yet."
        return vital("off", "Reading…", problems=[(unknown, "off")])
    count = presence.consumers
    versions = f"version {listed(roll.versions)}" if roll is not None and roll.versions else ""
    if not count:
        return vital("bad", "None running", problems=[("No processor is running.", "bad")])
    if idle := [task for task, ready in unconsumed(app, picture).items() if ready]:
        few = wording.few(idle)
        says = f"{counted(len(idle), 'task')} without processors"
        return vital("bad", says, few, [(f"No processor consumes {few}.", "bad")])
    if silent:
        says = f"{max(count - silent, 0)} of {count} responding"
        verb = "does" if silent == 1 else "do"
        problem = f"{silent} of {counted(count, 'processor')} {verb} not respond."
        return vital("warn", says, versions, [(problem, "warn")])
    return vital("ok", f"{count:,} running", versions)


def unconsumed(app: App, picture: Picture) -> dict[str, int]:
    """Count the ready messages of each task that no processor consumes, paused ones left out."""
    at_rest = resting(app)
    depths = {
        task: picture.depth_of(queues_of(app, task))
        for task in app.tasks
        if task not in at_rest and picture.listing.pause_of(task) is None
    }
    return {task: each.ready for task, each in depths.items() if each and not each.consumers}


def vital_of_broker(app: App, picture: Picture, alarm: str) -> Vital:
    vital = partial(Vital, "Broker", "/doctor")
    if not picture.connected:
        since = f" since {wording.in_full(picture.since)}" if picture.since else ""
        problem = f"The broker cannot be reached{since}: the page shows the last known state."
        return vital("bad", "Not reached", picture.trouble, [(problem, "bad")])
    if alarm:
        problem = f"The broker blocks publishers: {alarm}."
        return vital("bad", "Blocks publishers", alarm, [(problem, "bad")])
    return vital("ok", "No alarms", f"{counted(picture.ready(app.names), 'message')} ready")


class Judgement:
    """Judge all loops at a moment; what follows from it is computed once."""

    def __init__(
        self, app: App, picture: Picture, watch: Watch, standings: Sequence[Standing], now: datetime
    ) -> None:
        self.version = picture.version
        self.at = now
        self.standings = standings
        self._app, self._picture, self._watch = app, picture, watch

    @cached_property
    def verdict(self) -> HealthVerdict:
        app, picture, watch = self._app, self._picture, self._watch
        failures = failures_of(self.standings, picture, app.names, self.at)
        calls = picture.calls(self.at)
        delays = delays_in_words(app, picture, calls, self.at)
        others = [
            vital_of_calls(app, calls, failures, delays, parked_in(app, picture)),
            vital_of_processors(app, picture, watch.roll, watch.silent),
            vital_of_broker(app, picture, watch.alarm),
        ]
        judged = len(self.standings)
        unjudged = [f"Only {judged:,} of {self.total:,} loops are judged."]
        notes = [
            *(unjudged if judged < self.total else ()),
            *pauses_in_words(app, picture),
            *map(LEFTOVER.format, picture.leftovers),
        ]
        return verdict_of(self.standings, failures, others, notes)

    @cached_property
    def workloads(self) -> dict[str, Workload]:
        picture = self._picture
        return workloads(self.standings, picture.listing, self.at, picture.heard_back_to)

    @cached_property
    def total(self) -> int:
        """Count all loops, of which too many are not judged."""
        listed = count_listed(self._picture.listing) if self._picture.is_full else 0
        return max(len(self.standings), listed)

    @cached_property
    def failing(self) -> int:
        """Count the failing loops, without those whose failures are acknowledged."""
        failing = [each for each in self.verdict.troubles if each.what == FAILING]
        return sum(len(each.loops) - each.acknowledged for each in failing)

    def failure(self, task: str, kind: str) -> Failure | None:
        return self._failures.get((task, kind))

    @cached_property
    def _failures(self) -> dict[tuple[str, str], Failure]:
        return {(each.task, each.kind): each for each in self.verdict.failures}

    @cached_property
    def by_name(self) -> dict[str, Standing]:
        return {standing.name: standing for standing in self.standings}

    @cached_property
    def tasks(self) -> Sequence[str]:
        """Return the tasks that have loops."""
        return sorted({each.loop.id.task for each in self.standings})

    def holds(self, version: int, now: datetime) -> bool:
        """Return whether it is fresh enough; of many loops, though there is news."""
        if now - self.at >= FRESH:
            return False
        return version == self.version or len(self.standings) >= MANY
