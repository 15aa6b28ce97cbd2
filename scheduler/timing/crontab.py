"""Match cron expressions against wall-clock times, and describe them in English.

croniter parses the fields. A description is made from the matching times, not from the text, so it
cannot be wrong. Libraries that describe cron expressions read six fields as Quartz does, with the
second first.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from functools import lru_cache
from itertools import chain, product, starmap
from typing import cast

from scheduler.errors import ScheduleError
from scheduler.spelling import listed
from scheduler.timing.durations import shown

_DAY = timedelta(days=1)
Part = tuple[list[int], dict[int, set[int | str]]]
"""The numbers of a part of a field (0 for L), and the values of the form `FRI#2` and `L5`."""


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
    """Return the pattern of an expression, or raise `ScheduleError`, which names the field."""
    if not isinstance(expression, str) or len(expression) > 500:
        raise ScheduleError(
            f'cron: expected an expression such as "0 9 * * MON-FRI", got: {shown(expression)}'
        )
    return _parse(expression)


@lru_cache(maxsize=1024)
def _parse(expression: str) -> Pattern:
    texts = _texts(expression)
    expanded = [_expand(expression, index, text) for index, text in enumerate(texts)]
    fields = (sorted({number for numbers, _ in parts for number in numbers}) for parts in expanded)
    minutes, hours, days, months, _, seconds = fields
    pattern = Pattern(
        seconds=tuple(seconds),
        minutes=tuple(minutes),
        hours=tuple(hours),
        days=frozenset(days),
        months=frozenset(months),
        weekdays=frozenset(chain.from_iterable(starmap(_weekdays, expanded[4]))),
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


def _expand(expression: str, index: int, text: str) -> list[Part]:
    """Return the parts of a field, which commas separate."""
    # Imported here: the import is slow, and most schedules are not cron expressions.
    from croniter import CroniterError, croniter  # pyright: ignore[reportMissingTypeStubs]

    name, legal, legal_text = _FIELDS[index]

    def part(text: str) -> Part:
        columns = ["*"] * len(_FIELDS)
        columns[index] = text
        expanded, nth = croniter.expand(" ".join(columns))
        numbers = legal if "*" in expanded[index] else map(_number, expanded[index])
        return list(numbers), cast("dict[int, set[int | str]]", nth)

    def every(text: str) -> Part:
        """Return a part; a range such as NOV-FEB/2 continues after the last number."""
        row, _, step = text.partition("/")
        first, dash, _ = row.partition("-")
        if not (dash and step):
            return part(text)
        (numbers, nth), ([begin], _) = part(row), part(first)
        turn = numbers.index(begin)
        return [*numbers[turn:], *numbers[:turn]][:: int(step)], nth

    try:
        if any(map(_REFUSED.fullmatch, text.split(","))):
            raise CroniterError
        part(text)  # all of it is valid
        return list(map(every, text.split(",")))
    except CroniterError:
        raise ScheduleError(
            f"cron expression {expression!r}: the {name} field takes {legal_text}, as *, a value, "
            f"a range (1-5), a list (1,3) or a step (*/2); got: {text!r}"
        ) from None


def _number(value: int | str) -> int:
    return value if isinstance(value, int) else 0


def _weekdays(
    numbers: Iterable[int], nth: Mapping[int, Iterable[int | str]]
) -> Iterable[tuple[int, int]]:
    if nth:
        return [(day, _number(which)) for day, places in nth.items() for which in places]
    return product(numbers, range(1, 6))


def _ever_matches(pattern: Pattern) -> bool:
    """Return whether any date matches: after 400 years, dates fall on the same weekdays again."""
    return any(pattern.has_day(date.min + number * _DAY) for number in range(146_097))


DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
PLACES = ("last", "first", "second", "third", "fourth", "fifth")
MOST_TIMES = 4
MOST_OF_A_ROW = 5


def in_words(expression: str) -> str:
    """Describe when a valid expression matches, such as "at 09:00, Monday to Friday"."""
    pattern = pattern_of(expression)
    return f"{_times_in_words(pattern)}{_days(pattern)}"


def seconds_first(expression: str) -> str | None:
    """Return the likely meaning of an expression with the seconds first; None: no sign of that."""
    fields = expression.split()
    if len(fields) != 6 or fields[0] == "*" or not _may_be_weekdays(fields[5]):
        return None
    second, *others = fields
    meant = " ".join(others if second == "0" else [*others, second])
    try:
        pattern_of(meant)
    except ScheduleError:
        return None
    return meant


def _may_be_weekdays(field: str) -> bool:
    """Return whether a last field looks like days of the week rather than seconds."""
    first, dash, last = field.partition("-")
    span = dash and first.isdecimal() and last.isdecimal() and int(first) < int(last) <= 7
    return field == "*" or bool(span)


def _times_in_words(pattern: Pattern) -> str:
    seconds, minutes, hours = pattern.seconds, pattern.minutes, pattern.hours
    parts = (hours, minutes) if seconds == (0,) else (hours, minutes, seconds)
    if len(seconds) * len(minutes) * len(hours) <= MOST_TIMES:
        return f"at {listed([_clock(*time) for time in product(*parts)])}"
    if seconds == (0,):
        return _hours(hours) if minutes == (0,) else _minutes(minutes, hours)
    second = _every(seconds, 60, "second") or f"at {_counted('second', seconds)}"
    if len(minutes) * len(hours) == 60 * 24 and second.startswith("every"):
        return second
    if len(minutes) * len(hours) <= MOST_TIMES:
        times = [_clock(*time) for time in product(hours, minutes)]
        return f"{second} of the minute {listed(times)}"
    return f"{second} of {_minutes(minutes, hours, within=True)}"


def _hours(hours: Sequence[int]) -> str:
    if (every := _every(hours, 24, "hour")) is not None:
        return every
    if _is_row(hours):
        return f"every hour from {_clock(hours[0], 0)} to {_clock(hours[-1], 0)}"
    return f"at {listed([_clock(hour, 0) for hour in hours])}"


def _minutes(minutes: Sequence[int], hours: Sequence[int], *, within: bool = False) -> str:
    at = "" if within else "at "
    minute = _every(minutes, 60, "minute", within=within) or f"{at}{_counted('minute', minutes)}"
    if len(hours) == 24:
        return minute if minute.startswith("every") else f"{minute} of every hour"
    if _is_row(hours):
        return f"{minute} from {_clock(hours[0], 0)} to {_clock(hours[-1], 59)}"
    hour = _every(hours, 24, "hour", within=True) or f"the {_counted('hour', hours)}"
    return f"{minute} of {hour}"


def _days(pattern: Pattern) -> str:
    all_months = len(pattern.months) == 12
    months = "the month" if all_months else _months(sorted(pattern.months))
    of_month, of_week = _of_month(pattern), _of_week(pattern)
    on = "" if " to " in of_week else "on "
    if pattern.either and not (of_month and of_week):  # either suffices, and one is any day
        of_month = of_week = ""
    if of_month and of_week and pattern.either:
        return f", on {of_month} of {months} and also {on}{of_week}{_within(pattern)}"
    if of_month and of_week:
        return f", on {of_month} of {months} if that is {of_week}"
    if of_month:
        return f", on {of_month} of {months}"
    if of_week:
        return f", {on}{of_week}{_within(pattern)}"
    if not all_months:
        return f", every day{_within(pattern)}"
    return " every day" if _every(pattern.hours, 24, "hour") is None else ""


def _within(pattern: Pattern) -> str:
    return "" if len(pattern.months) == 12 else f" in {_months(sorted(pattern.months))}"


def _months(months: Sequence[int]) -> str:
    return _rows([MONTHS[month - 1] for month in months], months)


def _of_month(pattern: Pattern) -> str:
    numbers = sorted(pattern.days - {0})
    if len(numbers) == 31:
        return ""
    last = ["the last day"] if 0 in pattern.days else []
    return listed([*([_counted("day", numbers)] if numbers else []), *last])


def _of_week(pattern: Pattern) -> str:
    whole = [day for day in range(7) if all((day, nth) in pattern.weekdays for nth in range(1, 6))]
    if len(whole) == 7:
        return ""
    if whole:
        days = sorted(whole, key=lambda day: (day + 6) % 7)  # Monday first
        return _rows([DAYS[day] for day in days], [(day + 6) % 7 for day in days])
    return listed([f"the {PLACES[nth]} {DAYS[day]}" for day, nth in sorted(pattern.weekdays)])


def _counted(noun: str, numbers: Sequence[int]) -> str:
    plural = "" if len(numbers) == 1 else "s"
    return f"{noun}{plural} {_rows([str(number) for number in numbers], numbers)}"


def _every(numbers: Sequence[int], whole: int, noun: str, *, within: bool = False) -> str | None:
    """Format equidistant values: "every 10 minutes"; within, "every 10th minute"."""
    step = whole // len(numbers)
    if len(numbers) == 1 or tuple(numbers) != tuple(range(0, whole, step)):
        return None
    if step == 1:
        return f"every {noun}"
    ending = {2: "nd", 3: "rd"}.get(step, "th")
    return f"every {step}{ending} {noun}" if within else f"every {step} {noun}s"


def _rows(names: Sequence[str], numbers: Sequence[int]) -> str:
    """Format runs of neighbours as "Monday to Friday", equidistant values as "1, 3 ... 31"."""
    steps = {after - before for before, after in zip(numbers, numbers[1:], strict=False)}
    if len(names) > 2 and steps == {1}:
        return f"{names[0]} to {names[-1]}"
    if len(names) > MOST_OF_A_ROW and len(steps) == 1:
        return f"{names[0]}, {names[1]} ... {names[-1]}"
    return listed(names)


def _is_row(numbers: Sequence[int]) -> bool:
    return len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1


def _clock(*parts: int) -> str:
    return ":".join(f"{part:02}" for part in parts)
