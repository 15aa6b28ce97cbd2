"""What a verb did to a loop."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from scheduler.tasks.loops import Loop


class Did(StrEnum):
    """What a verb did to a loop."""

    CREATED = "created"
    UNCHANGED = "unchanged"
    RESCHEDULED = "rescheduled"
    REPAIRED = "repaired"
    PAUSED = "paused"
    RESUMED = "resumed"
    TRIGGERED = "triggered"
    REMOVED = "removed"
    RUNNING = "running"
    NOT_PAUSED = "not paused"
    IS_PAUSED = "is paused"
    NOT_THERE = "not there"
    NOT_SET = "not set"


@dataclass(frozen=True, slots=True)
class Report:
    """A report of what a verb did to a loop.

    Attributes:
        due_at: when the loop is due; None: it is paused or gone, or that is not known.
        is_paused: whether it waits until it is resumed.
        silent: the processors that have not confirmed it: they may start one more run.
    """

    loop: Loop
    did: Did
    due_at: datetime | None = None
    is_paused: bool = False
    silent: Sequence[str] = ()
