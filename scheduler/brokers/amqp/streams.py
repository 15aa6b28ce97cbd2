"""Read the streams of a broker, up to its last entry or a mark, and follow them."""

import asyncio
import math
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple

from aiormq.exceptions import ChannelInvalidStateError

from scheduler.brokers.amqp.connection import OFFSET, Connection
from scheduler.brokers.amqp.consumers import AmqpConsumer, DeliveryChannel
from scheduler.brokers.amqp.driver import DriverChannel, closed, closing_of
from scheduler.brokers.amqp.frames import RawMessage
from scheduler.brokers.contract import LONGEST_SILENCE, Since, is_mark, new_mark, silent, too_long
from scheduler.brokers.properties import decoded
from scheduler.errors import BrokerError, BrokerUnavailable, QueueNotFound
from scheduler.protocol.messages import Message
from scheduler.timing.moments import UNIX_EPOCH

PREFETCH = 500
FOLLOW_PREFETCH = 100
ACK_WITHIN_S = 0.5
MOST_IN_CHUNK = 65_535  # entries, which RabbitMQ writes into a stream at once
# On a busy machine, the first entry of a stream takes a second.
FIRST_ENTRY_TIMEOUT = timedelta(seconds=2)
STREAMS_ARE_BACK = timedelta(seconds=5)
"""The time after which a restarted node delivers from its streams, though it reports them as empty
for some 3 s (tried on 3.10, 4.0 and 4.3). Entries come to a consumer that waits for them.
"""
SOON = timedelta(seconds=0.5)
SILENCE_BEFORE_ASKING_ANEW = timedelta(seconds=20)
RECOGNITION_TIMEOUT = timedelta(seconds=5)

Write = Callable[[Message], Awaitable[None]]
"""Writes a mark into a stream."""


class StreamEntry(NamedTuple):
    """Hold a message of a stream, and its offset."""

    message: Message
    offset: int
    tag: int

    @classmethod
    def of(cls, raw: RawMessage) -> "StreamEntry":
        message = decoded(raw.properties, raw.body, offset=OFFSET)
        assert message.offset is not None
        return cls(message, message.offset, raw.tag)

    def continues(self, last: "StreamEntry") -> bool:
        """Return whether this entry may follow the previous one of the same stream.

        An entry further on follows if entries between were dropped.
        """
        if self.offset == last.offset:
            return self.message == last.message
        return self.offset > last.offset


class Reading:
    """Read the entries of a stream over a separate channel.

    Attributes:
        last: the last entry that the node has, once looked for; None: it has none.
    """

    def __init__(self, channel: DriverChannel, stream: str) -> None:
        self._channel = channel
        self._stream = stream
        self._arrived: deque[RawMessage | None] = deque()
        self._news = asyncio.Event()
        self._unacked = 0
        self._reached: int | None = None
        self.last: StreamEntry | None = None

    async def look_for_last(self, within: timedelta) -> None:
        """Get the last chunk of the stream with a second consumer.

        Each of its entries arrives before the confirmation that this consumer is cancelled, and so
        does the first requested entry, if there is one.

        Args:
            within: the time after which the stream counts as empty.
        """
        arrived, news = list[RawMessage](), asyncio.Event()

        def lay_out(raw: RawMessage) -> None:
            arrived.append(raw)
            news.set()

        tag = await self._channel.consume(
            self._stream, lay_out, prefetch=MOST_IN_CHUNK, arguments={OFFSET: "last"}
        )
        with suppress(TimeoutError):
            async with asyncio.timeout(within.total_seconds()):
                await news.wait()
        await self._channel.cancel(tag)
        if arrived:
            self.last = StreamEntry.of(arrived[-1])
        # RabbitMQ reports only seconds later that it is not empty.
        elif (await self._channel.depth(self._stream))[0]:
            raise silent(self._stream)

    async def begin(self, offset: str | int | datetime) -> None:
        """Request the entries from an offset on."""

        def lay_out(raw: RawMessage | None) -> None:
            self._arrived.append(raw)
            self._news.set()

        def end(_: object) -> None:
            lay_out(None)

        closing_of(self._channel).add_done_callback(end)
        self._channel.on_consumer_cancel_callbacks.add(end)
        # No x-stream-filter, by which RabbitMQ filters from 3.13 on. It hardly speeds up an evenly
        # written journal (4.3: 15,000 messages a second, not 10,000); and while nothing matches,
        # the reader cannot tell progress from a hang.
        if isinstance(offset, datetime):
            offset = max(offset, UNIX_EPOCH)  # AMQP has no earlier one
        await self._channel.consume(
            self._stream, lay_out, prefetch=PREFETCH, arguments={OFFSET: offset}
        )

    @property
    def is_empty(self) -> bool:
        """Return whether all received entries were read."""
        return not self._arrived

    async def has_begun(self, seconds: float) -> bool:
        """Return whether anything arrives within some seconds."""
        if self._arrived:
            return True
        self._news.clear()
        try:
            async with asyncio.timeout(seconds):
                return await self._news.wait()
        except TimeoutError:
            return False

    async def next(self, seconds: float) -> StreamEntry | None:
        """Return the next entry, or None if none arrives within some seconds."""
        if not self._arrived and not await self.has_begun(seconds):
            return None
        raw = self._arrived.popleft()
        if raw is None:
            if not self._channel.is_closed:
                raise QueueNotFound(f"The stream {self._stream!r} was deleted while it was read.")
            raise closing_of(self._channel).exception() or BrokerUnavailable()
        entry = StreamEntry.of(raw)
        self._reached = entry.offset
        self._unacked += 1
        if self._unacked == PREFETCH // 2:
            self._unacked = 0
            self._channel.settle(entry.tag, multiple=True)
        return entry

    async def next_by(self, deadline: float) -> StreamEntry:
        """Return the next entry, up to a moment of the running event loop.

        After a partition of a cluster (seen on 3.10), RabbitMQ may deliver nothing.
        """
        left = deadline - self._channel.loop.time()
        if left <= 0:
            raise too_long(self._stream, self._reached)
        entry = await self.next(min(left, LONGEST_SILENCE.total_seconds()))
        if entry is None:
            raise silent(self._stream, self._reached)
        return entry


