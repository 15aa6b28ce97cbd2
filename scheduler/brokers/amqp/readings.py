"""A stream that is being read, up to where it ended."""

import asyncio
import math
from collections import deque
from datetime import datetime, timedelta
from typing import Any

from aiormq.abc import DeliveredMessage

from scheduler.brokers.amqp.closing import closing_of
from scheduler.brokers.amqp.driver import StreamChannel
from scheduler.brokers.amqp.streams import StreamEntry
from scheduler.errors import BrokerUnavailable, QueueNotFound

PREFETCH = 500


class Reading:
    """A stream that is being read, over a channel of its own, up to what is written meanwhile.

    Where that begins, a second consumer tells.
    """

    def __init__(self, channel: StreamChannel, stream: str) -> None:
        self._channel = channel
        self._stream = stream
        self._arrived: deque[DeliveredMessage | None] = deque()
        self._news = asyncio.Event()
        self._end: float = math.inf
        self._unacked = 0

    async def start(self, since: datetime | None) -> None:
        def end(_: object) -> None:
            self._lay_out(None)

        closing_of(self._channel).add_done_callback(end)
        self._channel.on_consumer_cancel_callbacks.add(end)
        await self._channel.receive(
            self._stream, self._find_end, prefetch=1, arguments={"x-stream-offset": "next"}
        )
        begin: dict[str, Any] = {"x-stream-offset": since or "first"}
        await self._channel.receive(self._stream, self._lay_out, prefetch=PREFETCH, arguments=begin)

    def ends_with(self, entry: StreamEntry) -> bool:
        """Whether what comes after this entry was not there when reading began."""
        return entry.offset + 1 >= self._end

    async def next(self, patience: timedelta) -> StreamEntry | None:
        """The next entry, or None when none has come for so long."""
        if not self._arrived and not await self._hears_of_more(patience):
            return None
        taken = self._arrived.popleft()
        if taken is None:
            raise self._error()
        entry = StreamEntry.of(taken)
        self._unacked += 1
        if self._unacked == PREFETCH // 2:
            self._unacked = 0
            await self._channel.basic_ack(entry.tag, multiple=True, wait=False)
        return entry

    def _find_end(self, written_meanwhile: DeliveredMessage) -> None:
        self._end = min(self._end, StreamEntry.of(written_meanwhile).offset)

    def _lay_out(self, taken: DeliveredMessage | None) -> None:
        self._arrived.append(taken)
        self._news.set()

    async def _hears_of_more(self, patience: timedelta) -> bool:
        self._news.clear()
        try:
            async with asyncio.timeout(patience.total_seconds()):
                return await self._news.wait()
        except TimeoutError:
            return False

    def _error(self) -> BaseException:
        if not self._channel.is_closed:
            return QueueNotFound(f"The stream {self._stream!r} was deleted while it was read.")
        return closing_of(self._channel).exception() or BrokerUnavailable()
