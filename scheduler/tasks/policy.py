"""What a task wants done about its failures, and about calls that are too old."""

from dataclasses import dataclass
from typing import Literal

from scheduler.tasks.retries import Retry


@dataclass(frozen=True, slots=True)
class Policy:
    """What a task wants done about its failures, and about calls that are too old."""

    retry: Retry
    after_failure: Literal["continue", "pause"] = "continue"
    expired: Literal["park", "drop"] = "park"