async def read(
    connection: Connection, stream: str, since: Since, timeout: timedelta | None
) -> AsyncGenerator[Message]:
    begun_at = asyncio.get_running_loop().time()
    deadline = math.inf if timeout is None else begun_at + timeout.total_seconds()
    async with _reading(connection, stream, since, until_empty=STREAMS_ARE_BACK) as reading:
        end = 0 if reading.last is None else reading.last.offset + 1
        is_there = not isinstance(since, int) or since <= end
        if since == end or not end or (isinstance(since, datetime) and reading.is_empty):
            return
        reached = -1
        while is_there and reached + 1 < end:
            entry = await reading.next_by(deadline)
            reached = entry.offset
            if reached < end and not is_mark(entry.message):
                yield entry.message
    if not is_there:  # it was recreated: a read beyond its end gets nothing
        async with aclosing(read(connection, stream, None, timeout)) as messages:
            async for message in messages:
                yield message


async def read_to_end(
    connection: Connection, stream: str, write: Write, since: Since, timeout: timedelta
) -> AsyncGenerator[Message]:
    deadline = asyncio.get_running_loop().time() + timeout.total_seconds()
    mark = new_mark()
    async with _reading_past(connection, stream, since, mark, write, deadline) as reading:
        entry = await reading.next_by(deadline)
        while entry.message.message_id != mark.message_id:
            if not is_mark(entry.message):
                yield entry.message
            entry = await reading.next_by(deadline)


async def last(connection: Connection, stream: str) -> Message | None:
    # Without an entry, a caller reads another stream.
    async with _reading(connection, stream, "next", until_empty=FIRST_ENTRY_TIMEOUT) as reading:
        return None if reading.last is None else reading.last.message


@asynccontextmanager
async def _reading_past(
    connection: Connection,
    stream: str,
    since: Since,
    mark: Message,
    write: Write,
    deadline: float,
) -> AsyncGenerator[Reading]:
    """Read from an offset on, or from the first entry, past a mark."""
    async with _reading(connection, stream, since) as reading:
        await write(mark)
        if (
            not isinstance(since, int)
            or await reading.has_begun(SOON.total_seconds())
            or await _end_of(connection, stream, write, deadline) >= since
        ):
            yield reading
            return
    # It was recreated: a read beyond its end gets nothing.
    async with _reading(connection, stream, "first") as reading:
        yield reading


async def _end_of(connection: Connection, stream: str, write: Write, deadline: float) -> int:
    """Return the offset of the next entry of a stream."""
    mark = new_mark()
    async with _reading(connection, stream, "next") as reading:
        await write(mark)
        while (entry := await reading.next_by(deadline)).message.message_id != mark.message_id:
            pass
        return entry.offset


