"""What a verb did to a loop."""

from dataclasses import dataclass
from enum import StrEnum

from scheduler.protocol.tokens import Token
from scheduler.tasks.loops import Loop


class Did(StrEnum):
    """What a verb did to a loop.

    A token that is on its way has left its slot, and the broker has not handed it on yet: after a
    restart, a broker that stands alone takes its time (see the README). It was left as it is.
    """

    CREATED = "created"
    UNCHANGED = "unchanged"
    RESCHEDULED = "rescheduled"
    GUARDED = "guarded"
    REPAIRED = "repaired"
    PAUSED = "paused"
    RESUMED = "resumed"
    TRIGGERED = "triggered"
    REMOVED = "removed"
    RUNNING = "running"
    ON_ITS_WAY = "on its way"
    NOT_PAUSED = "not paused"
    IS_PAUSED = "is paused"
    NOT_THERE = "not there"


@dataclass(frozen=True, slots=True)
class Report:
    """What a verb did, and the token that waits now, if one does."""

    loop: Loop
    did: Did
    token: Token | None = None
