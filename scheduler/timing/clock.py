"""Read the clock. No other module reads the machine's time."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Protocol


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