@asynccontextmanager
async def _reading(
    connection: Connection,
    stream: str,
    since: Literal["first", "next"] | Since,
    *,
    until_empty: timedelta | None = None,
) -> AsyncGenerator[Reading]:
    """Begin to read a stream; look for its last entry, if `until_empty` is given.

    Args:
        until_empty: how long after the connection was opened the stream may count as empty.
    """
    session = await connection.ready()
    with connection.translated:
        channel = await session.open_channel()
        try:
            reading = Reading(channel, stream)
            async with connection.beginning_to_read(stream):
                with connection.translated, session.awaiting_answer():
                    await reading.begin("first" if since is None else since)
                    if until_empty is not None:
                        left = max(until_empty - session.age, FIRST_ENTRY_TIMEOUT)
                        await reading.look_for_last(left)
            yield reading
        finally:
            # Entries still under way over it are not needed.
            connection.close_soon(channel)


class AmqpFollower(AmqpConsumer):
    """Follow a stream, and continue at the same place after a break.

    A stream may have been recreated in the break, and only its entries show that. Therefore it
    continues *at* the last entry that it has seen: if that does not come again, it is another
    stream. The same holds for a starting offset.

    After a partition of a cluster (seen on 3.10), RabbitMQ may stop delivering to a consumer
    without an error. So a follower that has heard nothing for a while asks again.
    """

    def __init__(
        self,
        connection: Connection,
        stream: str,
        handler: Callable[[Message], None],
        since: Literal["first", "next"] | int,
    ) -> None:
        super().__init__(connection, stream, FOLLOW_PREFETCH, self._read)
        self._handler = handler
        self._since = since
        self._began: float | None = None
        self._last: StreamEntry | None = None
        self._recognised: asyncio.Future[bool] | None = None
        self._unacked = 0
        self._to_ack: tuple[DriverChannel, int] | None = None

    async def _until_interrupted(self, interrupted: asyncio.Future[str]) -> bool:
        while True:
            heard = self._last
            await asyncio.wait([interrupted], timeout=SILENCE_BEFORE_ASKING_ANEW.total_seconds())
            if interrupted.done():
                return False
            if self._last is heard and self._deliveries is not None:
                with suppress(BrokerError), self._connection.translated:
                    await closed(self._deliveries.channel)
                await asyncio.wait([interrupted])
                return True

    def _arguments(self) -> dict[str, Any]:
        return {OFFSET: self._place()}

    def _place(self) -> int | str:
        now = asyncio.get_running_loop().time()
        if self._last is not None:
            return self._last.offset
        if self._since == "next" and self._began is not None:
            # Entries during the break count as next, too. With a margin for the transit.
            return f"{math.ceil(now - self._began) + 1}s"
        self._began = now
        return self._since

    async def _begin(self) -> None:
        is_known = self._last is not None or isinstance(self._since, int)
        self._recognised = asyncio.get_running_loop().create_future() if is_known else None
        async with self._connection.beginning_to_read(self._queue):
            await super()._begin()
        if self._recognised and not await self._is_recognised(self._recognised):
            await self._forget()
            await super()._begin()

    async def _is_recognised(self, recognised: asyncio.Future[bool]) -> bool:
        assert self._interrupted is not None
        await asyncio.wait(
            [recognised, self._interrupted],
            timeout=RECOGNITION_TIMEOUT.total_seconds(),
            return_when=asyncio.FIRST_COMPLETED,
        )
        if not recognised.done():
            # Interrupted before the event was emitted, it tries again.
            recognised.set_result(self._interrupted.done())
        return recognised.result()

    async def _forget(self) -> None:
        """Restart from the beginning. Entries still under way go with the channel."""
        if self._deliveries is not None:
            await closed(self._deliveries.channel)
        self._deliveries = self._last = self._recognised = None
        self._since = "first"

    def _read(self, deliveries: DeliveryChannel, raw: RawMessage) -> None:
        if (
            deliveries is not self._deliveries
            or self._interrupted is None
            or self._interrupted.done()
        ):
            return
        entry = StreamEntry.of(raw)
        if self._is_news(entry):
            self._last = entry
            if not is_mark(entry.message):
                self._handler(entry.message)
        self._to_ack = deliveries.channel, entry.tag
        self._unacked += 1
        if self._unacked == 1:
            deliveries.channel.loop.call_later(ACK_WITHIN_S, self._ack)
        elif self._unacked > FOLLOW_PREFETCH // 2:
            self._ack()

    def _ack(self) -> None:
        """Ack the entries so far together: each ack is a write."""
        if self._to_ack is not None:
            (channel, tag), self._to_ack, self._unacked = self._to_ack, None, 0
            with suppress(ChannelInvalidStateError):
                channel.settle(tag, multiple=True)

    def _is_news(self, entry: StreamEntry) -> bool:
        if self._recognised is None:
            return True
        if not self._recognised.done():
            self._recognised.set_result(self._last is None or entry.continues(self._last))
        is_later = self._last is None or entry.offset > self._last.offset
        return self._recognised.result() and is_later
