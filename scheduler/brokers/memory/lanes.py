"""What is ready in a queue: a lane for each priority, the higher ones first, each in its order.

Quorum queues have those from 0 to 31, as in RabbitMQ 4.3, and a message without one is of priority
4; classic ones have as many as they were declared with, and without one is 0. What is higher than
there are is of the highest.

In a quorum queue the first message of each lane may expire; in a classic one only that of the whole
queue, so that what is of a lower priority stays beyond its time.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from operator import itemgetter
from typing import Any

from scheduler.brokers.memory.letters import Letter

HIGHEST_OF_QUORUM, USUAL_OF_QUORUM = 31, 4


@dataclass(slots=True, eq=False)
class QueueEntry:
    """A letter in a queue."""

    letter: Letter
    position: int
    expires: float
    returns: int = 0


class Lanes:
    """The entries of a queue that are ready.

    Args:
        arguments: those of the queue.
    """

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self._quorum = arguments.get("x-queue-type") == "quorum"
        self._highest = HIGHEST_OF_QUORUM if self._quorum else arguments.get("x-max-priority", 0)
        self._usual = USUAL_OF_QUORUM if self._quorum else 0
        self._lanes: dict[int, list[tuple[int, QueueEntry]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._lanes.values()))

    def __iter__(self) -> Iterator[QueueEntry]:
        for lane in sorted(self._lanes, reverse=True):
            yield from (entry for _, entry in sorted(self._lanes[lane], key=itemgetter(0)))

    def push(self, entry: QueueEntry, position: int) -> None:
        """Put an entry into its lane."""
        heappush(self._lanes.setdefault(self._priority_of(entry), []), (position, entry))

    def pop(self) -> QueueEntry:
        """Take out the first entry of all."""
        return self._pop(max(self._lanes))

    def pop_expired(self, now: float) -> QueueEntry | None:
        """Take out the entry that expired first, of those that may expire."""
        first = min(self._ends, key=self._end_of, default=None)
        return None if first is None or self._end_of(first) > now else self._pop(first)

    @property
    def due(self) -> float:
        """When the next entry expires."""
        return min(map(self._end_of, self._ends), default=math.inf)

    def clear(self) -> None:
        self._lanes.clear()

    @property
    def _ends(self) -> Iterable[int]:
        """The lanes whose first entry may expire."""
        return self._lanes if self._quorum or not self._lanes else [max(self._lanes)]

    def _end_of(self, lane: int) -> float:
        return self._lanes[lane][0][1].expires

    def _pop(self, lane: int) -> QueueEntry:
        _, entry = heappop(self._lanes[lane])
        if not self._lanes[lane]:
            del self._lanes[lane]
        return entry

    def _priority_of(self, entry: QueueEntry) -> int:
        priority = entry.letter.message.priority
        return min(self._usual if priority is None else priority, self._highest)
