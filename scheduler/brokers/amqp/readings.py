"""A stream that is being read."""

import asyncio
import math
from collections import deque
from datetime import datetime

from scheduler.brokers.amqp.channels import DriverChannel
from scheduler.brokers.amqp.closing import closing_of
from scheduler.brokers.amqp.entries import StreamEntry
from scheduler.brokers.amqp.frames import Taken
from scheduler.brokers.contract import LONGEST_SILENCE
from scheduler.brokers.marks import silent, too_long
from scheduler.errors import BrokerUnavailable, QueueNotFound
from scheduler.timing.moments import UNIX_EPOCH

PREFETCH = 500


class Reading:
    """The entries of a stream as they come over a channel of its own."""

    def __init__(self, channel: DriverChannel, stream: str) -> None:
        self._channel = channel
        self._stream = stream
        self._arrived: deque[Taken | None] = deque()
        self._news = asyncio.Event()
        self._end: float = math.inf
        self._unacked = 0
        self._reached: int | None = None

    async def look_for_end(self) -> None:
        """Have a second consumer tell where that begins which is written from now on."""
        await self._channel.consume(
            self._stream, self._find_end, prefetch=1, arguments={"x-stream-offset": "next"}
        )

    async def begin(self, offset: str | int | datetime) -> None:
        """Have the entries come from an offset on."""

        def end(_: object) -> None:
            self._lay_out(None)

        closing_of(self._channel).add_done_callback(end)
        self._channel.on_consumer_cancel_callbacks.add(end)
        # No x-stream-filter, by which RabbitMQ leaves out the rest from 3.13 on. Of a journal that
        # is written to at an even pace it hardly reads more a second (4.3: 15,000 messages, not
        # 10,000); and while nothing comes, nobody knows how far it has got, or if it is at work.
        if isinstance(offset, datetime):
            offset = max(offset, UNIX_EPOCH)  # AMQP has no earlier one
        arguments = {"x-stream-offset": offset}
        await self._channel.consume(
            self._stream, self._lay_out, prefetch=PREFETCH, arguments=arguments
        )

    def ends_with(self, entry: StreamEntry) -> bool:
        """Whether what comes after this entry was not there when the end was looked for."""
        return entry.offset + 1 >= self._end

    async def has_begun(self, seconds: float) -> bool:
        """Whether anything comes, for so long."""
        return bool(self._arrived) or await self._hears_of_more(seconds)

    async def next(self, seconds: float) -> StreamEntry | None:
        """The next entry, or None when none has come for so long.

        Raises:
            QueueNotFound: the stream was deleted.
            BrokerUnavailable: the connection went.
        """
        if not self._arrived and not await self._hears_of_more(seconds):
            return None
        taken = self._arrived.popleft()
        if taken is None:
            raise self._error()
        entry = StreamEntry.of(taken)
        self._reached = entry.offset
        self._unacked += 1
        if self._unacked == PREFETCH // 2:
            self._unacked = 0
            self._channel.ack(entry.tag, multiple=True)
        return entry

    async def next_by(self, deadline: float) -> StreamEntry:
        """The next entry, by a moment of the running event loop.

        After a partition of a cluster (seen on 3.10), RabbitMQ may hand out nothing.

        Raises:
            QueueNotFound: the stream was deleted.
            StreamTooLong: the moment has come.
            BrokerUnavailable: the connection went, or nothing comes.
        """
        left = deadline - asyncio.get_running_loop().time()
        if left <= 0:
            raise too_long(self._stream, self._reached)
        entry = await self.next(min(left, LONGEST_SILENCE.total_seconds()))
        if entry is None:
            raise silent(self._stream)
        return entry

    def _find_end(self, written_meanwhile: Taken) -> None:
        self._end = min(self._end, StreamEntry.of(written_meanwhile).offset)

    def _lay_out(self, taken: Taken | None) -> None:
        self._arrived.append(taken)
        self._news.set()

    async def _hears_of_more(self, seconds: float) -> bool:
        self._news.clear()
        try:
            async with asyncio.timeout(seconds):
                return await self._news.wait()
        except TimeoutError:
            return False

    def _error(self) -> BaseException:
        if not self._channel.is_closed:
            return QueueNotFound(f"The stream {self._stream!r} was deleted while it was read.")
        return closing_of(self._channel).exception() or BrokerUnavailable()
