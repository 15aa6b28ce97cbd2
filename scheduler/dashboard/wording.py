"""Format values for pages: spans, moments and schedules in words."""

import json
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import islice
from typing import Any

from pydantic_core import to_jsonable_python

from scheduler.spelling import listed
from scheduler.timing.crontab import in_words
from scheduler.timing.schedules import Cron, Every, Schedule, describe, ticks_after

LONGEST_LINE = 200


def span(value: timedelta | None) -> str:
    """Format a length of time, in one unit or two: "340 ms", "2.5 s", "4 m 10 s", "3 h 20 m"."""
    if value is None:
        return ""
    sign = "−" if value < timedelta(0) else ""
    # Stays in one line.
    return sign + _span(abs(value.total_seconds())).replace(" ", "\N{NO-BREAK SPACE}")


def _span(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} m {rest} s" if rest else f"{minutes} m"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} m" if minutes else f"{hours} h"
    return f"{hours // 24} d"


def in_full(moment: datetime, zone: tzinfo | None = None) -> str:
    """Format a moment to the second, in a zone (default: UTC)."""
    local = moment.astimezone(zone or UTC)
    return f"{local:%a} {local.day} {local:%b %Y, %H:%M:%S} {local.tzname()}"


def schedule_in_words(schedule: Schedule) -> str:
    """Describe when a loop runs, in words."""
    if isinstance(schedule, Cron):
        return f"{in_words(schedule.expression)}, by the clock of {schedule.tz}"
    from_the_end = isinstance(schedule, Every) and not schedule.has_grid
    return describe(schedule) + (", from the end of a run" if from_the_end else "")


def ticks(schedule: Schedule, after: datetime, most: int) -> list[datetime]:
    """Return the next times of a schedule, as far as they are fixed."""
    return [*islice(ticks_after(schedule, after), most)] if schedule.has_grid else []


def readable_json(value: Any) -> str:
    return json.dumps(
        to_jsonable_python(value, fallback=str, bytes_mode="base64"), indent=2, ensure_ascii=False
    )


def body(content: bytes) -> str:
    """Return the body of a message as text, or in hexadecimal if it is binary."""
    with suppress(UnicodeDecodeError):
        text = content.decode()
        if all(each.isprintable() or each in "\n\r\t" for each in text):
            return text
    return "\n".join(content[at : at + 16].hex(" ") for at in range(0, len(content), 16))


def first_line(text: str) -> str:
    """Return as much of a text as fits into a row."""
    line = text.strip().partition("\n")[0]
    return line if len(line) <= LONGEST_LINE else f"{line[: LONGEST_LINE - 1]}…"


def few(texts: Sequence[str], most: int = 3) -> str:
    """List the first of some texts, and count the rest; empty: there are none."""
    rest = len(texts) - most
    return listed([*texts[:most], *([f"{rest} more"] if rest > 0 else [])]) if texts else ""
