"""How much there is to do of each task."""

from datetime import timedelta

import pytest

from scheduler import Every
from scheduler.brokers.contract import Depth
from scheduler.control.where import Where
from scheduler.dashboard.picture import RUNS_KEPT, LoopPicture, Run
from scheduler.dashboard.standing import Standing
from scheduler.dashboard.workload import Workload, delayed, workloads
from scheduler.protocol.hatchery import timers
from scheduler.protocol.tokens import Ending, LastRun, LoopId, Token
from scheduler.protocol.topology import Names
from tests.stage import START

MINUTE, SECOND = timedelta(minutes=1), timedelta(seconds=1)
NAMES = Names("test")


def standing(
    key: str = "",
    state: Where = Where.WAITING,
    *,
    attempt: int = 0,
    apart: float = 10,
    runs: int = 0,
) -> Standing:
    """A loop whose last runs came so many seconds apart, the last one now."""
    loop = LoopPicture(LoopId("poll", key))
    loop.token = Token(loop.id, Every("10s"), START, START, attempt=attempt)
    for number in range(runs):
        at = START - number * apart * SECOND
        loop.add(Run(at, number, 0, LastRun(Ending.SUCCEEDED, at, at, SECOND)))
    return Standing(str(loop.id), state, loop, Every("10s"), True, 0)


def test_loops_are_counted_by_task_as_they_wait() -> None:
    loops = [
        standing("a"),
        standing("b", attempt=2),
        standing("c", Where.PAUSED),
        standing("d", Where.READY, attempt=1),
    ]
    found = workloads(loops, START, None)
    assert found == {"poll": Workload(loops=4, waiting=2, retrying=1)}


@pytest.mark.parametrize(
    ("apart", "runs", "heard", "per_minute"),
    [
        (60, 20, None, 1),  # of five minutes
        (60, 20, 2 * MINUTE, 1),
        (1, RUNS_KEPT, None, 60),  # no more are kept
        (60, 0, None, 0),
    ],
)
def test_runs_are_counted_as_far_as_they_are_known(
    apart: float, runs: int, heard: timedelta | None, per_minute: float
) -> None:
    heard_back_to = START - heard if heard else None
    (work,) = workloads([standing(apart=apart, runs=runs)], START, heard_back_to).values()
    assert work.per_minute == pytest.approx(per_minute, rel=0.05)


def test_what_is_delayed_is_counted_by_the_timers_it_is_in() -> None:
    depths: dict[str, Depth | None] = {NAMES.later_timer(timer): Depth(0, 0) for timer in timers()}
    depths |= {
        f"test.v1.later.{name}": Depth(count, 0)
        for name, count in {"5s": 3, "2x15s": 1, "10m": 4, "3h": 5, "2x7d": 6}.items()
    }
    found = delayed(NAMES, depths)
    assert found is not None
    assert list(found.spans) == [("seconds", 4), ("minutes", 4), ("hours", 5), ("days", 6)]
    assert found.count == 19


def test_of_what_nobody_has_counted_nothing_is_said() -> None:
    assert delayed(NAMES, {}) is None
    gone = delayed(NAMES, {NAMES.later_timer(timers()[0]): None})
    assert gone is not None
    assert gone.count == 0
