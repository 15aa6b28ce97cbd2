"""What time it is. Nothing else in the package asks the machine."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """Tells the time; waiting is done with plain asyncio timers."""

    def now(self) -> datetime:
        """The present moment, aware, in UTC."""
        ...


class SystemClock:
    """The clock of the machine."""

    def now(self) -> datetime:
        return datetime.now(UTC)


class LoopClock:
    """The timers of the running event loop, read as a calendar: virtual when the loop's time is.

    Args:
        epoch: the moment at which the loop's time was zero.
    """

    def __init__(self, epoch: datetime) -> None:
        self._epoch = epoch

    def now(self) -> datetime:
        return self._epoch + timedelta(seconds=asyncio.get_running_loop().time())
