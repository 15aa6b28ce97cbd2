"""Implement an in-process stream: entries stay, for any number of readers.

RabbitMQ drops old entries by the segment, when one is full: more stays than requested. Here each is
dropped by itself, at the next write or read; its size is that of its body. The newest one stays in
either.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Literal

from scheduler.brokers.contract import Depth, Since, is_mark
from scheduler.brokers.memory.queues import Letter
from scheduler.errors import IncompatibleBroker
from scheduler.protocol.messages import Message
from scheduler.protocol.topology import Queue
from scheduler.timing.moments import Clock

_AGE = re.compile(r"([0-9]+)([YMDhms])")
_AGES = {
    "Y": timedelta(days=365),
    "M": timedelta(days=30),
    "D": timedelta(days=1),
    "h": timedelta(hours=1),
    "m": timedelta(minutes=1),
    "s": timedelta(seconds=1),
}


class Stream:
    """Hold the entries of one stream, each under its offset.

    Attributes:
        followers: called on new entries.
        end: the offset of the next entry.
    """

    def __init__(self, spec: Queue, clock: Clock) -> None:
        self.spec, self.name = spec, spec.name
        self.followers: dict[Callable[[], None], None] = {}
        self.end = 0
        self._begin = 0
        self._entries: dict[int, tuple[Message, datetime]] = {}
        self._size = 0
        self._clock = clock
        self._max_age = _max_age(spec)
        self._max_size: int | None = spec.arguments.get("x-max-length-bytes")

    def depth(self) -> Depth:
        self._forget_old()
        return Depth(len(self._entries), consumers=0)

    def offer(self, letter: Letter) -> bool:
        """Append a letter; True, because a stream is never full."""
        message = replace(letter.message, offset=self.end)
        self._entries[self.end] = message, self._clock.now()
        self._size += len(letter.message.body)
        self.end += 1
        self._forget_old()
        for advance in tuple(self.followers):
            advance()
        return True

    def read(self, offset: int) -> Iterator[tuple[int, Message]]:
        """Yield offsets and messages from an offset on, including new ones."""
        self._forget_old()
        while (offset := max(offset, self._begin)) < self.end:
            yield offset, self._entries[offset][0]
            offset += 1

    def last(self) -> Message | None:
        """Return the last entry that is not a mark."""
        offsets = reversed(range(self._begin, self.end))
        messages = (self._entries[offset][0] for offset in offsets)
        return next((message for message in messages if not is_mark(message)), None)

    def offset_at(self, since: Since) -> int:
        """Return the offset of the first entry from this moment or offset on."""
        match since:
            case datetime():
                entries, offsets = self._entries, range(self._begin, self.end)
                return self._begin + bisect_left(offsets, since, key=lambda each: entries[each][1])
            case int() if since <= self.end:
                return since
            case _:
                return self._begin

    def begin_of(self, since: Literal["first", "next"] | int) -> int:
        """Return the offset at which a follower begins."""
        if since == "next":
            return self.end
        return since if isinstance(since, int) and since < self.end else 0

    def close(self) -> None:
        self.followers.clear()

    def _forget_old(self) -> None:
        while self._begin < self.end - 1 and self._is_too_much(self._entries[self._begin][1]):
            self._size -= len(self._entries.pop(self._begin)[0].body)
            self._begin += 1

    def _is_too_much(self, oldest_at: datetime) -> bool:
        if self._max_size is not None and self._size > self._max_size:
            return True
        return self._max_age is not None and self._clock.now() - oldest_at > self._max_age


def _max_age(spec: Queue) -> timedelta | None:
    age = spec.arguments.get("x-max-age")
    if age is None:
        return None
    if not (read := _AGE.fullmatch(age)):
        raise IncompatibleBroker(
            f"The x-max-age of the stream {spec.name!r} cannot be read: expected a number and "
            f"a unit of Y, M, D, h, m, s, such as '7D', got: {age!r}. Nothing was declared."
        )
    return int(read[1]) * _AGES[read[2]]
