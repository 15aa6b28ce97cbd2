"""Translate cron fields of other programs into the equivalent expressions of this package.

Programs differ: in whether the day of the month and the weekday both have to match, in how a step
after `*` affects that, in names, in ranges round the end. So fields are read into numbers here, by
the rules of their program, and an expression is used only if it has the same numbers.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

from scheduler.errors import ScheduleError
from scheduler.timing.crontab import Pattern, pattern_of
from scheduler.timing.durations import shown

_PART = re.compile(r"(?:(?P<all>[*?])|(?P<first>\w+)(?:-(?P<last>\w+))?)(?:/(?P<step>[0-9]{1,9}))?")
_NUMBER = re.compile("[0-9]{1,9}")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
BOTH_DAYS = (
    "both the day of the month and the weekday have to match, which no expression requires here: "
    "leave one of them to the task"
)
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")


class NeverFires(ScheduleError):
    """There is no such day, such as 30 February."""


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()

    @property
    def all(self) -> frozenset[int]:
        return frozenset(range(self.low, self.high + 1))


MINUTE = Column("minute", 0, 59)
HOUR = Column("hour", 0, 23)
DAY = Column("day of month", 1, 31)
MONTH = Column("month", 1, 12, _MONTHS)
WEEKDAY = Column("day of week", 0, 6, _DAYS)
COLUMNS = (MINUTE, HOUR, DAY, MONTH, WEEKDAY)


@dataclass(frozen=True, slots=True)
class Dialect:
    """Define how a program reads fields.

    Attributes:
        seven: whether 7 is Sunday, too.
        wraps: whether a range may go round the end: `22-4`.
        open_steps: whether `5/15` continues to the end.
    """

    seven: bool = False
    wraps: bool = False
    open_steps: bool = False
    long_names: bool = False
    question: bool = False

    def read(self, column: Column, text: str) -> frozenset[int]:
        """Return the numbers of a field, or raise a ScheduleError that names it."""
        numbers = {number for part in text.split(",") for number in self._part(column, part)}
        return frozenset(0 if column is WEEKDAY and number == 7 else number for number in numbers)

    def expression(self, fields: Sequence[str], *, both: bool) -> str:
        """Return the cron expression of this package for five fields: see `Calendar`."""
        numbers = [self.read(column, text) for column, text in zip(COLUMNS, fields, strict=True)]
        return Calendar(*numbers, both=both).expression(" ".join(fields))

    def _part(self, column: Column, text: str) -> Iterable[int]:
        match = _PART.fullmatch(text)
        step = int(match["step"] or 1) if match else 0
        if match is None or not step or (match["all"] == "?" and not self.question):
            raise _refused(column, text)
        if match["first"] is None:
            return range(column.low, column.high + 1, step)
        first = self._number(column, text, match["first"])
        if match["last"] is None:
            if match["step"] is None:
                return [first]
            if not self.open_steps:
                raise _refused(column, text)
            return range(first, column.high + 1, step)
        last = self._number(column, text, match["last"])
        if first <= last:
            return range(first, last + 1, step)
        if not self.wraps:
            raise _refused(column, text)
        return [*range(first, column.high + 1), *range(column.low, last + 1)][::step]

    def _number(self, column: Column, text: str, word: str) -> int:
        name = word.lower()[:3] if self.long_names else word.lower()
        if name in column.names:
            return column.low + column.names.index(name)
        highest = 7 if self.seven and column is WEEKDAY else column.high
        if _NUMBER.fullmatch(word) and column.low <= int(word) <= highest:
            return int(word)
        raise _refused(column, text)


def _refused(column: Column, text: str) -> ScheduleError:
    return ScheduleError(f"the {column.name} field is not understood: {shown(text)}")


@dataclass(frozen=True, slots=True)
class Calendar:
    """Hold the minutes that a foreign expression matches: `both`, or one of the days suffices."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    both: bool

    def expression(self, text: str) -> str:
        """Return the equivalent expression of this package, or raise a ScheduleError.

        The foreign text is used if it means the same here.
        """
        for candidate in (text, *self._candidates()):
            if self._is_said_by(candidate):
                return candidate
        try:
            pattern_of(" ".join([*self._columns()[:4], "*"]))
        except ScheduleError as error:
            raise NeverFires(str(error)) from None
        raise ScheduleError(BOTH_DAYS)

    def _candidates(self) -> Iterable[str]:
        minutes, hours, days, months, weekdays = self._columns()
        yield " ".join((minutes, hours, days, months, weekdays))
        if weeks := self._weeks():
            places = product(sorted(self.weekdays), weeks)
            nth = ",".join(f"{_DAYS[day].upper()}#{week}" for day, week in places)
            yield f"{minutes} {hours} * {months} {nth}"

    def _columns(self) -> tuple[str, ...]:
        sets = (self.minutes, self.hours, self.days, self.months, self.weekdays)
        texts = [_text(column, numbers) for column, numbers in zip(COLUMNS, sets, strict=True)]
        if not self.both and (self.days == DAY.all or self.weekdays == WEEKDAY.all):
            texts[2] = texts[4] = "*"  # each day is one of them
        elif not self.both:
            # A field that begins with `*` would require both.
            texts[2], texts[4] = _ranges(sorted(self.days)), _ranges(sorted(self.weekdays))
        return tuple(texts)

    def _weeks(self) -> list[int]:
        """Return the weeks of the month of these days, if they are whole ones."""
        weeks = [week for week in range(1, 6) if week * 7 - 6 in self.days]
        days = {day for week in weeks for day in range(week * 7 - 6, min(week * 7, 31) + 1)}
        return weeks if self.both and not days ^ self.days else []

    def _is_said_by(self, text: str) -> bool:
        try:
            pattern = pattern_of(text)
        except ScheduleError:
            return False
        times = pattern.seconds, pattern.minutes, pattern.hours
        theirs = (0,), tuple(sorted(self.minutes)), tuple(sorted(self.hours))
        return (
            times == theirs
            and pattern.months == self.months
            and all(
                self._has(day, weekday) == _has(pattern, day, weekday)
                for day, weekday in product(DAY.all, WEEKDAY.all)
            )
        )

    def _has(self, day: int, weekday: int) -> bool:
        of_month, of_week = day in self.days, weekday in self.weekdays
        return of_month and of_week if self.both else of_month or of_week


def _has(pattern: Pattern, day: int, weekday: int) -> bool:
    of_month, of_week = day in pattern.days, (weekday, (day + 6) // 7) in pattern.weekdays
    return of_month or of_week if pattern.either else of_month and of_week


def _text(column: Column, numbers: frozenset[int]) -> str:
    """Return the numbers as a field: `*`, a step, ranges."""
    if numbers == column.all:
        return "*"
    for step in range(2, len(column.all) // 2 + 1):
        if numbers == frozenset(range(column.low, column.high + 1, step)):
            return f"*/{step}"
    return _ranges(sorted(numbers))


def _ranges(numbers: Sequence[int]) -> str:
    rows: list[list[int]] = []
    for number in numbers:
        if rows and number == rows[-1][-1] + 1:
            rows[-1].append(number)
        else:
            rows.append([number])
    return ",".join(
        f"{row[0]}-{row[-1]}" if len(row) > 2 else ",".join(map(str, row)) for row in rows
    )
