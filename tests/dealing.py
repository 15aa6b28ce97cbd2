"""Dealing the tests to the workers, so that none is left alone with a long one at the end."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

# The folders of tests that wait, those with the longest first.
SLOW = ("chaos", "k8s", "fuzz", "integration", "browser", "acceptance", "contract")


def dealt(tests: Sequence[T], hands: int, file_of: Callable[[T], tuple[str, ...]]) -> list[T]:
    """The tests in another order: a slice for each hand, that begins with slow ones.

    The tests of a file stay together, as they share what they set up, but for fast ones. With
    `worksteal`, each worker is given such a slice; when it is done, it takes the last of others.
    """
    files = defaultdict[tuple[str, ...], list[T]](list)
    for test in tests:
        files[file_of(test)].append(test)
    slow = sorted((file for file in files if rank(file) < len(SLOW)), key=rank)
    dealt: list[list[T]] = [[] for _ in range(hands)]
    for file in slow:
        min(dealt, key=len).extend(files[file])
    fast = [test for file, each in files.items() if file not in slow for test in each]
    left = len(tests)
    for number, hand in enumerate(dealt):
        size = left // (hands - number)
        missing = max(0, size - len(hand))
        hand += fast[:missing]
        del fast[:missing]
        left -= len(hand)
    return [test for hand in dealt for test in hand]


def rank(file: tuple[str, ...]) -> int:
    return next((place for place, folder in enumerate(SLOW) if folder in file), len(SLOW))
