"""Pace runs by rates ("50/s"), retries by waits that grow, and timers by their lead."""

import asyncio
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random

from scheduler.errors import RegistrationError
from scheduler.timing.durations import MILLISECOND, ZERO

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_TEXT = re.compile(r"(?P<count>[0-9]{1,9})/(?P<unit>[smh])")


@dataclass(frozen=True, slots=True)
class Rate:
    """Hold a number of runs, evenly spread over a time."""

    count: int
    per: timedelta

    @property
    def interval(self) -> float:
        return self.per.total_seconds() / self.count

    def __str__(self) -> str:
        unit = next(name for name, s in _UNITS.items() if s == self.per.total_seconds())
        return f"{self.count}/{unit}"


def parse_rate(text: str) -> Rate:
    """Read a rate such as "50/s", "100/m" or "10/h".

    Raises:
        RegistrationError: it is not of this form.
    """
    match = _TEXT.fullmatch(text) if isinstance(text, str) else None  # pyright: ignore[reportUnnecessaryIsInstance]
    if match is None or not int(match["count"]):
        raise RegistrationError(
            f'A rate must be a number per s, m or h, such as "50/s" or "100/m", got {text!r}.'
        )
    return Rate(int(match["count"]), timedelta(seconds=_UNITS[match["unit"]]))


class Pacer:
    """Give out turns, no more than a rate allows."""

    def __init__(self, rate: Rate) -> None:
        self._interval = rate.interval
        self._next = 0.0

    @property
    def wait(self) -> float:
        """Return the seconds until the next free turn."""
        return max(0.0, self._next - asyncio.get_running_loop().time())

    def turn(self) -> float:
        """Take the next turn; return the seconds to wait for it."""
        now = asyncio.get_running_loop().time()
        turn = max(self._next, now)
        self._next = turn + self._interval
        return turn - now


dice = Random()  # independent of the generator that the program may have seeded


def backoff(
    first: timedelta, last: timedelta, *, factor: float = 2, jitter: float = 0.5
) -> Iterator[float]:
    """Yield the seconds to wait before each retry, growing up to the last, without end.

    Args:
        factor: the ratio of each wait to the one before.
        jitter: the part of a wait that may be left out at random, so that clients that lost the
        same thing at the same moment do not retry at the same moment.
    """
    longest, pause = last.total_seconds(), first.total_seconds()
    while True:
        yield pause * dice.uniform(1 - jitter, 1)
        pause = min(pause * factor, longest)


SHORTEST = timedelta(milliseconds=20)
"""The shortest lead: a quorum queue needs some milliseconds after a token left."""

SPARE = 1.5
HALF_LIFE = timedelta(seconds=30)


class Lead:
    """Learn the transit time from a timer queue to a processor.

    Args:
        longest: the upper limit; 0: messages leave when they are due.
    """

    def __init__(self, longest: timedelta) -> None:
        self._longest = longest
        self._trip = longest / (2 * SPARE)
        self._learned_at: datetime | None = None

    @property
    def length(self) -> timedelta:
        """Return how long before its time a message leaves, in whole milliseconds."""
        return min(max(self._trip * SPARE, SHORTEST), self._longest) // MILLISECOND * MILLISECOND

    def learn(self, trip: timedelta, now: datetime) -> None:
        """Add the transit time of one message; spikes decay exponentially."""
        passed = max(now - (self._learned_at or now), ZERO)
        self._trip = min(max(trip, self._trip * 0.5 ** (passed / HALF_LIFE)), self._longest)
        self._learned_at = now
