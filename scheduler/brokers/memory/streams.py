"""A stream in process: entries that stay where they are, for as many readers as want them.

RabbitMQ forgets old entries by the segment, when one is full: more stays than was asked for. Here
each goes by itself, as soon as somebody writes or looks; its size is that of its body. The newest
one stays in either.
"""

import asyncio
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Literal, Protocol

from scheduler.brokers.contract import Depth
from scheduler.brokers.marks import is_mark
from scheduler.brokers.memory.letters import Letter
from scheduler.errors import IncompatibleBroker
from scheduler.protocol.messages import Message
from scheduler.protocol.topology import Queue
from scheduler.timing.clock import Clock

_AGE = re.compile(r"([0-9]+)([YMDhms])")
_AGES = {
    "Y": timedelta(days=365),
    "M": timedelta(days=30),
    "D": timedelta(days=1),
    "h": timedelta(hours=1),
    "m": timedelta(minutes=1),
    "s": timedelta(seconds=1),
}


@dataclass(frozen=True, slots=True)
class TimedMessage:
    """A message of a stream, and when it came."""

    message: Message
    at: datetime


class Stream:
    """The entries of one stream, each under its offset."""

    def __init__(self, spec: Queue, clock: Clock) -> None:
        self.spec = spec
        self.followers: dict[MemoryFollower, None] = {}
        self.end = 0
        self._begin = 0
        self._entries: dict[int, TimedMessage] = {}
        self._size = 0
        self._clock = clock
        self._max_age = _max_age(spec)
        self._max_size: int | None = spec.arguments.get("x-max-length-bytes")

    @property
    def name(self) -> str:
        return self.spec.name

    def depth(self) -> Depth:
        self._forget_old()
        return Depth(len(self._entries), consumers=0)

    def offer(self, letter: Letter) -> bool:
        """Append a letter; True, because a stream is never full."""
        message = replace(letter.message, offset=self.end)
        self._entries[self.end] = TimedMessage(message, self._clock.now())
        self._size += len(letter.message.body)
        self.end += 1
        self._forget_old()
        for follower in tuple(self.followers):
            follower.advance()
        return True

    def read(self, offset: int) -> Iterator[tuple[int, Message]]:
        """The offsets and messages from an offset on, with those that come meanwhile."""
        self._forget_old()
        while (offset := max(offset, self._begin)) < self.end:
            yield offset, self._entries[offset].message
            offset += 1

    def last(self) -> Message | None:
        """The last entry that is not a mark."""
        offsets = reversed(range(self._begin, self.end))
        messages = (self._entries[offset].message for offset in offsets)
        return next((message for message in messages if not is_mark(message)), None)

    def offset_at(self, since: datetime | int | None) -> int:
        """The offset of the first entry that came at this moment, or has this offset, or later."""
        match since:
            case datetime():
                entries, offsets = self._entries, range(self._begin, self.end)
                return self._begin + bisect_left(offsets, since, key=lambda each: entries[each].at)
            case int() if since <= self.end:
                return since
            case _:
                return self._begin

    def begin_of(self, since: Literal["first", "next"] | int) -> int:
        """Return the offset with which a follower begins."""
        if since == "next":
            return self.end
        return since if isinstance(since, int) and since < self.end else 0

    def close(self) -> None:
        self.followers.clear()

    def _forget_old(self) -> None:
        while self._begin < self.end - 1 and self._is_too_much(self._entries[self._begin]):
            self._size -= len(self._entries.pop(self._begin).message.body)
            self._begin += 1

    def _is_too_much(self, oldest: TimedMessage) -> bool:
        if self._max_size is not None and self._size > self._max_size:
            return True
        return self._max_age is not None and self._clock.now() - oldest.at > self._max_age


class Home(Protocol):
    """What a follower needs of its connection."""

    followers: "dict[MemoryFollower, None]"

    def stream(self, name: str) -> Stream | None: ...


class MemoryFollower:
    """A subscription to a stream; attached while the stream exists."""

    def __init__(
        self,
        home: Home,
        stream: Stream,
        handler: Callable[[Message], None],
        since: Literal["first", "next"] | int,
    ) -> None:
        self._home = home
        self._stream = stream
        self._handler = handler
        self._offset = stream.begin_of(since)

    @property
    def active(self) -> bool:
        return self in self._stream.followers

    async def cancel(self) -> None:
        self._home.followers.pop(self, None)
        self.detach()

    leave = cancel  # a follower has nothing in hand

    def attach(self) -> None:
        stream = self._home.stream(self._stream.name)
        if stream is None or self.active:
            return
        if stream is not self._stream:
            self._stream, self._offset = stream, 0
        stream.followers[self] = None
        self.advance()

    def detach(self) -> None:
        self._stream.followers.pop(self, None)

    def advance(self) -> None:
        """Have the handler called for what is new."""
        for offset, message in self._stream.read(self._offset):
            self._offset = offset + 1
            if is_mark(message):
                continue
            asyncio.get_running_loop().call_soon(self._hand_over, message)

    def _hand_over(self, message: Message) -> None:
        if self in self._home.followers:
            self._handler(message)


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
