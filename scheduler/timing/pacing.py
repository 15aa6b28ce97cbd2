"""Pace runs by rates ("50/s"), and retries by waits that grow."""

import asyncio
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from random import Random

from scheduler.errors import RegistrationError
from scheduler.timing.durations import MILLISECOND, SECOND, shown

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
    """Read a rate such as "50/s", "100/m" or "10/h", or raise `RegistrationError`."""
    match = _TEXT.fullmatch(text) if isinstance(text, str) else None  # pyright: ignore[reportUnnecessaryIsInstance]
    if match is None or not int(match["count"]):
        raise RegistrationError(
            f'A rate must be a number per s, m or h, such as "50/s" or "100/m", got {shown(text)}.'
        )
    return Rate(int(match["count"]), timedelta(seconds=_UNITS[match["unit"]]))


class Pacer:
    """Give out turns, no more than a rate allows.

    Attributes:
        line: held by the one queue that waits for the next turn; the others wait for it.
    """

    def __init__(self, rate: Rate) -> None:
        self.line = asyncio.Lock()
        self._interval = rate.interval
        self._next = 0.0
        self._given_back = asyncio.get_running_loop().create_future()

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

    def begin(self) -> None:
        """Count the last turn from now on: it was taken earlier, and had to wait."""
        self._next = max(self._next, asyncio.get_running_loop().time() + self._interval)

    def last_turn(self) -> Callable[[], None]:
        """Return a function that gives the last turn back, unless another one was taken since."""
        taken = self._next

        def give_back() -> None:
            if self._next == taken:
                self._next -= self._interval
                self._given_back.set_result(None)
                self._given_back = asyncio.get_running_loop().create_future()

        return give_back

    async def until_free(self, end: asyncio.Future[None]) -> None:
        """Wait for the next free turn, or for an end."""
        while (wait := self.wait) and not end.done():
            ends = [end, self._given_back]
            await asyncio.wait(ends, timeout=wait, return_when=asyncio.FIRST_COMPLETED)


dice = Random()  # independent of the generator that the program may have seeded


def backoff(
    first: timedelta = 50 * MILLISECOND, last: timedelta = 5 * SECOND, *, jitter: float = 0.5
) -> Iterator[float]:
    """Yield the seconds to wait before each retry, each twice the one before, up to the last.

    Args:
        jitter: the part of a wait that may be left out at random, so that clients that lost the
        same thing at the same moment do not retry at the same moment.
    """
    longest, pause = last.total_seconds(), first.total_seconds()
    while True:
        yield pause * dice.uniform(1 - jitter, 1)
        pause = min(pause * 2, longest)
