"""Parse and format durations, such as "1h30m"."""

import re
from datetime import timedelta
from fractions import Fraction
from typing import TypeAlias

from scheduler.errors import ScheduleError

Duration: TypeAlias = str | timedelta
"""A length of time: text such as "30s", or a timedelta."""

LONGEST = timedelta(days=36525)
"""The longest duration (100 years): calendar arithmetic with it cannot overflow."""

ZERO = timedelta(0)
MICROSECOND = timedelta(microseconds=1)
MILLISECOND = timedelta(milliseconds=1)
SECOND = timedelta(seconds=1)

_UNITS = {
    "w": timedelta(weeks=1),
    "d": timedelta(days=1),
    "h": timedelta(hours=1),
    "m": timedelta(minutes=1),
    "s": SECOND,
    "ms": MILLISECOND,
}
_TEXT = re.compile(
    "".join(rf"(?:(?P<{unit}>[0-9]{{1,12}}(?:\.[0-9]{{1,6}})?){unit})?" for unit in _UNITS)
)
_LEGAL = (
    'expected a number and a unit (w, d, h, m, s, ms; largest first, each once), such as "30s", '
    '"1h30m", "1.5s" or "100ms"'
)


def parse_duration(value: Duration, of: str = "") -> timedelta:
    """Read a duration.

    Args:
        value: text such as "30s", "1h30m", "100ms", "1.5s", "1d" or "2w", or a timedelta.
            The units w, d, h, m, s and ms appear in this order, each at most once.
        of: the name of the value for the error, such as an argument.

    Raises:
        ScheduleError: it is not of this form, is negative, or is over 100 years.
    """
    about = f"{of}: " if of else ""
    span = value if isinstance(value, timedelta) else _read(value, about)
    if not ZERO <= span <= LONGEST:
        most = f"{LONGEST.days}d (100 years)"
        raise ScheduleError(
            f"{about}expected a duration between 0s and {most}, got: {shown(value)}"
        )
    return span


def format_duration(span: timedelta) -> str:
    """Format a duration as `parse_duration` reads it, without units that are zero.

    Weeks are used for whole weeks only: "2w", but "10d". A fraction goes to the last unit: "1.5s".

    Raises:
        ScheduleError: it is negative or over 100 years.
    """
    rest, text = parse_duration(span), ""
    for unit in ("w", "d", "h", "m"):
        if unit == "w" and rest % _UNITS[unit]:
            continue
        count, rest = divmod(rest, _UNITS[unit])
        text += f"{count}{unit}" if count else ""
    return text if text and not rest else text + _seconds(rest)


def _read(text: object, about: str) -> timedelta:
    match = _TEXT.fullmatch(text) if isinstance(text, str) else None
    if not text or match is None:
        raise ScheduleError(f"{about}{_LEGAL}; got: {shown(text)}")
    numbers = {unit: number for unit, number in match.groupdict().items() if number}
    exact = sum(
        Fraction(number) * (_UNITS[unit] // MICROSECOND) for unit, number in numbers.items()
    )
    # A number that no timedelta can hold is reported like any other that is too long.
    return MICROSECOND * min(round(exact), 2 * (LONGEST // MICROSECOND))


def _seconds(span: timedelta) -> str:
    unit = "s" if span >= SECOND or not span else "ms"
    return f"{span / _UNITS[unit]:.6f}".rstrip("0").rstrip(".") + unit


def shown(value: object) -> str:
    """Return a value for an error message: short, and safe whatever the value is."""
    try:
        text = str(value) if isinstance(value, timedelta) else repr(value)
    except Exception:  # a huge number, a deep list, an object that cannot be shown
        return type(value).__name__
    return text if len(text) <= 60 else f"{text[:57]}..."
