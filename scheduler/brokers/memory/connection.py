"""A connection as its server sees it: whom it delivers to, and what is in hand."""

import asyncio
import math
from collections.abc import Callable
from contextvars import copy_context
from copy import deepcopy
from dataclasses import dataclass, replace

from scheduler.brokers.contract import Delivery
from scheduler.brokers.memory.lanes import QueueEntry
from scheduler.brokers.memory.queues import MemoryQueue
from scheduler.brokers.memory.router import Router
from scheduler.brokers.memory.streams import MemoryFollower, Stream
from scheduler.errors import DeliveryLost


@dataclass(slots=True, eq=False)
class Hold:
    """A message in the hands of a connection, until it is acked or back in its queue."""

    connection: "MemoryConnection"
    queue: MemoryQueue
    entry: QueueEntry
    consumer: "MemoryConsumer | None"
    lost: asyncio.Future[None]

    def delivery(self) -> Delivery:
        letter, queue = self.entry.letter, self.queue.name
        headers = deepcopy(dict(letter.message.headers))  # whose they are, may change them
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
        """Call the consumer's handler, unless the message or the consumer has gone meanwhile."""
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
    """A subscription of one connection; attached while its queue exists."""

    def __init__(
        self,
        connection: "MemoryConnection",
        queue: str,
        handler: Callable[[Delivery], None],
        prefetch: int,
    ) -> None:
        self.queue = queue
        self.handler = handler
        self.unacked = 0
        self.cancelled = False
        self._connection = connection
        self._prefetch = prefetch or math.inf
        # Whose message it is, the handler must not see: it is called as if it came over a wire.
        self._context = copy_context()

    @property
    def active(self) -> bool:
        queue = self._connection.router.queues.get(self.queue)
        return queue is not None and self in queue.consumers

    @property
    def has_credit(self) -> bool:
        return self.unacked < self._prefetch

    async def cancel(self) -> None:
        self.cancelled = True
        self._connection.consumers.pop(self, None)
        self.detach()
        self.wake_queue()

    async def leave(self) -> None:
        self.cancelled = True
        self._connection.consumers.pop(self, None)
        self.detach()
        for hold in tuple(self._connection.holds):
            if hold.consumer is self:
                hold.lose()
        self.wake_queue()

    def attach(self) -> None:
        queue = self._connection.router.queues.get(self.queue)
        if queue and self not in queue.consumers:
            queue.consumers.append(self)
            queue.advance()

    def detach(self) -> None:
        queue = self._connection.router.queues.get(self.queue)
        if queue and self in queue.consumers:
            queue.consumers.remove(self)

    def wake_queue(self) -> None:
        """Let the next consumer go on, where only one may be active."""
        if queue := self._connection.router.queues.get(self.queue):
            queue.advance()

    def receive(self, queue: MemoryQueue, entry: QueueEntry) -> None:
        self.unacked += 1
        hold = self._connection.hold(queue, entry, self)
        asyncio.get_running_loop().call_soon(hold.hand_over, context=self._context)


class MemoryConnection:
    """What the server knows of a connection, and forgets when it dies."""

    def __init__(self, router: Router) -> None:
        self.router = router
        self.consumers: dict[MemoryConsumer, None] = {}
        self.followers: dict[MemoryFollower, None] = {}
        self.holds: dict[Hold, None] = {}

    def stream(self, name: str) -> Stream | None:
        return self.router.streams.get(name)

    def hold(
        self, queue: MemoryQueue, entry: QueueEntry, consumer: MemoryConsumer | None = None
    ) -> Hold:
        lost = asyncio.get_running_loop().create_future()
        hold = Hold(self, queue, entry, consumer, lost)
        self.holds[hold] = None
        return hold

    def attach(self) -> None:
        for consumer in (*self.consumers, *self.followers):
            consumer.attach()

    def detach(self) -> None:
        for consumer in (*self.consumers, *self.followers):
            consumer.detach()

    def lose(self) -> None:
        for hold in tuple(self.holds):
            hold.lose()

    def wake_queues(self) -> None:
        for consumer in self.consumers:
            consumer.wake_queue()
