"""Build and read the routing keys of tokens."""

from zlib import crc32

from scheduler.protocol.hatchery import UNITS
from scheduler.protocol.tokens import LoopId

LOOP_KEY, REST_KEY = "loop.", "rest."
"""The beginnings of the routing keys of tokens: of those that travel, and of those at rest."""
SLICES = 16
"""The parts that the loops of a task are in: a shard of its queue serves some of them."""
ANY_WAIT = ".".join("*" * len(UNITS))
"""The pattern of the digits of any delay."""


def loop_named_by(key: str) -> LoopId | None:
    """Return the loop whose tokens have this routing key, whatever their wait; None: no loop."""
    prefix, *parts = key.split(".", len(UNITS) + 3)
    if f"{prefix}." != LOOP_KEY or len(parts) <= len(UNITS) + 1:
        return None
    return LoopId(parts[0], ".".join(parts[len(UNITS) + 2 :]))


def slice_of(loop: LoopId) -> int:
    """Return the slice of a loop, by its key alone: a renamed task has the same slices."""
    return crc32(loop.key.encode()) % SLICES


def token_key(loop: LoopId, digits: str) -> str:
    """Build the routing key of a token that waits for the time of these digits."""
    key = f"{LOOP_KEY}{loop.task}.{digits}.{slice_of(loop)}"
    return f"{key}.{loop.key}" if loop.key else key


def rest_key(loop: LoopId) -> str:
    """Build the routing key of a token that only goes to the journal."""
    return f"{REST_KEY}{loop}"
