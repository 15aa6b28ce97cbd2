"""Calculate the waits between retries, with jitter."""

from collections.abc import Iterator
from datetime import timedelta
from random import Random

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
