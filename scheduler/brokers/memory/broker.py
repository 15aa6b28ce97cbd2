"""Implement RabbitMQ's rules in process: for development, for examples, for tests.

A `MemoryServer` is the broker, each `MemoryBroker` a connection to it. All timers are those of the
running event loop: if the loop's time is virtual, a year passes in milliseconds.

Dead-lettering and reconnects, which take RabbitMQ some milliseconds, are immediate here. Missing:
limits in bytes (except of streams), transient queues, users and rights, and retries of dead
letters that nothing takes: here they are dropped.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from contextvars import copy_context
from copy import deepcopy
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Literal, Self

from scheduler.brokers.contract import (
    DEFAULT_TIMEOUT,
    EMBEDDED,
    LONGEST_SILENCE,
    BrokerInfo,
    Consumer,
    Delivery,
    Depth,
    Since,
    is_mark,
    new_mark,
    silent,
    too_long,
    written_into,
)
from scheduler.brokers.memory.server import Letter, MemoryQueue, MemoryServer, QueueEntry, Stream
from scheduler.brokers.properties import check_body, check_size, decoded, encoded, encoded_key
from scheduler.errors import BrokerUnavailable, DeliveryLost
from scheduler.protocol.messages import Message
from scheduler.protocol.topology import Binding, Topology

FRAME_MAX = 128 << 10  # RabbitMQ's default
LARGEST_BODY = 16 << 20


@dataclass(slots=True, eq=False)
class Hold:
    """Hold a message on a connection, until it is acked or requeued."""

    broker: "MemoryBroker"
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
        if self not in self.broker.holds:
            raise DeliveryLost
        del self.broker.holds[self]
        if self.consumer:
            self.consumer.unacked -= 1
        else:
            self.queue.getters -= 1

    def hand_over(self) -> None:
        """Call the consumer's handler, unless the message or the consumer has gone."""
        if self not in self.broker.holds or not self.consumer:
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
        broker: "MemoryBroker",
        queue: str,
        handler: Callable[[Delivery], object],
        prefetch: int,
    ) -> None:
        self.handler = handler
        self.unacked = 0
        self.cancelled = False
        self._name = queue
        self._broker = broker
        self._prefetch = prefetch or math.inf
        # The handler runs in a fresh context, as if the message came over a wire.
        self._context = copy_context()

    @property
    def _queue(self) -> MemoryQueue | None:
        return self._broker.server.queues.get(self._name)

    @property
    def active(self) -> bool:
        return (queue := self._queue) is not None and self in queue.consumers

    @property
    def has_credit(self) -> bool:
        return self.unacked < self._prefetch

    async def cancel(self) -> None:
        self.cancelled = True
        self._broker.subscriptions.pop(self, None)
        self.detach()
        if queue := self._queue:
            queue.advance()  # the next consumer is active, if only one may be

    async def leave(self) -> None:
        self.detach()
        for hold in tuple(self._broker.holds):
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

    def receive(self, queue: MemoryQueue, entry: QueueEntry) -> None:
        self.unacked += 1
        hold = self._broker.hold(queue, entry, self)
        asyncio.get_running_loop().call_soon(hold.hand_over, context=self._context)


class MemoryFollower:
    """Follow a stream; attached while the stream exists."""

    def __init__(
        self,
        broker: "MemoryBroker",
        stream: Stream,
        handler: Callable[[Message], None],
        since: Literal["first", "next"] | int,
    ) -> None:
        self._broker = broker
        self._stream = stream
        self._handler = handler
        self._offset = stream.begin_of(since)

    @property
    def active(self) -> bool:
        return self._advance in self._stream.followers

    async def cancel(self) -> None:
        self._broker.subscriptions.pop(self, None)
        self.detach()

    leave = cancel  # a follower has no unacked messages

    def attach(self) -> None:
        stream = self._broker.server.streams.get(self._stream.name)
        if stream is None or self.active:
            return
        if stream is not self._stream:
            self._stream, self._offset = stream, 0
        stream.followers[self._advance] = None
        self._advance()

    def detach(self) -> None:
        self._stream.followers.pop(self._advance, None)

    def _advance(self) -> None:
        for offset, message in self._stream.read(self._offset):
            self._offset = offset + 1
            if not is_mark(message):
                asyncio.get_running_loop().call_soon(self._hand_over, message)

    def _hand_over(self, message: Message) -> None:
        if self in self._broker.subscriptions:
            self._handler(message)


