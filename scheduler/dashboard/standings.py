"""Judge all loops again and again, only those that may have changed since; and count those of each
task, also those that are too many to be judged.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from math import ceil

from scheduler.control.loops import Where, due_at_of, loop_of_entry, orphan_of, put_of, where
from scheduler.control.status import Status, status_of
from scheduler.dashboard.picture import FAILED, MINUTE, RUNS_KEPT, LoopPicture, Picture
from scheduler.protocol.epochs import Entry, LoopState
from scheduler.protocol.tokens import Ending, LoopId
from scheduler.queues.entries import RosterEntry
from scheduler.queues.listing import Listing
from scheduler.tasks.loops import App, queues_of
from scheduler.tasks.tasks import DEFAULT_TASK_TIMEOUT, SUPERVISION
from scheduler.timing.durations import SECOND
from scheduler.timing.schedules import Schedule

FAILING = "failing"
MARKS = {
    FAILING: "bad",
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
MEANINGS: dict[str, str] = {
    FAILING: "Its runs exhausted all retries, or fail again and again.",
    **{where: f"{where.meaning[0].upper()}{where.meaning[1:]}." for where in Where},
}
AT_REST = (Where.WAITING, Where.PAUSED, Where.UNSEEDED, Where.REMOVED)
SETTLED = (Where.WAITING, Where.PAUSED, Where.UNSEEDED, Where.REMOVED, Where.UNHEARD)
"""The states that last until a message, or the next time of the loop."""
AT_ONCE = 1_000  # other loops, that are judged each time
MANY = 3
TROUBLES = (Where.LOST, Where.UNATTENDED, Where.LATE, Where.UNSEEDED)
ATTENTION = FAILING, *(state.value for state in TROUBLES)
"""The words of loops that need attention, the worst first."""
WINDOW = timedelta(minutes=5)
FOR_EVER = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Standing:
    """Judge one loop at a moment.

    Attributes:
        status: as a command prints it, but for its processors: they may change without news.
        loop: its history.
        failures: how many of its last attempts have failed, in a row.
    """

    name: str
    status: Status
    loop: LoopPicture
    in_code: bool
    failures: int

    @property
    def state(self) -> Where:
        return self.status.where

    @property
    def schedule(self) -> Schedule:
        """Return its schedule, as it was seeded."""
        return self.status.loop.schedule

    @property
    def is_paused(self) -> bool:
        """Return whether it is paused itself, not only its task."""
        return self.state is Where.PAUSED and self.status.task_pause is None

    @property
    def is_failing(self) -> bool:
        """Return whether a tick has failed for the last time, or fails again and again."""
        last = self.loop.last
        return self.failures >= MANY or (last is not None and last.ending is Ending.ESCALATED)

    @property
    def failed_attempts(self) -> str:
        """Return how many attempts have failed in a row: "30+" if no more are stored."""
        return capped(self.failures, self.failures >= RUNS_KEPT)

    @property
    def word(self) -> str:
        """Return its state; "failing" outranks the states of timing."""
        is_timing = self.state in (Where.WAITING, Where.RUNNING, Where.READY, Where.LATE)
        return FAILING if self.is_failing and is_timing else self.state.value

    @property
    def meaning(self) -> str:
        return MEANINGS[self.state]


class Standings:
    """Judge each loop of the code, and each in the broker."""

    def __init__(self, app: App, picture: Picture) -> None:
        self._app, self._picture = app, picture
        self._known = dict[LoopId, Standing]()
        self._until = dict[LoopId, datetime]()
        self._of_tasks = dict[str, RosterEntry | None]()
        picture.changed.update(picture.loops)

    def at(self, now: datetime) -> Sequence[Standing]:
        """Return the standings at a moment, by name."""
        unsettled = sum(standing.state not in SETTLED for standing in self._known.values())
        pause, is_sorted = SECOND * (unsettled // AT_ONCE), True
        for loop in [*self._to_judge(now)]:
            standing = self._standing(loop, now)
            if standing is None:
                self._known.pop(loop, None)
                self._until.pop(loop, None)
                continue
            is_sorted &= loop in self._known
            self._known[loop] = standing
            if loop.task not in self._of_tasks:
                self._of_tasks[loop.task] = self._picture.listing.of_task(loop.task)
            self._until[loop] = self._holds_until(standing, now + pause)
        if not is_sorted:
            self._known = dict(sorted(self._known.items(), key=lambda item: item[1].name))
        return [*self._known.values()]

    def _to_judge(self, now: datetime) -> Iterable[LoopId]:
        """Return the loops with news, and those whose standing holds no longer."""
        loops, self._picture.changed = self._picture.changed, set()
        # The picture has no news of these: they are unseeded, or beyond its limit.
        loops.update(loop for loop in self._app.loops if loop not in self._picture.loops)
        loops.update(loop for loop, until in self._until.items() if until <= now)
        of_tasks = {task: self._picture.listing.of_task(task) for task in self._of_tasks}
        if changed := {task for task in of_tasks if of_tasks[task] is not self._of_tasks[task]}:
            loops.update(loop for loop in self._known if loop.task in changed)
        self._of_tasks = of_tasks
        return loops

    def _holds_until(self, standing: Standing, next_time: datetime) -> datetime:
        """Return until when a standing holds without news; an unsettled one, until next time."""
        loop = standing.loop
        if standing.state not in SETTLED:
            return next_time
        if standing.state is Where.WAITING and loop.listed is not None:
            put = None if loop.token is None else put_of(loop.token)
            return due_at_of(loop.listed, put, self._of_tasks[loop.id.task]) or FOR_EVER
        return FOR_EVER

    def _standing(self, name: LoopId, now: datetime) -> Standing | None:
        """Judge one loop; None: there is none of this name, or no longer."""
        app, listing = self._app, self._picture.listing
        code, loop = app.loops.get(name), self._picture.loops.get(name)
        if loop is None:
            if code is None:
                return None
            loop = LoopPicture(name, listing.get(name))
        listed, token, task = loop.listed, loop.token, app.tasks.get(name.task)
        if name == SUPERVISION or (code is None and (listed is None or listed.is_gone)):
            return None
        if listed is None and token is not None:  # the roster was not read yet
            entry = Entry(token.epoch, LoopState.ACTIVE, token.life)
            listed = RosterEntry(name, token.schedule, token.args, entry, at=now)
        depth = self._picture.depth_of(queues_of(app, name.task))
        timeout = task.timeout if task else DEFAULT_TASK_TIMEOUT
        put, of_task = None if token is None else put_of(token), listing.of_task(name.task)
        state = where(listed, put, now, depth, of_task=of_task, timeout=timeout)
        if code is not None and (listed is None or listed.is_gone):
            status = Status(code, state, 0)
        else:
            assert listed is not None
            its = loop_of_entry(app, listed) or orphan_of(listed)
            status = status_of(its, state, 0, listed, token, listing)
            status = status if loop.listed else replace(status, since=None)
        in_code = code is not None or (bool(name.key) and task is not None)
        failed = takewhile(lambda run: run.last.ending in FAILED, reversed(loop.runs))
        return Standing(str(name), status, loop, in_code, sum(1 for _ in failed))


@dataclass(slots=True)
class Workload:
    """Count the loops of one task, and their recent runs.

    Attributes:
        loops: all of them.
        judged: those whose state is known: too many loops are only counted.
        states: how many are in each state; of those that are not judged, the paused ones.
        failing: how many fail, paused ones included.
        waiting: how many wait for their time; of these, `retrying` for a retry.
        took: the median of the durations of their last runs.
        late: the 99th percentile of the lateness of these.
    """

    task: str
    loops: int = 0
    judged: int = 0
    states: Counter[str] = field(default_factory=Counter[str])
    failing: int = 0
    waiting: int = 0
    retrying: int = 0
    per_minute: float = 0.0
    took: timedelta | None = None
    late: timedelta | None = None

    @property
    def shares(self) -> dict[str, int]:
        """Return its states, the worst first."""
        paused, rest = Where.PAUSED.value, (Where.RUNNING, Where.READY, Where.WAITING)
        words = (*ATTENTION, paused, *(state.value for state in rest))
        return {word: self.states[word] for word in words}

    @property
    def urgency(self) -> tuple[object, ...]:
        """Return its place among tasks, the worst trouble first."""
        return (*(-self.states[word] for word in ATTENTION), -self.loops, self.task)


def workloads(
    standings: Iterable[Standing], listing: Listing, now: datetime, heard_back_to: datetime | None
) -> dict[str, Workload]:
    """Return the workload of each task that has loops, if the journal was read back to a moment."""
    since = max(now - WINDOW, heard_back_to or now - WINDOW)
    found: dict[str, Workload] = {}
    judged, lasts = Counter[tuple[str, LoopState]](), defaultdict[str, list[LoopPicture]](list)
    for standing in standings:
        loop, task = standing.loop, standing.loop.id.task
        work = found.setdefault(task, Workload(task))
        work.judged += 1
        work.states[standing.word] += 1
        work.failing += standing.is_failing
        work.waiting += standing.state is Where.WAITING
        work.retrying += standing.state is Where.WAITING and bool(loop.token and loop.token.attempt)
        work.per_minute += _per_minute(loop, since, now)
        if loop.listed is not None:
            judged[task, loop.listed.entry.state] += 1
        lasts[task].append(loop)
    for task, of_task in listing.counts.items():
        active, paused = (
            max(of_task[state] - judged[task, state], 0)
            for state in (LoopState.ACTIVE, LoopState.PAUSED)
        )
        if task != SUPERVISION.task and active + paused:
            work = found.setdefault(task, Workload(task))
            work.loops = active + paused
            is_paused = listing.pause_of(task) is not None
            work.states[Where.PAUSED.value] += paused + (active if is_paused else 0)
    for task, work in found.items():
        work.loops += work.judged
        last = [each.last for each in lasts[task] if each.last is not None]
        work.took = _percentile(sorted(each.duration for each in last), 50)
        work.late = _percentile(sorted(each.late for each in last), 99)
    return found


def count_listed(listing: Listing) -> int:
    return sum(listing.count_of(task) for task in listing.counts if task != SUPERVISION.task)


def _percentile(values: Sequence[timedelta], share: int) -> timedelta | None:
    return values[ceil(len(values) * share / 100) - 1] if values else None


def _per_minute(loop: LoopPicture, since: datetime, now: datetime) -> float:
    runs = loop.runs
    if len(runs) >= RUNS_KEPT:  # earlier ones are unknown
        since = max(since, runs[0].started_at)
    count = len(runs) - bisect_right(runs, since, key=lambda run: run.started_at)
    return count * (MINUTE / max(now - since, MINUTE / 60))


def capped(count: int, is_capped: bool) -> str:
    return f"{count:,}+" if is_capped else f"{count:,}"
