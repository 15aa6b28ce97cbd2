"""Delays of any length by the broker alone: shared timer queues with fixed times to live.

A delay is written in mixed radix, like a clock face with its quarters, so that the delays people
write are one hop or two, and the timer queues are few::

    5m     =  5 x m                        routing key  0.0.0.0.0.0.0.5.0.0.0.task.send_sms
    45m    =  3 x 15m                      routing key  0.0.0.0.0.0.3.0.0.0.0.task.send_sms
    1h20s  =  1 x h, 1 x 15s, 5 x s        routing key  0.0.0.0.0.1.0.0.1.5.0.task.send_sms

Each unit has a topic exchange. There, a digit leads to the timer queue of that many units, whose
messages go on to the exchange of the next unit when they expire; a zero leads straight to it. Each
timer queue has one time to live for all its messages, so none waits behind a longer one. After the
last unit comes the exchange of the delayed, which finds the task by the end of the key.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

from scheduler.errors import UsageError
from scheduler.timing.durations import shown


class Unit(NamedTuple):
    """A digit of a delay: how long one is, and how many there may be."""

    name: str
    length: timedelta
    most: int


STEP = timedelta(milliseconds=100)
UNITS = (
    Unit("192d", timedelta(days=192), 6),
    Unit("32d", timedelta(days=32), 5),
    Unit("7d", timedelta(days=7), 4),
    Unit("d", timedelta(days=1), 6),
    Unit("6h", timedelta(hours=6), 3),
    Unit("h", timedelta(hours=1), 5),
    Unit("15m", timedelta(minutes=15), 3),
    Unit("m", timedelta(minutes=1), 14),
    Unit("15s", timedelta(seconds=15), 3),
    Unit("s", timedelta(seconds=1), 14),
    Unit("100ms", STEP, 9),
)
LONGEST = UNITS[0].length * (UNITS[0].most + 1) - STEP
_STEPS = [unit.length // STEP for unit in UNITS]  # numbers divide faster than durations


@dataclass(frozen=True, slots=True)
class Rung:
    """A timer queue: so many of a unit.

    Attributes:
        unit: its index in `UNITS`.
    """

    unit: int
    count: int

    @property
    def name(self) -> str:
        unit = UNITS[self.unit]
        return f"{self.count}x{unit.name}" if unit.name[0].isdigit() else f"{self.count}{unit.name}"

    @property
    def time_to_live(self) -> timedelta:
        return UNITS[self.unit].length * self.count


def rungs() -> list[Rung]:
    """Every timer queue that there is."""
    return [
        Rung(index, count) for index, unit in enumerate(UNITS) for count in range(1, unit.most + 1)
    ]


def check_length(delay: timedelta, *, given: str | None = None) -> None:
    """See that a delay fits.

    Args:
        given: how it was given, for the error.

    Raises:
        UsageError: it is longer than the ladder, or negative.
    """
    if not timedelta(0) <= delay <= LONGEST:
        raise UsageError(
            f"A delay can be from 0 to {LONGEST.days} days, got {given or shown(delay)}. "
            "For later than that, send it from a loop."
        )


def digits(delay: timedelta) -> tuple[int, ...]:
    """The delay as one number per unit, rounded up to whole steps, so that nothing is early.

    Raises:
        UsageError: it is longer than the ladder, or negative.
    """
    check_length(delay)
    rest = -(-delay // STEP)
    counts: list[int] = []
    for steps in _STEPS:
        count, rest = divmod(rest, steps)
        counts.append(count)
    return tuple(counts)


def entrance(delay: timedelta) -> int | None:
    """The index of the unit at whose exchange a delay enters; None for no delay."""
    return next((index for index, count in enumerate(digits(delay)) if count), None)


def key_of(delay: timedelta, destination: str) -> str:
    """The routing key that takes a message through the ladder, then to its destination."""
    return ".".join(map(str, digits(delay))) + f".{destination}"


def rung_pattern(rung: Rung) -> str:
    """What a unit's exchange routes to the timer queue of this rung."""
    return _pattern(rung.unit, rung.count)


def zero_pattern(unit: int) -> str:
    """What a unit's exchange routes straight to the next one."""
    return _pattern(unit, 0)


def _pattern(unit: int, digit: int) -> str:
    return "*." * unit + f"{digit}.#"
