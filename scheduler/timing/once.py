"""The schedule of a named one-off: one run, at one moment. Pure, like the other schedules."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar

from scheduler.timing.durations import MILLISECOND, ZERO
from scheduler.timing.moments import UNIX_EPOCH, utc_of


@dataclass(frozen=True, slots=True)
class Once:
    """One run, at a moment; at once, where that has passed.

    Args:
        at: the moment; never before it, so it is rounded up to a whole millisecond.
        kept: for how long after it the name stays taken, though the run has ended.

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
        """Until when the name is taken."""
        return self.at + self.kept

    def next_after(self, moment: datetime) -> datetime:
        """Its moment, also where that has passed: it is late then, and still to be run."""
        return self.at
