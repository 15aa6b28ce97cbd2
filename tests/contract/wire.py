"""How a contract test gets at a broker, whichever it is."""

import asyncio
import uuid
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any, Generic, Literal, Self, TypeVar

import aiormq
from yarl import URL

from scheduler.brokers.amqp.broker import AmqpBroker
from scheduler.brokers.contract import Broker, Consumer, Delivery
from scheduler.brokers.memory.broker import MemoryBroker
from scheduler.brokers.memory.server import MemoryServer
from scheduler.protocol.messages import Message
from scheduler.protocol.topology import (
    UNREACHABLE_DELIVERY_LIMIT,
    Binding,
    Exchange,
    Queue,
    QueueType,
    Topology,
)
from scheduler.timing.moments import Clock, LoopClock, SystemClock
from tests.contract.proxy import Proxy
from tests.stage import START

T = TypeVar("T")

PATIENCE = 40.0
POLL = 0.005

Arguments = Mapping[str, Any]


class Wire(ABC):
    """Connections to one broker, and objects in it that no other test knows.

    Attributes:
        broker: one of the connections, for all that needs no second one.
        clock: what time it is at the broker.
    """

    broker: Broker
    clock: Clock = SystemClock()

    def __init__(self, queue_type: QueueType) -> None:
        self.queue_type: QueueType = queue_type
        self._names: list[str] = []
        self._opened = AsyncExitStack()

    @abstractmethod
    def make_broker(self) -> Broker: ...

    def make_uncut_broker(self) -> Broker:
        """One that is not cut; in this process, a cut is over before anybody can notice."""
        return self.make_broker()

    @abstractmethod
    async def cut(self) -> None:
        """Break all connections, without a goodbye."""

    @abstractmethod
    async def publish_as_others_do(self, message: Message, exchange: str, key: str) -> None:
        """Publish with the headers as they are, CC and BCC too."""

    async def connect(self) -> Broker:
        """Open a further connection; it is closed when the test is over."""
        return await self._opened.enter_async_context(self.make_broker())

    async def connect_past_cuts(self) -> Broker:
        """Open a further connection that works on while the others are cut."""
        return await self._opened.enter_async_context(self.make_uncut_broker())

    async def __aenter__(self) -> Self:
        self.broker = await self.connect()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._opened.aclose()

    def name(self, label: str) -> str:
        """A new name; what bears it is deleted when the test is over."""
        self._names.append(f"contract.{uuid.uuid4().hex[:12]}.{label}")
        return self._names[-1]

    def queue(self, arguments: Arguments | None = None) -> Queue:
        """A queue to be declared, of the type that is being tested."""
        base: dict[str, Any] = {"x-queue-type": self.queue_type}
        if self.queue_type == "quorum":
            # Without any limit, RabbitMQ 3.10 puts what was returned at the end of the queue.
            base["x-delivery-limit"] = UNREACHABLE_DELIVERY_LIMIT
        return Queue(self.name("queue"), {**base, **(arguments or {})})

    async def declare_all(self, wanted: Topology) -> None:
        """Declare a topology; it is deleted when the test is over."""
        self._names += [each.name for each in (*wanted.queues, *wanted.exchanges)]
        await self.broker.declare(wanted)

    async def declare_queue(self, arguments: Arguments | None = None) -> str:
        queue = self.queue(arguments)
        await self.broker.declare(Topology(queues=(queue,)))
        return queue.name

    async def declare_stream(self, arguments: Arguments | None = None) -> str:
        stream = Queue(self.name("stream"), {"x-queue-type": "stream", **(arguments or {})})
        await self.broker.declare(Topology(queues=(stream,)))
        return stream.name

    async def declare_exchange(
        self,
        type: Literal["topic", "fanout", "direct"] = "topic",
        bindings: Mapping[str, str] | None = None,
        arguments: Arguments | None = None,
    ) -> str:
        """Declare an exchange, with bindings from routing keys to queues."""
        exchange = Exchange(self.name("exchange"), type, dict(arguments or {}))
        bound = [Binding(exchange.name, queue, key) for key, queue in (bindings or {}).items()]
        await self.broker.declare(Topology(exchanges=(exchange,), bindings=tuple(bound)))
        return exchange.name


class MemoryWire(Wire):
    """To a broker in this process, in virtual time."""

    def __init__(self, queue_type: QueueType) -> None:
        super().__init__(queue_type)
        self.clock = LoopClock(START)
        self._server = MemoryServer(self.clock)

    def make_broker(self) -> Broker:
        return MemoryBroker(self._server)

    async def cut(self) -> None:
        self._server.disconnect_all()

    async def publish_as_others_do(self, message: Message, exchange: str, key: str) -> None:
        self._server.publish(message, exchange, key)


