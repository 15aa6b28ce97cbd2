from datetime import UTC, datetime, timedelta

import pytest

from scheduler.timing.moments import (
    LATEST_MS,
    SystemClock,
    milliseconds_since_epoch,
    moment_of,
)


def test_the_system_clock_reads_utc():
    before, now = datetime.now(UTC), SystemClock().now()
    assert before <= now <= datetime.now(UTC)
    assert now.tzinfo is UTC


@pytest.mark.parametrize(
    ("moment", "ms"),
    [
        (datetime(1970, 1, 1, tzinfo=UTC), 0),
        (datetime(2026, 6, 1, 9, 0, 0, 250_000, tzinfo=UTC), 1_780_304_400_250),
        (datetime(9001, 1, 1, tzinfo=UTC), LATEST_MS),
    ],
)
def test_a_moment_travels_as_milliseconds_without_fractions_of_one(moment: datetime, ms: int):
    assert milliseconds_since_epoch(moment) == ms
    assert milliseconds_since_epoch(moment + timedelta(microseconds=999)) == ms
    assert moment_of(ms) == moment
    assert moment_of(ms).tzinfo is UTC
