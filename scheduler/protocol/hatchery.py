"""Delay messages by the broker alone, for any time: shared timer queues, each with a fixed time to
live.

A delay is written in digits of a mixed radix, one digit for each unit, and each digit that is not
zero is one timer queue. The timer queues are few, and a delay that people write takes one of them::

    2m       =  2 x m                      digits  0.0.0.0.0.0.0.2.0.0.0
    45m      =  9 x 5m                     digits  0.0.0.0.0.0.9.0.0.0.0
    1h22s    =  1 x h, 4 x 5s, 2 x s       digits  0.0.0.0.0.1.0.0.4.2.0

A timer of a second or more waits `SHORT_BY` less than its name says. A message is published some
milliseconds after the moment its delay counts from, and leaves its timers some milliseconds early,
so a loop of a minute has a little less than a minute to wait. It still takes the timer of a minute.
What is left of the delay is the rest: the processor holds the message for that long.

The digits of a token are part of its routing key. Each unit has an exchange, which routes a message
straight to the timer of the next digit that is not zero, or to the end if there is none. A timer
dead-letters to the exchange of the next unit. All messages of a timer wait equally long, so none
waits behind a longer one.

A call tells its timers in headers: for each exchange that it comes to, the timer that it goes to::

    1h22s    scheduler-at-192d: 1h     scheduler-at-5m: 4x5s     scheduler-at-s: 2s

By keys, of which a sender may give a message any number, it would be in many timers at once, and
behind each of them in many more.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import NamedTuple

from scheduler.errors import UsageError
from scheduler.protocol.messages import PREFIX
from scheduler.timing.durations import MILLISECOND, SECOND, ZERO, shown
from scheduler.timing.moments import milliseconds


class Unit(NamedTuple):
    """Define a digit of a delay.

    Attributes:
        length: of one.
        most: the greatest digit.
    """

    name: str
    length: timedelta
    most: int


STEP = timedelta(milliseconds=100)
SHORT_BY = timedelta(milliseconds=150)
UNITS = (
    Unit("192d", timedelta(days=192), 6),
    Unit("32d", timedelta(days=32), 5),
    Unit("7d", timedelta(days=7), 4),
    Unit("d", timedelta(days=1), 6),
    Unit("6h", timedelta(hours=6), 3),
    Unit("h", timedelta(hours=1), 5),
    Unit("5m", timedelta(minutes=5), 11),
    Unit("m", timedelta(minutes=1), 4),
    Unit("5s", timedelta(seconds=5), 11),
    Unit("s", SECOND, 4),
    Unit("100ms", STEP, 9),
)


@dataclass(frozen=True, slots=True)
class Timer:
    """Define a timer queue.

    Attributes:
        unit: the index of its unit in `UNITS`.
        count: how many of that unit.
    """

    unit: int
    count: int

    @property
    def name(self) -> str:
        unit = UNITS[self.unit]
        return f"{self.count}x{unit.name}" if unit.name[0].isdigit() else f"{self.count}{unit.name}"

    @property
    def wait(self) -> timedelta:
        """Return the time to live of its messages."""
        return UNITS[self.unit].length * self.count - _short_by(self.unit)


def timers(first: int = 0) -> list[Timer]:
    """List every timer from a unit on, unit by unit."""
    return [
        Timer(unit, count)
        for unit in range(first, len(UNITS))
        for count in range(1, UNITS[unit].most + 1)
    ]


AT = f"{PREFIX}at-"


def header_at(unit: int) -> str:
    """Name the header by which the exchange of a unit routes calls."""
    return AT + UNITS[unit].name


def _short_by(unit: int) -> timedelta:
    return SHORT_BY if UNITS[unit].length >= SECOND else ZERO


LONGEST = UNITS[0].length * (UNITS[0].most + 1) - STEP

# Integers divide faster than durations.
_SHORT_MS = milliseconds(SHORT_BY)
_UNITS_MS = [
    (milliseconds(unit.length), milliseconds(_short_by(index)), unit.most)
    for index, unit in enumerate(UNITS)
]


class Route(NamedTuple):
    """Split a delay into timers, and the rest.

    Attributes:
        digits: one for each of `UNITS`.
        rest: what is left after the timers, never negative.
    """

    digits: tuple[int, ...]
    rest: timedelta

    @property
    def key(self) -> str:
        """Return the digits as words of a routing key."""
        return _key_of(self.digits)

    @property
    def headers(self) -> Mapping[str, str]:
        """Return the timers as headers: which one to take at each exchange on the way."""
        found, unit = dict[str, str](), 0
        for index, digit in enumerate(self.digits):
            if digit:
                found[header_at(unit)] = Timer(index, digit).name
                unit = index + 1
        return found


NO_WAIT = Route((0,) * len(UNITS), ZERO)


def check_length(delay: timedelta, *, given: str | datetime | None = None) -> None:
    """Check that the timers can hold a delay.

    Args:
        given: the delay or the moment as the user wrote it, for the error.

    Raises:
        UsageError: it is negative or longer than `LONGEST`.
    """
    if not ZERO <= delay <= LONGEST:
        text = given.isoformat() if isinstance(given, datetime) else given or shown(delay)
        raise UsageError(
            f"A delay can be from 0 to {LONGEST.days} days, got {text}. "
            "For later than that, send it from a loop."
        )


def route(delay: timedelta) -> Route:
    """Find the timers that together wait for a delay, or for a little less."""
    check_length(delay)
    whole = delay // MILLISECOND
    digits, left = _digits(whole)
    return Route(digits, delay - (whole - left) * MILLISECOND)


@lru_cache(maxsize=4096)
def _key_of(digits: tuple[int, ...]) -> str:
    return ".".join(map(str, digits))


@lru_cache(maxsize=4096)
def _digits(whole: int) -> tuple[tuple[int, ...], int]:
    """Find the digits of a delay in milliseconds, and what is left."""
    left, digits = whole, list[int]()
    for length, short_by, most in _UNITS_MS:
        count = min((left + short_by) // length, most) if left > _SHORT_MS else 0
        if count:
            left -= count * length - short_by
        digits.append(count)
    return tuple(digits), left


def timer_pattern(unit: int, timer: Timer) -> str:
    """Match the digits that lead from the exchange of a unit straight to a timer."""
    return _pattern(unit, ["0"] * (timer.unit - unit) + [str(timer.count)])


def end_pattern(unit: int) -> str:
    """Match the digits that lead from the exchange of a unit straight to the end."""
    return _pattern(unit, ["0"] * (len(UNITS) - unit))


def _pattern(unit: int, digits: list[str]) -> str:
    # Each pattern counts all digits, so that it matches nothing but a key that has as many.
    rest = ["*"] * (len(UNITS) - unit - len(digits))
    return ".".join(["*"] * unit + digits + rest)