class RabbitWire(Wire):
    """To RabbitMQ, through a proxy."""

    def __init__(self, queue_type: QueueType, url: str) -> None:
        super().__init__(queue_type)
        self._url = URL(url)
        self._proxy = Proxy(self._url.host or "localhost", self._url.port or 5672)

    def make_broker(self) -> Broker:
        return AmqpBroker(str(self._url.with_host("127.0.0.1").with_port(self._proxy.port)))

    def make_uncut_broker(self) -> Broker:
        return AmqpBroker(str(self._url))

    async def cut(self) -> None:
        self._proxy.cut()

    async def publish_as_others_do(self, message: Message, exchange: str, key: str) -> None:
        connection = await aiormq.connect(self._url)
        channel = await connection.channel()
        properties = aiormq.spec.Basic.Properties(headers=dict(message.headers))
        await channel.basic_publish(
            message.body, exchange=exchange, routing_key=key, properties=properties
        )
        await connection.close()

    async def __aenter__(self) -> Self:
        await self._proxy.__aenter__()
        return await super().__aenter__()

    async def __aexit__(self, *exception: object) -> None:
        await super().__aexit__(*exception)
        connection = await aiormq.connect(self._url)
        channel = await connection.channel()
        for name in self._names:
            await channel.queue_delete(name)
            await channel.exchange_delete(name)
        await connection.close()
        await self._proxy.__aexit__()


class Arrivals(Generic[T]):
    """What has come, in its order."""

    def __init__(self) -> None:
        self._arrived = asyncio.Queue[T]()

    async def next(self) -> T:
        async with asyncio.timeout(PATIENCE):
            return await self._arrived.get()

    @property
    def is_empty(self) -> bool:
        return self._arrived.empty()


class Inbox(Arrivals[Delivery]):
    """A consumer that lays out what it is given."""

    consumer: Consumer

    @classmethod
    async def open(cls, broker: Broker, queue: str, *, prefetch: int = 100) -> Self:
        inbox = cls()
        inbox.consumer = await broker.consume(queue, inbox._arrived.put_nowait, prefetch=prefetch)
        return inbox

    async def bodies(self, count: int) -> list[bytes]:
        """Take and ack that many messages."""
        bodies: list[bytes] = []
        for _ in range(count):
            delivery = await self.next()
            bodies.append(delivery.message.body)
            await delivery.ack()
        return bodies


class Reader(Arrivals[Message]):
    """A follower of a stream that lays out what it is given."""

    follower: Consumer

    @classmethod
    async def open(
        cls, broker: Broker, stream: str, *, since: Literal["first", "next"] | int = "next"
    ) -> Self:
        reader = cls()
        reader.follower = await broker.follow(stream, reader._arrived.put_nowait, since=since)
        return reader

    async def bodies(self, count: int) -> list[bytes]:
        """The next so many messages."""
        return [(await self.next()).body for _ in range(count)]


async def send(
    broker: Broker, queue: str, *bodies: bytes, expires_in_ms: int | None = None
) -> None:
    """Publish straight into a queue."""
    expiration = None if expires_in_ms is None else timedelta(milliseconds=expires_in_ms)
    for body in bodies:
        message = Message(body, expiration=expiration)
        await broker.publish(message, exchange="", routing_key=queue)


async def take(broker: Broker, queue: str) -> Delivery:
    """The message at the head of the queue; waits until there is one."""
    return await eventually(lambda: broker.get(queue))


async def take_all(broker: Broker, queue: str, count: int) -> list[bytes]:
    """Take and ack that many messages, and see that there are no more."""
    bodies: list[bytes] = []
    for _ in range(count):
        delivery = await take(broker, queue)
        bodies.append(delivery.message.body)
        await delivery.ack()
    assert await broker.get(queue) is None
    return bodies


async def has_depth(
    broker: Broker, queue: str, *, ready: int, consumers: int | None = None
) -> None:
    """Wait until the queue is that full: a broker does not say when a requeue is done."""

    async def reached() -> bool:
        depth = await broker.depth(queue)
        assert depth
        return depth.ready == ready and consumers in (None, depth.consumers)

    await eventually(reached)


async def until(condition: Callable[[], object]) -> None:
    """Wait until something is so, of which no event tells."""

    async def is_so() -> bool:
        return bool(condition())

    await eventually(is_so)


async def eventually(attempt: Callable[[], Awaitable[T | None]], seconds: float = PATIENCE) -> T:
    """Try until there is a result, for what no event is told of."""
    async with asyncio.timeout(seconds):
        while True:
            if result := await attempt():
                return result
            await asyncio.sleep(POLL)
