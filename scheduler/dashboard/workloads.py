"""Count the loops of each task: those that are judged, and the rest as the roster counts them.

So a namespace of a million loops costs no more here than its tasks.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from scheduler.control.loops import Where
from scheduler.dashboard.picture import RUNS_KEPT, LoopPicture
from scheduler.dashboard.standing import TROUBLES, Standing
from scheduler.protocol.epochs import LoopState
from scheduler.queues.listing import Listing
from scheduler.tasks.tasks import SUPERVISION

WINDOW = timedelta(minutes=5)
MINUTE = timedelta(minutes=1)
ATTENTION = "failing", *(state.value for state in TROUBLES)
"""The words of loops that need attention, the worst first."""


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


def count_unjudged(standings: Iterable[Standing], listing: Listing) -> int:
    """Count the loops of the roster that are not judged: there are too many."""
    listed = (each.loop.listed for each in standings)
    judged = sum(each is not None and not each.is_gone for each in listed)
    tasks = [task for task in listing.counts if task != SUPERVISION.task]
    there = sum(map(listing.count_of, tasks))
    return max(there - judged, 0)


def _percentile(values: Sequence[timedelta], share: int) -> timedelta | None:
    return values[(len(values) - 1) * share // 100] if values else None


def _per_minute(loop: LoopPicture, since: datetime, now: datetime) -> float:
    runs = loop.runs
    if len(runs) >= RUNS_KEPT:  # earlier ones are unknown
        since = max(since, runs[0].started_at)
    count = len(runs) - bisect_right(runs, since, key=lambda run: run.started_at)
    return count * (MINUTE / max(now - since, MINUTE / 60))
