"""Track a connection at its server: its consumers and unacked messages."""

import asyncio
import math
from collections.abc import Callable, Mapping
from contextvars import copy_context
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Literal

from scheduler.brokers.contract import Delivery, is_mark
from scheduler.brokers.memory.queues import MemoryQueue, QueueEntry
from scheduler.brokers.memory.streams import Stream
from scheduler.errors import DeliveryLost
from scheduler.protocol.messages import Message


@dataclass(slots=True, eq=False)
class Hold:
    """Hold a message on a connection, until it is acked or requeued."""

    connection: "MemoryConnection"
    queue: MemoryQueue
    entry: QueueEntry
    consumer: "MemoryConsumer | None"
    lost: asyncio.Future[None]

    def delivery(self) -> Delivery:
        letter, queue = self.entry.letter, self.queue.name
        headers = deepcopy(dict(letter.message.headers))  # copied: the receiver may change them
        if self.entry.returns and self.queue.counts_deliveries:
            headers["x-delivery-count"] = self.entry.returns
        message = replace(letter.message, headers=headers)
        redelivered = self.entry.returns > 0
        exchange, key = letter.exchange, letter.routing_key
        ack, requeue = self._ack, self._requeue
        return Delivery(message, queue, exchange, key, redelivered, self.lost, ack, requeue)

    async def _ack(self) -> None:
        self._let_go()
        if self.consumer:
            self.queue.advance()

    async def _requeue(self) -> None:
        self._let_go()
        self.queue.take_back(self.entry)

    def _let_go(self) -> None:
        if self not in self.connection.holds:
            raise DeliveryLost
        del self.connection.holds[self]
        if self.consumer:
            self.consumer.unacked -= 1
        else:
            self.queue.getters -= 1

    def hand_over(self) -> None:
        """Call the consumer's handler, unless the message or the consumer has gone."""
        if self not in self.connection.holds or not self.consumer:
            return
        if self.consumer.cancelled:
            self._let_go()
            self.queue.take_back(self.entry)
        else:
            self.consumer.handler(self.delivery())

    def lose(self) -> None:
        self._let_go()
        if not self.lost.done():
            self.lost.set_result(None)
        self.queue.take_back(self.entry)


class MemoryConsumer:
    """Consume for one connection; attached while the queue exists."""

    def __init__(
        self,
        connection: "MemoryConnection",
        queue: str,
        handler: Callable[[Delivery], object],
        prefetch: int,
    ) -> None:
        self.handler = handler
        self.unacked = 0
        self.cancelled = False
        self._name = queue
        self._connection = connection
        self._prefetch = prefetch or math.inf
        # The handler runs in a fresh context, as if the message came over a wire.
        self._context = copy_context()

    @property
    def _queue(self) -> MemoryQueue | None:
        return self._connection.queues.get(self._name)

    @property
    def active(self) -> bool:
        return (queue := self._queue) is not None and self in queue.consumers

    @property
    def has_credit(self) -> bool:
        return self.unacked < self._prefetch

    async def cancel(self) -> None:
        self.cancelled = True
        self._connection.subscriptions.pop(self, None)
        self.detach()
        self.wake_queue()

    async def leave(self) -> None:
        self.detach()
        for hold in tuple(self._connection.holds):
            if hold.consumer is self:
                hold.lose()
        await self.cancel()

    def attach(self) -> None:
        if (queue := self._queue) and self not in queue.consumers:
            queue.consumers.append(self)
            queue.advance()

    def detach(self) -> None:
        if (queue := self._queue) and self in queue.consumers:
            queue.consumers.remove(self)

    def wake_queue(self) -> None:
        """Activate the next consumer, if only one may be active."""
        if queue := self._queue:
            queue.advance()

    def receive(self, queue: MemoryQueue, entry: QueueEntry) -> None:
        self.unacked += 1
        hold = self._connection.hold(queue, entry, self)
        asyncio.get_running_loop().call_soon(hold.hand_over, context=self._context)


class MemoryFollower:
    """Follow a stream; attached while the stream exists."""

    def __init__(
        self,
        connection: "MemoryConnection",
        stream: Stream,
        handler: Callable[[Message], None],
        since: Literal["first", "next"] | int,
    ) -> None:
        self._connection = connection
        self._stream = stream
        self._handler = handler
        self._offset = stream.begin_of(since)

    @property
    def active(self) -> bool:
        return self._advance in self._stream.followers

    async def cancel(self) -> None:
        self._connection.subscriptions.pop(self, None)
        self.detach()

    leave = cancel  # a follower has no unacked messages

    def attach(self) -> None:
        stream = self._connection.streams.get(self._stream.name)
        if stream is None or self.active:
            return
        if stream is not self._stream:
            self._stream, self._offset = stream, 0
        stream.followers[self._advance] = None
        self._advance()

    def detach(self) -> None:
        self._stream.followers.pop(self._advance, None)

    def wake_queue(self) -> None: ...

    def _advance(self) -> None:
        """Call the handler with new entries."""
        for offset, message in self._stream.read(self._offset):
            self._offset = offset + 1
            if not is_mark(message):
                asyncio.get_running_loop().call_soon(self._hand_over, message)

    def _hand_over(self, message: Message) -> None:
        if self in self._connection.subscriptions:
            self._handler(message)


class MemoryConnection:
    """Hold the server's state of a connection."""

    def __init__(self, queues: Mapping[str, MemoryQueue], streams: Mapping[str, Stream]) -> None:
        self.queues = queues
        self.streams = streams
        self.subscriptions: dict[MemoryConsumer | MemoryFollower, None] = {}
        self.holds: dict[Hold, None] = {}

    def subscribe(self, subscription: MemoryConsumer | MemoryFollower) -> None:
        self.subscriptions[subscription] = None
        subscription.attach()

    def hold(
        self, queue: MemoryQueue, entry: QueueEntry, consumer: MemoryConsumer | None = None
    ) -> Hold:
        lost = asyncio.get_running_loop().create_future()
        hold = Hold(self, queue, entry, consumer, lost)
        self.holds[hold] = None
        return hold

    def get(self, queue: MemoryQueue) -> Hold | None:
        """Get the message at the head of a queue, if there is one."""
        if (entry := queue.take()) is None:
            return None
        queue.getters += 1
        return self.hold(queue, entry)

    def attach(self) -> None:
        for each in self.subscriptions:
            each.attach()

    def detach(self) -> None:
        for each in self.subscriptions:
            each.detach()

    def lose(self) -> None:
        for hold in tuple(self.holds):
            hold.lose()
