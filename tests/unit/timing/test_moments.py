from datetime import UTC, datetime, timedelta

import pytest

from scheduler.timing.moments import LATEST_MS, milliseconds_since_epoch, moment_of


@pytest.mark.parametrize(
    ("moment", "ms"),
    [
        (datetime(1970, 1, 1, tzinfo=UTC), 0),
        (datetime(1970, 1, 2, tzinfo=UTC), 86_400_000),
        (datetime(2026, 6, 1, 9, 0, 0, 250_000, tzinfo=UTC), 1_780_304_400_250),
        (datetime(9000, 1, 1, tzinfo=UTC), LATEST_MS),
    ],
)
def test_a_moment_travels_as_milliseconds(moment: datetime, ms: int):
    assert milliseconds_since_epoch(moment) == ms
    assert moment_of(ms) == moment
    assert moment_of(ms).tzinfo is UTC


def test_what_is_less_than_a_millisecond_is_left_out():
    moment = datetime(2026, 6, 1, 9, 0, 0, 250_999, tzinfo=UTC)
    assert moment_of(milliseconds_since_epoch(moment)) == moment - timedelta(microseconds=999)