class MemoryBroker:
    """Connect to a `MemoryServer`; without one, to a new server.

    Attributes:
        subscriptions: its consumers and followers.
        holds: its unacked messages.
    """

    def __init__(self, server: MemoryServer | None = None) -> None:
        self.server = server or MemoryServer()
        self.subscriptions: dict[MemoryConsumer | MemoryFollower, None] = {}
        self.holds: dict[Hold, None] = {}

    @property
    def address(self) -> str:
        return "memory://"

    @property
    def info(self) -> BrokerInfo:
        return BrokerInfo(EMBEDDED, "1", cluster=self.server.cluster)

    @property
    def connected(self) -> bool:
        return self in self.server.connections

    @property
    def is_blocked(self) -> bool:
        return False

    @property
    def silence(self) -> timedelta:
        return timedelta(0)

    @property
    def _open(self) -> MemoryServer:
        """Return the server, or raise BrokerUnavailable if the connection is not open."""
        if not self.connected:
            raise BrokerUnavailable("The connection is not open: use `async with`.")
        return self.server

    async def __aenter__(self) -> Self:
        self.server.connections.append(self)
        return self

    async def __aexit__(self, *exception: object) -> None:
        if not self.connected:
            return
        self.server.connections.remove(self)
        self.detach()
        self.lose()
        self.subscriptions.clear()
        for queue in tuple(self.server.queues.values()):
            queue.advance()

    async def alarm(self) -> str:
        return ""

    async def declare(self, topology: Topology) -> None:
        self._open.declare(topology)

    async def publish(
        self,
        message: Message,
        *,
        exchange: str,
        routing_key: str,
        timeout: timedelta | None = DEFAULT_TIMEOUT,
        in_order: bool = True,
    ) -> None:
        server = self._open
        encoded_key(routing_key)
        check_body(message.body, LARGEST_BODY, f"{exchange} ({routing_key})", self.address)
        server.post(Letter(self._sent(message), exchange, routing_key))
        await asyncio.sleep(0)  # a busy publisher must not starve other tasks

    def _sent(self, message: Message) -> Message:
        """Return the message as received: a copy of what can travel."""
        properties = encoded(message)
        check_size(properties, FRAME_MAX, self.address)
        return decoded(properties, message.body)

    async def get(self, queue: str) -> Delivery | None:
        hold = self._take(self._open.queue(queue))
        return None if hold is None else hold.delivery()

    @asynccontextmanager
    async def browse(self, queue: str, *, limit: int) -> AsyncGenerator[AsyncGenerator[Delivery]]:
        source, kept = self._open.queue(queue), list[Hold]()

        async def taken() -> AsyncGenerator[Delivery]:
            for _ in range(limit):
                while kept and kept[-1] not in self.holds:
                    if kept.pop().lost.done():
                        raise BrokerUnavailable
                if (hold := self._take(source)) is None:
                    return
                kept.append(hold)
                yield hold.delivery()

        try:
            yield taken()
        finally:
            for hold in kept:
                if hold in self.holds:
                    hold.lose()

    async def consume(
        self, queue: str, handler: Callable[[Delivery], object], *, prefetch: int
    ) -> Consumer:
        self._open.queue(queue)
        return self._subscribe(MemoryConsumer(self, queue, handler, prefetch))

    async def follow(
        self,
        stream: str,
        handler: Callable[[Message], None],
        *,
        since: Literal["first", "next"] | int = "next",
    ) -> Consumer:
        return self._subscribe(MemoryFollower(self, self._open.stream(stream), handler, since))

    async def read(
        self, stream: str, *, since: Since = None, timeout: timedelta | None = None
    ) -> AsyncGenerator[Message]:
        source, deadline = self._open.stream(stream), _deadline(timeout)
        for _, message in self._entries(source, source.offset_at(since), source.end, deadline):
            if not is_mark(message):
                yield message

    async def read_to_end(
        self,
        stream: str,
        *,
        exchange: str,
        routing_key: str,
        since: Since = None,
        timeout: timedelta = DEFAULT_TIMEOUT,
    ) -> AsyncGenerator[Message]:
        source, mark = self._open.stream(stream), new_mark()
        begin, deadline, reached = source.offset_at(since), _deadline(timeout), None
        with written_into(stream, exchange, routing_key):
            await self.publish(mark, exchange=exchange, routing_key=routing_key, timeout=timeout)
        for offset, message in self._entries(source, begin, math.inf, deadline):
            if message.message_id == mark.message_id:
                return
            if not is_mark(message):
                yield message
            reached = offset
        left = deadline - asyncio.get_running_loop().time()
        await asyncio.sleep(min(left, LONGEST_SILENCE.total_seconds()))
        raise silent(stream, reached)

    def _entries(
        self, source: Stream, begin: int, end: float, deadline: float
    ) -> Iterator[tuple[int, Message]]:
        """Yield the entries up to an end, while the stream can be read and there is time left."""
        reached = None
        for offset, message in source.read(begin):
            if offset >= end:
                return
            self._open.stream(source.name)
            if asyncio.get_running_loop().time() >= deadline:
                raise too_long(source.name, reached)
            yield offset, message
            reached = offset

    async def last(self, stream: str) -> Message | None:
        return self._open.stream(stream).last()

    async def depth(self, queue: str) -> Depth | None:
        known = self._open.place(queue)
        return known.depth() if known else None

    async def unbind(self, bindings: Iterable[Binding]) -> None:
        self._open.unbind(bindings)

    async def delete(self, queue: str) -> None:
        self._open.delete(queue)

    def hold(
        self, queue: MemoryQueue, entry: QueueEntry, consumer: MemoryConsumer | None = None
    ) -> Hold:
        hold = Hold(self, queue, entry, consumer, asyncio.get_running_loop().create_future())
        self.holds[hold] = None
        return hold

    def attach(self) -> None:
        """Deliver to all consumers and followers whose queues exist."""
        for each in self.subscriptions:
            each.attach()

    def detach(self) -> None:
        for each in self.subscriptions:
            each.detach()

    def lose(self) -> None:
        """Requeue all unacked messages."""
        for hold in tuple(self.holds):
            hold.lose()

    def _take(self, queue: MemoryQueue) -> Hold | None:
        if (entry := queue.take()) is None:
            return None
        queue.getters += 1
        return self.hold(queue, entry)

    def _subscribe(self, subscription: "MemoryConsumer | MemoryFollower") -> Consumer:
        self.subscriptions[subscription] = None
        subscription.attach()
        return subscription


def _deadline(timeout: timedelta | None) -> float:
    if timeout is None:
        return math.inf
    return asyncio.get_running_loop().time() + timeout.total_seconds()
