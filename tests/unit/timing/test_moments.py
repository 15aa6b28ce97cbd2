import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from scheduler.testing import run_virtually
from scheduler.timing.moments import (
    LATEST_MS,
    LoopClock,
    SystemClock,
    milliseconds_since_epoch,
    moment_of,
)

NOON = datetime(2026, 6, 15, 12, tzinfo=UTC)


def test_the_system_clock_reads_utc():
    before, now = datetime.now(UTC), SystemClock().now()
    assert before <= now <= datetime.now(UTC)
    assert now.tzinfo is UTC


def test_the_loop_clock_follows_the_timers_of_its_event_loop():
    async def told() -> list[datetime]:
        clock = LoopClock(NOON)
        start = clock.now()
        await asyncio.sleep(90)
        return [start, clock.now()]

    assert run_virtually(told()) == [NOON, NOON + timedelta(seconds=90)]


@pytest.mark.parametrize(
    ("moment", "ms"),
    [
        (datetime(1970, 1, 1, tzinfo=UTC), 0),
        (datetime(2026, 6, 1, 9, 0, 0, 250_000, tzinfo=UTC), 1_780_304_400_250),
        (datetime(9000, 1, 1, tzinfo=UTC), LATEST_MS),
    ],
)
def test_a_moment_travels_as_milliseconds(moment: datetime, ms: int):
    assert milliseconds_since_epoch(moment) == ms
    assert moment_of(ms) == moment
    assert moment_of(ms).tzinfo is UTC


def test_fractions_of_a_millisecond_are_dropped():
    moment = datetime(2026, 6, 1, 9, 0, 0, 250_999, tzinfo=UTC)
    assert moment_of(milliseconds_since_epoch(moment)) == moment - timedelta(microseconds=999)
