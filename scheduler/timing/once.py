"""Schedule a named one-off: one run, at one moment. No I/O."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar

from scheduler.timing.durations import MILLISECOND, ZERO
from scheduler.timing.moments import UNIX_EPOCH, utc_of


@dataclass(frozen=True, slots=True)
class Once:
    """Run once, at a moment; immediately if that has passed.

    Args:
        at: the earliest moment, rounded up to a whole millisecond.
        kept: how long the name stays taken afterwards, even if the run has ended.

    Raises:
        ScheduleError: the moment is naive, or not of the years 1970 to 9000.
    """

    at: datetime
    kept: timedelta = ZERO

    has_grid: ClassVar[bool] = False
    jitter: ClassVar[timedelta] = ZERO

    def __post_init__(self) -> None:
        since = utc_of(self.at) - UNIX_EPOCH
        object.__setattr__(self, "at", UNIX_EPOCH - (-since // MILLISECOND) * MILLISECOND)

    @property
    def kept_until(self) -> datetime:
        """Return until when the name is taken."""
        return self.at + self.kept

    def next_after(self, moment: datetime) -> datetime:
        """Return the moment, even if it has passed: the run is late then, and still due."""
        return self.at
