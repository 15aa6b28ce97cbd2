"""Moments as they travel: in whole milliseconds since the Unix epoch."""

from datetime import UTC, datetime, timedelta

UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LAST_YEAR = 9000
LATEST = datetime(LAST_YEAR, 1, 1, tzinfo=UTC)
LATEST_MS = (LATEST - UNIX_EPOCH) // timedelta(milliseconds=1)


def milliseconds_since_epoch(moment: datetime) -> int:
    """A moment, as it travels."""
    return (moment - UNIX_EPOCH) // timedelta(milliseconds=1)


def optional_milliseconds(moment: datetime | None) -> int | None:
    """A moment as it travels, if there is one."""
    return None if moment is None else milliseconds_since_epoch(moment)


def moment_of(ms: int) -> datetime:
    """A moment that travelled."""
    return UNIX_EPOCH + timedelta(milliseconds=ms)


def optional_moment(ms: int | None) -> datetime | None:
    """A moment that travelled, if one did."""
    return None if ms is None else moment_of(ms)
