"""How long to wait before each further try, and the dice for it."""

from collections.abc import Iterator
from datetime import timedelta
from random import Random

dice = Random()  # not the one that a program may have seeded


def backoff(
    first: timedelta, last: timedelta, *, factor: float = 2, jitter: float = 0.5
) -> Iterator[float]:
    """Seconds to wait before each further try, without end: growing, up to the last.

    Args:
        factor: how much longer each wait is than the one before.
        jitter: which part of a wait may be left out, by chance: many who lost the same thing at
            the same moment do not come back at the same moment.
    """
    longest, pause = last.total_seconds(), first.total_seconds()
    while True:
        yield pause * dice.uniform(1 - jitter, 1)
        pause = min(pause * factor, longest)
