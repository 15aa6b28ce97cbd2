"""Place a million keyed loops on several brokers, by the hash of their keys.

    python tests/benchmarks/placement.py [--loops 1000000]

For each number of brokers: how much more than its share the fullest one has, and how many loops
move when another broker comes. The rule of the page about several brokers, with a good hash and
with a checksum, and the remainder of a hash.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b
from operator import ne
from zlib import crc32

BROKERS = (2, 3, 4, 8, 16)


def by_highest(key: int, brokers: int) -> int:
    """Return the broker whose name, hashed with the key, is the highest (rendezvous hashing)."""
    return max(range(brokers), key=lambda broker: blake2b(f"{broker}/{key}".encode()).digest())


def by_highest_checksum(key: int, brokers: int) -> int:
    """Return the same with a checksum, which is linear: similar names are no independent hashes."""
    return max(range(brokers), key=lambda broker: crc32(f"{broker}/{key}".encode()))


def by_remainder(key: int, brokers: int) -> int:
    """Return the remainder of the hash of the key."""
    return crc32(f"{key}".encode()) % brokers


RULES = {"highest": by_highest, "checksum": by_highest_checksum, "remainder": by_remainder}


def excess(homes: Sequence[int], brokers: int) -> float:
    """Return how much more loops than the mean the fullest broker has."""
    return max(Counter(homes).values()) * brokers / len(homes) - 1


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--loops", type=int, default=1_000_000)
    loops: int = parser.parse_args().loops
    for name, rule in RULES.items():
        for brokers in BROKERS:
            homes, after = ([rule(key, n) for key in range(loops)] for n in (brokers, brokers + 1))
            share = sum(map(ne, homes, after)) / loops
            sys.stdout.write(
                f"{name:9} of {brokers:2}: fullest {excess(homes, brokers):+.2%}, "
                f"{share:.1%} move to the next number\n"
            )


if __name__ == "__main__":
    main()
