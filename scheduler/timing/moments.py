"""Read the clock, and check moments: aware, within calendar years.

On the wire, they are milliseconds since 1970, and spans are milliseconds. No other module reads the
time of the machine.
"""

import asyncio
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Protocol

from scheduler.errors import ScheduleError
from scheduler.timing.durations import MILLISECOND, shown


class Clock(Protocol):
    """Tell the time; waits use plain asyncio timers."""

    def now(self) -> datetime:
        """Return the current time, aware, in UTC."""
        ...


class SystemClock:
    """Read the clock of the machine."""

    def now(self) -> datetime:
        return datetime.now(UTC)


class LoopClock:
    """Read the timers of the running event loop as a calendar; virtual if the loop's time is.

    Args:
        epoch: the moment at which the loop's time was zero.
    """

    def __init__(self, epoch: datetime) -> None:
        self._epoch = epoch

    def now(self) -> datetime:
        return self._epoch + timedelta(seconds=asyncio.get_running_loop().time())


UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LAST_YEAR = 9000
LATEST = datetime(LAST_YEAR + 1, 1, 1, tzinfo=UTC)
LATEST_MS = (LATEST - UNIX_EPOCH) // MILLISECOND


def utc_of(moment: datetime) -> datetime:
    """Return a moment in UTC.

    Raises:
        ScheduleError: it is naive, or not of the years 1970 to 9000.
    """
    if getattr(moment, "tzinfo", None) is UTC and UNIX_EPOCH.year <= moment.year <= LAST_YEAR:
        return moment  # the usual case
    if not isinstance(moment, datetime):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ScheduleError(f"expected an aware datetime, got: {shown(moment)}")
    if moment.utcoffset() is None:
        raise ScheduleError(
            f"expected an aware moment, got: {moment.isoformat()}; "
            "give it a time zone, such as tzinfo=datetime.UTC"
        )
    # Keeps every tick, in every zone, within the calendar.
    if not UNIX_EPOCH <= moment <= LATEST:
        raise ScheduleError(
            f"expected a moment of the years {UNIX_EPOCH.year} to {LAST_YEAR}, "
            f"got: {moment.isoformat()}"
        )
    return moment.astimezone(UTC)


def parse_moment(text: str, name: str, zone: tzinfo | None = None) -> datetime:
    """Parse a moment; without an offset, on the clock of a zone (default: this machine's).

    Raises:
        ScheduleError: it is none, or not of the years 1970 to 9000; the message names it.
    """
    try:
        moment = datetime.fromisoformat(text)
        return utc_of(moment if moment.tzinfo else moment.replace(tzinfo=zone).astimezone())
    except (ValueError, OverflowError):
        raise ScheduleError(
            f"{name}: expected a moment such as 2026-06-01T09:00+02:00, got: {text!r}"
        ) from None
    except ScheduleError as error:
        raise ScheduleError(f"{name}: {error}") from None


def milliseconds(span: timedelta) -> int:
    """Return the duration in whole milliseconds, rounded up so that nothing is ever early."""
    return -(-span // MILLISECOND)


def milliseconds_since_epoch(moment: datetime) -> int:
    return (moment - UNIX_EPOCH) // MILLISECOND


def optional_milliseconds(moment: datetime | None) -> int | None:
    return None if moment is None else milliseconds_since_epoch(moment)


def moment_of(ms: int) -> datetime:
    return UNIX_EPOCH + ms * MILLISECOND


def exact(moment: datetime | None, zone: tzinfo | None = None) -> str:
    """Format a moment to the second, with its offset, in a zone (default: this machine's)."""
    return "" if moment is None else moment.astimezone(zone).isoformat(" ", timespec="seconds")


def time_of_day(moment: datetime) -> str:
    """Format the time of day on the clock of this machine, to the millisecond."""
    return moment.astimezone().time().isoformat("milliseconds")
