"""How much there is to do of each task, as its loops and the depths of queues tell."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from scheduler.brokers.contract import Depth
from scheduler.control.where import Where
from scheduler.dashboard.picture import RUNS_KEPT, LoopPicture
from scheduler.dashboard.standing import Standing
from scheduler.protocol.hatchery import Timer, timers
from scheduler.protocol.topology import Names

WINDOW = timedelta(minutes=5)
MINUTE = timedelta(minutes=1)
SPANS = (
    ("seconds", timedelta(minutes=1)),
    ("minutes", timedelta(hours=1)),
    ("hours", timedelta(days=1)),
    ("days", timedelta.max),
)


@dataclass(slots=True)
class Workload:
    """The loops of one task.

    Attributes:
        loops: how many there are.
        waiting: how many of them wait for their time.
        retrying: how many of these wait for another attempt.
        per_minute: how many runs they have made in a minute lately.
    """

    loops: int = 0
    waiting: int = 0
    retrying: int = 0
    per_minute: float = 0.0


def workloads(
    standings: Iterable[Standing], now: datetime, heard_back_to: datetime | None
) -> dict[str, Workload]:
    """The workload of each task that has loops.

    Args:
        heard_back_to: the journal was read from here on.
    """
    since = max(now - WINDOW, heard_back_to or now - WINDOW)
    found: dict[str, Workload] = {}
    for standing in standings:
        work = found.setdefault(standing.loop.id.task, Workload())
        token = standing.loop.token
        work.loops += 1
        work.waiting += standing.state is Where.WAITING
        work.retrying += standing.state is Where.WAITING and bool(token and token.attempt)
        work.per_minute += _per_minute(standing.loop, since, now)
    return found


def _per_minute(loop: LoopPicture, since: datetime, now: datetime) -> float:
    runs = loop.runs
    if len(runs) >= RUNS_KEPT:  # of those before, nothing is known
        since = max(since, runs[0].started_at)
    count = len(runs) - bisect_right(runs, since, key=lambda run: run.started_at)
    return count * (MINUTE / max(now - since, MINUTE / 60))


@dataclass(frozen=True, slots=True)
class Delayed:
    """One-off messages that wait for their time, retries too.

    Attributes:
        spans: how many are in timers of seconds, minutes, hours and days.
    """

    spans: Sequence[tuple[str, int]]

    @property
    def count(self) -> int:
        return sum(count for _, count in self.spans)


def delayed(names: Names, depths: Mapping[str, Depth | None]) -> Delayed | None:
    """How many there are, by the depths of the timers of calls; None: nobody has asked yet."""
    known = {
        timer: depth
        for timer in timers()
        if (depth := depths.get(names.later_timer(timer), _UNKNOWN)) is not _UNKNOWN
    }
    if not known:
        return None
    counts = dict.fromkeys([name for name, _ in SPANS], 0)
    for timer, depth in known.items():
        counts[_span_of(timer)] += depth.ready if depth else 0
    return Delayed([(name, count) for name, count in counts.items() if count])


_UNKNOWN = Depth(-1, -1)


def _span_of(timer: Timer) -> str:
    return next(name for name, limit in SPANS if timer.wait < limit)
