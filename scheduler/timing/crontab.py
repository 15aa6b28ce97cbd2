"""Match cron expressions against wall-clock times. croniter parses the fields."""

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from functools import lru_cache
from itertools import product
from typing import cast

from scheduler.errors import ScheduleError
from scheduler.timing.durations import shown

_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Pattern:
    """Hold an expanded cron expression.

    Attributes:
        days: of the month; 0: the last one.
        weekdays: pairs of the weekday (0 is Sunday) and its number in the month (0: the last one).
        either: whether the day of the month or the weekday suffices.
    """

    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[tuple[int, int]]
    either: bool

    @property
    def every_hour(self) -> bool:
        return len(self.hours) == 24

    def first_from(self, wall: datetime) -> datetime:
        """Return the first match at or after a (naive, whole second) wall-clock time."""
        if self.has_day(wall) and (found := self._time_from(wall)) is not None:
            return datetime.combine(wall, found)
        day = wall.date() + _DAY
        while not self.has_day(day):
            day = day + _DAY if day.month in self.months else _next_month(day)
        return datetime.combine(day, time(self.hours[0], self.minutes[0], self.seconds[0]))

    def has_day(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        of_month = day.day in self.days or (0 in self.days and (day + _DAY).day == 1)
        of_week = self._has_weekday(day)
        return of_month or of_week if self.either else of_month and of_week

    def _has_weekday(self, day: date) -> bool:
        weekday = day.isoweekday() % 7
        return (weekday, (day.day + 6) // 7) in self.weekdays or (
            (weekday, 0) in self.weekdays and (day + 7 * _DAY).month != day.month
        )

    def _time_from(self, wall: datetime) -> time | None:
        for hour in self.hours[bisect_left(self.hours, wall.hour) :]:
            if hour > wall.hour:
                return time(hour, self.minutes[0], self.seconds[0])
            for minute in self.minutes[bisect_left(self.minutes, wall.minute) :]:
                if minute > wall.minute:
                    return time(hour, minute, self.seconds[0])
                second = bisect_left(self.seconds, wall.second)
                if second < len(self.seconds):
                    return time(hour, minute, self.seconds[second])
        return None


def _next_month(day: date) -> date:
    return (day.replace(day=28) + timedelta(days=4)).replace(day=1)


NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_FIELDS = (
    ("minute", range(60), "0-59"),
    ("hour", range(24), "0-23"),
    ("day of month", range(1, 32), "1-31 or L"),
    ("month", range(1, 13), "1-12 or JAN-DEC"),
    ("day of week", range(7), "0-7 or SUN-SAT"),
    ("second (the sixth field)", range(60), "0-59"),
)
# croniter accepts these, this module does not: random and hashed values (not deterministic), the
# nearest weekday, and 9-9, which croniter reads as the whole range.
_REFUSED = re.compile(r"[hr]([(/].*)?|w?\d+w|w\d+|(\w+)-\2(/.*)?", re.IGNORECASE)


def pattern_of(expression: object) -> Pattern:
    """Return the pattern of an expression.

    Raises:
        ScheduleError: it cannot be understood, or never matches; the message names the field.
    """
    if not isinstance(expression, str) or len(expression) > 500:
        raise ScheduleError(
            f'cron: expected an expression such as "0 9 * * MON-FRI", got: {shown(expression)}'
        )
    return _parse(expression)


@lru_cache(maxsize=1024)
def _parse(expression: str) -> Pattern:
    texts = _texts(expression)
    expanded = [_expand(expression, index, text) for index, text in enumerate(texts)]
    minutes, hours, days, months, weekdays, seconds = (values for values, _ in expanded)
    pattern = Pattern(
        seconds=tuple(seconds),
        minutes=tuple(minutes),
        hours=tuple(hours),
        days=frozenset(days),
        months=frozenset(months),
        weekdays=_weekdays(weekdays, expanded[4][1]),
        either=not any(text.startswith(("*", "?")) for text in (texts[2], texts[4])),
    )
    if not _ever_matches(pattern):
        raise ScheduleError(f"cron expression {expression!r} never fires: there is no such day")
    return pattern


def _texts(expression: str) -> list[str]:
    texts = NICKNAMES.get(expression.lower(), expression).split()
    if len(texts) == 5:
        return [*texts, "0"]
    if len(texts) == 6:
        return texts
    raise ScheduleError(
        f"cron expression {expression!r}: expected five fields (minute, hour, day of month, month, "
        f"day of week), or six with the second last, got: {len(texts)}"
    )


def _expand(expression: str, index: int, text: str) -> tuple[list[int], dict[int, set[int | str]]]:
    """Return the numbers of a field (0 for L), and the values of the form `FRI#2` and `L5`."""
    # Imported here: the import is slow, and most schedules are not cron expressions.
    from croniter import CroniterError, croniter  # pyright: ignore[reportMissingTypeStubs]

    name, legal, legal_text = _FIELDS[index]
    columns = ["*"] * len(_FIELDS)
    columns[index] = text
    try:
        if any(map(_REFUSED.fullmatch, text.split(","))):
            raise CroniterError
        expanded, nth = croniter.expand(" ".join(columns))
    except CroniterError:
        raise ScheduleError(
            f"cron expression {expression!r}: the {name} field takes {legal_text}, as *, a value, "
            f"a range (1-5), a list (1,3) or a step (*/2); got: {text!r}"
        ) from None
    numbers = legal if "*" in expanded[index] else map(_number, expanded[index])
    return sorted(numbers), cast("dict[int, set[int | str]]", nth)


def _number(value: int | str) -> int:
    return value if isinstance(value, int) else 0


def _weekdays(
    numbers: Iterable[int], nth: Mapping[int, Iterable[int | str]]
) -> frozenset[tuple[int, int]]:
    if nth:
        return frozenset((day, _number(which)) for day, places in nth.items() for which in places)
    return frozenset(product(numbers, range(1, 6)))


def _ever_matches(pattern: Pattern) -> bool:
    """Return whether any date matches: after 400 years, dates fall on the same weekdays again."""
    return any(pattern.has_day(date.min + number * _DAY) for number in range(146_097))
