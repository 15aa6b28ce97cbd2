"""What is told of schedules that somebody has set in place of the code's."""

from datetime import datetime
from typing import Any

from scheduler.cli.printing import relative
from scheduler.tasks.loops import Loop
from scheduler.timing.schedules import describe


def schedule_of(loop: Loop, now: datetime) -> str:
    """The schedule of a loop in one phrase; where somebody has set it, also who, and when."""
    return ", ".join(filter(None, [describe(loop.schedule), origin_of(loop, now)]))


def origin_of(loop: Loop, now: datetime) -> str:
    """Who has set the schedule of a loop, and what the code says instead, if somebody has."""
    if (override := loop.override) is None:
        return ""
    code = f"; code: {describe(loop.of_code)}" if loop.of_code else ""
    return f"set by {override.by} {relative(override.at, now)}{code}"


def row_of_override(loop: Loop) -> dict[str, Any] | None:
    """The same for programs."""
    if (override := loop.override) is None:
        return None
    code = describe(loop.of_code) if loop.of_code else None
    return {"by": override.by, "at": override.at, "code": code}
