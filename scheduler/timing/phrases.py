"""Describe cron expressions in English, so that users can check their meaning.

The description is made from the matching times, not from the text, so it cannot be wrong. Libraries
that describe cron expressions read six fields as Quartz does, with the second first.
"""

from collections.abc import Sequence
from itertools import product

from scheduler.errors import ScheduleError
from scheduler.spelling import listed
from scheduler.timing.crontab import Pattern, pattern_of

DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
PLACES = ("last", "first", "second", "third", "fourth", "fifth")
MOST_TIMES = 4
MOST_OF_A_ROW = 5


def in_words(expression: str) -> str:
    """Describe when an expression matches, such as "at 09:00, Monday to Friday".

    Raises:
        ScheduleError: it cannot be understood.
    """
    pattern = pattern_of(expression)
    return f"{_times(pattern)}{_days(pattern)}"


def seconds_first(expression: str) -> str | None:
    """Return the likely intent of an expression with the seconds first, as in Quartz and Spring;
    None: no sign of that.
    """
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


def _times(pattern: Pattern) -> str:
    seconds, minutes, hours = pattern.seconds, pattern.minutes, pattern.hours
    shown = (hours, minutes) if seconds == (0,) else (hours, minutes, seconds)
    if len(seconds) * len(minutes) * len(hours) <= MOST_TIMES:
        return f"at {listed([_clock(*time) for time in product(*shown)])}"
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
    """Format equidistant values: "every 10 minutes" if they go all the way round, else "every 10th
    minute".
    """
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
