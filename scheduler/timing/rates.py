"""How many in a time: "50/s"."""

import asyncio
import re
from dataclasses import dataclass
from datetime import timedelta

from scheduler.errors import RegistrationError

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_TEXT = re.compile(r"(?P<count>[0-9]{1,9})/(?P<unit>[smh])")


@dataclass(frozen=True, slots=True)
class Rate:
    """So many, evenly spread over a time."""

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
            f'A rate is a number per s, m or h, such as "50/s" or "100/m", got {text!r}.'
        )
    return Rate(int(match["count"]), timedelta(seconds=_UNITS[match["unit"]]))


class Pacer:
    """Gives turns, one after the other, no more of them than a rate allows."""

    def __init__(self, rate: Rate) -> None:
        self._interval = rate.interval
        self._next = 0.0

    @property
    def wait(self) -> float:
        """How many seconds it is to the next turn, which nobody has taken yet."""
        return max(0.0, self._next - asyncio.get_running_loop().time())

    def turn(self) -> float:
        """How many seconds to wait for the next turn, which is taken by asking."""
        now = asyncio.get_running_loop().time()
        turn = max(self._next, now)
        self._next = turn + self._interval
        return turn - now
