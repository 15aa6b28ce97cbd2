"""What a verb did to a loop."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from scheduler.protocol.tokens import Token
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
    """What a verb did, and the token that waits now, if one does.

    Attributes:
        silent: the processors that have not said that they know of it: they may begin one more run.
    """

    loop: Loop
    did: Did
    token: Token | None = None
    silent: Sequence[str] = ()
