"""Implement RabbitMQ's rules in process: for development, for examples, for tests.

A `MemoryServer` is the broker, each `MemoryBroker` a connection to it. All timers are those of the
running event loop: if the loop's time is virtual, a year passes in milliseconds.

Dead-lettering and reconnects, which take RabbitMQ some milliseconds, are immediate here. Missing:
limits in bytes (but for streams), transient queues, users and rights.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Literal, Self

from scheduler.brokers.contract import (
    DEFAULT_TIMEOUT,
    EMBEDDED,
    LONGEST_SILENCE,
    BrokerInfo,
    Browsed,
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
from scheduler.brokers.memory.queues import Letter, MemoryQueue
from scheduler.brokers.memory.server import (
    Hold,
    MemoryConnection,
    MemoryConsumer,
    MemoryFollower,
    MemoryServer,
)
from scheduler.brokers.properties import check_body, check_size, decoded, encoded, encoded_key
from scheduler.errors import BrokerUnavailable
from scheduler.protocol.messages import Message
from scheduler.protocol.topology import Binding, Topology

FRAME_MAX = 128 << 10  # RabbitMQ's default
LARGEST_BODY = 16 << 20


class MemoryBroker:
    """Connect to a `MemoryServer`; without one, to a new server."""

    def __init__(self, server: MemoryServer | None = None) -> None:
        self._server = server or MemoryServer()
        self._connection: MemoryConnection | None = None

    @property
    def address(self) -> str:
        return "memory://"

    @property
    def info(self) -> BrokerInfo:
        return BrokerInfo(EMBEDDED, "1", cluster=self._server.cluster)

    @property
    def connected(self) -> bool:
        return self._connection is not None

    @property
    def is_blocked(self) -> bool:
        return False

    @property
    def silence(self) -> timedelta:
        return timedelta(0)

    async def __aenter__(self) -> Self:
        self._connection = self._server.connect()
        return self

    async def __aexit__(self, *exception: object) -> None:
        connection, self._connection = self._connection, None
        if connection:
            self._server.close(connection)

    async def alarm(self) -> str:
        return ""

    async def declare(self, topology: Topology) -> None:
        self._open()
        self._server.declare(topology)

    async def publish(
        self,
        message: Message,
        *,
        exchange: str,
        routing_key: str,
        timeout: timedelta | None = DEFAULT_TIMEOUT,
        in_order: bool = True,
    ) -> None:
        self._open()
        encoded_key(routing_key)
        check_body(message.body, LARGEST_BODY, f"{exchange} ({routing_key})", self.address)
        self._server.post(Letter(self._sent(message), exchange, routing_key))
        await asyncio.sleep(0)  # a busy publisher must not starve other tasks

    def _sent(self, message: Message) -> Message:
        """Return the message as received: a copy of what can travel."""
        properties = encoded(message)
        check_size(properties, FRAME_MAX, self.address)
        return decoded(properties, message.body)

    async def get(self, queue: str) -> Delivery | None:
        hold = self._open().get(self._server.queue(queue))
        return None if hold is None else hold.delivery()

    def browse(self, queue: str, *, limit: int) -> Browsed:
        return _browsing(self._open(), self._server.queue(queue), limit)

    async def consume(
        self, queue: str, handler: Callable[[Delivery], object], *, prefetch: int
    ) -> Consumer:
        connection = self._open()
        self._server.queue(queue)
        consumer = MemoryConsumer(connection, queue, handler, prefetch)
        connection.subscribe(consumer)
        return consumer

    async def follow(
        self,
        stream: str,
        handler: Callable[[Message], None],
        *,
        since: Literal["first", "next"] | int = "next",
    ) -> Consumer:
        connection = self._open()
        follower = MemoryFollower(connection, self._server.stream(stream), handler, since)
        connection.subscribe(follower)
        return follower

    async def read(
        self, stream: str, *, since: Since = None, timeout: timedelta | None = None
    ) -> AsyncGenerator[Message]:
        self._open()
        source, deadline = self._server.stream(stream), _deadline(timeout)
        end = source.end
        for offset, message in source.read(source.offset_at(since)):
            if offset >= end:
                break
            if not is_mark(message):
                yield message
            self._still_there(stream)
            if asyncio.get_running_loop().time() >= deadline:
                raise too_long(stream, offset)

    async def read_to_end(
        self,
        stream: str,
        *,
        exchange: str,
        routing_key: str,
        since: Since = None,
        timeout: timedelta = DEFAULT_TIMEOUT,
    ) -> AsyncGenerator[Message]:
        self._open()
        source, mark = self._server.stream(stream), new_mark()
        begin, deadline, reached = source.offset_at(since), _deadline(timeout), None
        with written_into(stream, exchange, routing_key):
            await self.publish(mark, exchange=exchange, routing_key=routing_key, timeout=timeout)
        for offset, message in source.read(begin):
            if message.message_id == mark.message_id:
                return
            if not is_mark(message):
                yield message
            reached = offset
            self._still_there(stream)
            if asyncio.get_running_loop().time() >= deadline:
                raise too_long(stream, reached)
        left = deadline - asyncio.get_running_loop().time()
        await asyncio.sleep(min(left, LONGEST_SILENCE.total_seconds()))
        raise silent(stream, reached)

    async def last(self, stream: str) -> Message | None:
        self._open()
        return self._server.stream(stream).last()

    async def depth(self, queue: str) -> Depth | None:
        self._open()
        known = self._server.place(queue)
        return known.depth() if known else None

    async def unbind(self, bindings: Iterable[Binding]) -> None:
        self._open()
        self._server.unbind(bindings)

    async def delete(self, queue: str) -> None:
        self._open()
        self._server.delete(queue)

    def _still_there(self, stream: str) -> None:
        self._open()
        self._server.stream(stream)

    def _open(self) -> MemoryConnection:
        if self._connection is None:
            raise BrokerUnavailable("The connection is not open: use `async with`.")
        return self._connection


def _deadline(timeout: timedelta | None) -> float:
    if timeout is None:
        return math.inf
    return asyncio.get_running_loop().time() + timeout.total_seconds()


@asynccontextmanager
async def _browsing(
    connection: MemoryConnection, queue: MemoryQueue, limit: int
) -> AsyncGenerator[AsyncGenerator[Delivery]]:
    """Keep browsed messages unacked inside the block; requeue them at its end."""
    kept: list[Hold] = []

    async def taken() -> AsyncGenerator[Delivery]:
        for _ in range(limit):
            while kept and kept[-1] not in connection.holds:
                if kept.pop().lost.done():
                    raise BrokerUnavailable
            if (hold := connection.get(queue)) is None:
                return
            kept.append(hold)
            yield hold.delivery()

    try:
        yield taken()
    finally:
        for hold in kept:
            if hold in connection.holds:
                hold.lose()
