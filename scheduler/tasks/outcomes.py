"""End a run otherwise than by returning or failing, with an exception.

::

    NamedOutcome
    ├── RetryLater    try again, after this delay
    ├── Reject        no retry can help: park it
    └── StopLoop      pause this loop
"""

from datetime import timedelta
from typing import Any

from scheduler.errors import default_message
from scheduler.timing.durations import Duration, parse_duration


class NamedOutcome(Exception):
    """End a run in a way that the task chose.

    Args:
        reason: one line for the operator: it is logged, and travels with the message.
    """

    def __init__(self, reason: object = "") -> None:
        self.reason = str(reason)
        super().__init__(self.reason or default_message(type(self)))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.reason,)


class RetryLater(NamedOutcome):
    """The task asked to be tried again later.

    It counts as a failed attempt: when no retries are left, the run is escalated.

    Args:
        delay: how long to wait, such as "10m" or a timedelta.
        reason: one line for the operator.

    Raises:
        ScheduleError: the delay is not a duration.
    """

    def __init__(self, delay: Duration, reason: str = "") -> None:
        self.delay: timedelta = parse_duration(delay, "delay")
        super().__init__(reason)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.delay, self.reason)


class Reject(NamedOutcome):
    """The task rejected its input: no retry can help, so it is parked at once."""


class StopLoop(NamedOutcome):
    """The task asked for its loop to be paused."""
