"""RabbitMQ through aiormq: the operations of the contract, each on the channel that fits it.

The broker answers a refusal by closing the channel it came over. So publishing has a channel of its
own, each consumer has one, what is taken by `get` has one while it is in hand, and whatever may be
refused gets one to throw away.
"""

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from datetime import timedelta
from functools import partial
from typing import Literal

from yarl import URL

from scheduler.brokers.amqp.asking import asking
from scheduler.brokers.amqp.browsing import browsing
from scheduler.brokers.amqp.connection import Connection
from scheduler.brokers.amqp.consumers import AmqpConsumer, RecoveringConsumer
from scheduler.brokers.amqp.declaration import declare, unbind
from scheduler.brokers.amqp.endpoint import Endpoint
from scheduler.brokers.amqp.followers import AmqpFollower
from scheduler.brokers.amqp.getting import get
from scheduler.brokers.amqp.publishing import Publisher
from scheduler.brokers.amqp.streams import Streams
from scheduler.brokers.amqp.tls import Tls
from scheduler.brokers.contract import (
    DEFAULT_QUIET,
    DEFAULT_TIMEOUT,
    BrokerInfo,
    Browsed,
    Delivery,
    Depth,
    Since,
)
from scheduler.brokers.credentials import parse_urls
from scheduler.brokers.marks import written_into
from scheduler.errors import QueueNotFound
from scheduler.events import Emit
from scheduler.protocol.messages import Message
from scheduler.protocol.topology import Binding, Topology


class AmqpBroker:
    """A connection to RabbitMQ.

    Args:
        url: `amqp://user:password@host:port/vhost`, or `amqps://`; of a cluster, several with
            commas between them; or a function that is asked for them at each connect.
        tls: whom to trust, and what to show, where the URL is `amqps://`.
        emit: told about lost and rebuilt connections.
        patient: keep trying when the broker cannot be reached at first, instead of raising.
        heartbeat: how often both sides say that they live; a dead peer is noticed after three.
    """

    def __init__(
        self,
        url: str | Callable[[], Sequence[URL]],
        *,
        tls: Tls | None = None,
        emit: Emit = lambda event: None,
        patient: bool = False,
        heartbeat: timedelta = timedelta(seconds=20),
    ) -> None:
        read_urls = partial(parse_urls, url) if isinstance(url, str) else url
        endpoint = Endpoint(read_urls, tls=tls or Tls(), heartbeat=heartbeat)
        self._connection = Connection(endpoint, emit=emit, patient=patient)
        self._consumers: set[RecoveringConsumer] = set()
        self._publisher = Publisher(self._connection)
        self._streams = Streams(self._connection)

    @property
    def address(self) -> str:
        return self._connection.address

    @property
    def info(self) -> BrokerInfo:
        return self._connection.info

    @property
    def connected(self) -> bool:
        return self._connection.connected

    @property
    def is_blocked(self) -> bool:
        return self._connection.is_blocked

    async def __aenter__(self) -> "AmqpBroker":
        await self._connection.open()
        return self

    async def __aexit__(self, *exception: object) -> None:
        for consumer in tuple(self._consumers):
            await consumer.stop()
        await self._connection.close()

    async def declare(self, topology: Topology) -> None:
        await declare(self._connection, topology)

    async def unbind(self, bindings: Iterable[Binding]) -> None:
        await unbind(self._connection, bindings)

    async def publish(
        self,
        message: Message,
        *,
        exchange: str,
        routing_key: str,
        timeout: timedelta | None = DEFAULT_TIMEOUT,
        lane: int = 0,
    ) -> None:
        await self._publisher.publish(message, exchange, routing_key, timeout, lane)

    async def get(self, queue: str) -> Delivery | None:
        return await get(self._connection, queue)

    def browse(self, queue: str, *, limit: int) -> Browsed:
        return browsing(self._connection, queue, limit, self.depth)

    async def consume(
        self, queue: str, handler: Callable[[Delivery], None], *, prefetch: int
    ) -> AmqpConsumer:
        consumer = AmqpConsumer(self._connection, queue, handler, prefetch)
        return await consumer.start(self._consumers)

    async def follow(
        self,
        stream: str,
        handler: Callable[[Message], None],
        *,
        since: Literal["first", "next"] | int = "next",
    ) -> AmqpFollower:
        follower = AmqpFollower(self._connection, stream, handler, since)
        return await follower.start(self._consumers)

    def read(
        self, stream: str, *, since: Since = None, quiet: timedelta = DEFAULT_QUIET
    ) -> AsyncGenerator[Message]:
        return self._streams.read(stream, since=since, quiet=quiet)

    def read_to_end(
        self,
        stream: str,
        *,
        exchange: str,
        routing_key: str,
        since: Since = None,
        timeout: timedelta = DEFAULT_TIMEOUT,
    ) -> AsyncGenerator[Message]:
        async def write(mark: Message) -> None:
            with written_into(stream, exchange, routing_key):
                await self.publish(
                    mark, exchange=exchange, routing_key=routing_key, timeout=timeout
                )

        return self._streams.read_to_end(stream, write, since, timeout)

    async def last(self, stream: str) -> Message | None:
        depth = await self.depth(stream)
        return None if depth is not None and not depth.ready else await self._streams.last(stream)

    async def depth(self, queue: str) -> Depth | None:
        try:
            async with asking(self._connection) as channel:
                found = await channel.queue_declare(queue, passive=True)
        except QueueNotFound:
            return None
        return Depth(found.message_count or 0, found.consumer_count or 0)

    async def purge(self, queue: str) -> int:
        async with self._connection.brief_channel() as channel:
            return (await channel.queue_purge(queue)).message_count or 0

    async def delete(self, queue: str) -> None:
        async with self._connection.brief_channel() as channel:
            await channel.queue_delete(queue)
        session = await self._connection.ready()
        with self._connection.translated:
            await session.renew_getters()
