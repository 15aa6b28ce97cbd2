"""Spans, moments, schedules and values, as pages tell them."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

from pydantic_core import to_jsonable_python

from scheduler.timing.phrases import in_words
from scheduler.timing.schedules import Cron, Every, Schedule, describe, zone_of

LONGEST_LINE = 200


def span(value: timedelta | None) -> str:
    """A length of time, in one unit or two: "340 ms", "2.5 s", "4 m 10 s", "3 h 20 m"."""
    if value is None:
        return ""
    sign = "−" if value < timedelta(0) else ""
    # It stays in one line.
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


def in_zone(moment: datetime, zone: str = "") -> datetime:
    """A moment in a zone; in UTC if none is named."""
    return moment.astimezone(ZoneInfo(zone) if zone else UTC)


def exact(moment: datetime) -> str:
    """A moment to the second, with its zone."""
    return f"{moment:%a} {moment.day} {moment:%b %Y, %H:%M:%S} {moment.tzname()}"


def brief(moment: datetime) -> str:
    """The same as briefly as it is unmistakable."""
    return f"{moment:%d %b %H:%M:%S} {moment.tzname()}"


def by_clock(moment: datetime) -> str:
    """When it is by the clock of its zone: "Wed 25 Nov, 02:00 CET"; seconds where there are any."""
    seconds = f":{moment:%S}" if moment.second else ""
    return f"{moment:%a} {moment.day} {moment:%b, %H:%M}{seconds} {moment.tzname()}"


def schedule_in_words(schedule: Schedule) -> str:
    """When a loop runs, in words."""
    if isinstance(schedule, Cron):
        return f"{in_words(schedule.expression)}, by the clock of {schedule.tz}"
    from_the_end = isinstance(schedule, Every) and not schedule.has_grid
    return describe(schedule) + (", from the end of a run" if from_the_end else "")


def zone_name(schedule: Schedule) -> str:
    """The zone that a schedule's times are told in; empty: none of its own."""
    zone = zone_of(schedule)
    return "" if zone is None else zone.key


def ticks(schedule: Schedule, after: datetime, most: int) -> list[datetime]:
    """The next times of a schedule, as far as they are fixed."""

    def following() -> Iterator[datetime]:
        moment = after
        while schedule.has_grid:
            moment = schedule.next_after(moment)
            yield moment

    return list(islice(following(), most))


def readable_json(value: Any) -> str:
    """A value as JSON that people can read."""
    return json.dumps(
        to_jsonable_python(value, fallback=str, bytes_mode="base64"), indent=2, ensure_ascii=False
    )


def first_line(text: str) -> str:
    """As much of a text as fits into a row."""
    line = text.strip().partition("\n")[0]
    return line if len(line) <= LONGEST_LINE else f"{line[: LONGEST_LINE - 1]}…"


def rate(value: float) -> str:
    """So many in a time: "0", "0.2", "7.5", "1200"."""
    return f"{value:.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def counted(count: int, noun: str) -> str:
    """So many of something: "1 loop", "3 loops"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
