import asyncio
from datetime import UTC, datetime, timedelta

from scheduler.testing import run_virtually
from scheduler.timing.moments import LoopClock, SystemClock

NOON = datetime(2026, 6, 15, 12, tzinfo=UTC)


def test_the_clock_of_the_machine_tells_the_time_in_utc():
    before, now = datetime.now(UTC), SystemClock().now()
    assert before <= now <= datetime.now(UTC)
    assert now.tzinfo is UTC


def test_the_clock_of_a_loop_goes_with_its_timers():
    async def told() -> list[datetime]:
        clock = LoopClock(NOON)
        start = clock.now()
        await asyncio.sleep(90)
        return [start, clock.now()]

    start, later = run_virtually(told())
    assert start == NOON
    assert later == NOON + timedelta(seconds=90)
