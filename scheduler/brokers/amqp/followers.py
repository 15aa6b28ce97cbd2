"""Who follows a stream, over breaks of the connection."""

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, Literal

from aiormq.exceptions import ChannelInvalidStateError

from scheduler.brokers.amqp.channels import closed
from scheduler.brokers.amqp.connection import Connection
from scheduler.brokers.amqp.consumers import RecoveringConsumer
from scheduler.brokers.amqp.deliveries import DeliveryChannel
from scheduler.brokers.amqp.entries import StreamEntry
from scheduler.brokers.amqp.frames import Taken
from scheduler.brokers.marks import is_mark
from scheduler.errors import BrokerError
from scheduler.protocol.messages import Message

FOLLOW_PREFETCH = 100
SILENCE_BEFORE_ASKING_ANEW = timedelta(seconds=20)
RECOGNITION_TIMEOUT = timedelta(seconds=5)


class AmqpFollower(RecoveringConsumer):
    """Hands over what a stream holds, and knows the place where it goes on after a break.

    A stream may have been made anew meanwhile, and nothing but its entries says so. Therefore it
    goes on *at* the last entry that it has seen: if that does not come again, it is another stream.
    The same holds for an offset with which it is told to begin.

    After a partition of a cluster (seen on 3.10), RabbitMQ may deliver no more to a consumer, and
    leave it at that. So one that has heard nothing for a while asks anew.
    """

    def __init__(
        self,
        connection: Connection,
        stream: str,
        handler: Callable[[Message], None],
        since: Literal["first", "next"] | int,
    ) -> None:
        super().__init__(connection, stream, FOLLOW_PREFETCH)
        self._handler = handler
        self._since = since
        self._began: float | None = None
        self._last: StreamEntry | None = None
        self._recognised: asyncio.Future[bool] | None = None

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
        return {"x-stream-offset": self._place()}

    def _place(self) -> int | str:
        now = asyncio.get_running_loop().time()
        if self._last is not None:
            return self._last.offset
        if self._since == "next" and self._began is not None:
            # What came during the break is the next, too. With something to spare for the way.
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
            # Interrupted before it could tell, it tries again.
            recognised.set_result(self._interrupted.done())
        return recognised.result()

    async def _forget(self) -> None:
        """Be as if nothing had been seen. What is still under way goes with the channel."""
        if self._deliveries is not None:
            await closed(self._deliveries.channel)
        self._deliveries = self._last = self._recognised = None
        self._since = "first"

    def _receive(self, deliveries: DeliveryChannel, taken: Taken) -> None:
        if (
            deliveries is not self._deliveries
            or self._interrupted is None
            or self._interrupted.done()
        ):
            return
        entry = StreamEntry.of(taken)
        if self._is_news(entry):
            self._last = entry
            if not is_mark(entry.message):
                self._handler(entry.message)
        with suppress(ChannelInvalidStateError):
            deliveries.channel.ack(entry.tag)

    def _is_news(self, entry: StreamEntry) -> bool:
        if self._recognised is None:
            return True
        if not self._recognised.done():
            self._recognised.set_result(self._last is None or entry.continues(self._last))
        is_later = self._last is None or entry.offset > self._last.offset
        return self._recognised.result() and is_later
