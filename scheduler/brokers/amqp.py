"""RabbitMQ through aiormq: the operations of the contract, each on the channel that fits it.

The broker answers a refusal by closing the channel it came over. So publishing has a channel of its
own, each consumer has one, what is taken by `get` has one while it is in hand, and whatever may be
refused gets one to throw away.
"""

import asyncio
import itertools
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

from aiormq.abc import AbstractChannel, DeliveredMessage
from aiormq.exceptions import ChannelNotFoundEntity
from pamqp.commands import Basic

from scheduler.brokers import DEFAULT_TIMEOUT, BrokerInfo, Delivery, Depth, missing_exchange
from scheduler.brokers.connection import (
    Connection,
    Session,
    backoff,
    cancelled,
    closing_of,
    lost_with,
    parse_url,
    reason_of,
)
from scheduler.durations import milliseconds
from scheduler.errors import (
    BrokerError,
    DeliveryLost,
    IncompatibleBroker,
    Locked,
    QueueNotFound,
    Unconfirmed,
    Unroutable,
)
from scheduler.events import ConsumerInterrupted, ConsumerResumed, Emit, MessageConfirmed
from scheduler.messages import Message
from scheduler.topology import Exchange, Topology

MUTEX_POLL = 0.03
FIRST_TRIES = 5


class AmqpBroker:
    """A connection to RabbitMQ.

    Args:
        url: `amqp://user:password@host:port/vhost`, or `amqps://`.
        emit: told about lost and rebuilt connections.
        patient: keep trying when the broker cannot be reached at first, instead of raising.
        heartbeat: how often both sides say that they live; a dead peer is noticed after three.
    """

    def __init__(
        self,
        url: str,
        *,
        emit: Emit = lambda event: None,
        patient: bool = False,
        heartbeat: timedelta = timedelta(seconds=20),
    ) -> None:
        self._connection = Connection(
            parse_url(url, heartbeat=heartbeat), emit=emit, patient=patient
        )
        self._consumers: set[AmqpConsumer] = set()
        self._local_locks: dict[str, asyncio.Lock] = {}

    @property
    def address(self) -> str:
        return self._connection.address

    @property
    def info(self) -> BrokerInfo:
        return self._connection.info

    @property
    def connected(self) -> bool:
        return self._connection.connected

    async def __aenter__(self) -> "AmqpBroker":
        await self._connection.open()
        return self

    async def __aexit__(self, *exception: object) -> None:
        for consumer in self._consumers:
            await consumer.stop()
        await self._connection.close()

    async def declare(self, topology: Topology) -> None:
        async with self._connection.throwaway_channel() as channel:
            for exchange in topology.exchanges:
                await _declare_exchange(channel, exchange)
            for queue in topology.queues:
                await channel.queue_declare(
                    queue.name, durable=True, arguments=dict(queue.arguments)
                )
            for binding in topology.bindings:
                bind = channel.queue_bind if binding.to == "queue" else channel.exchange_bind
                await bind(binding.destination, binding.source, binding.routing_key)

    async def publish(
        self,
        message: Message,
        *,
        exchange: str,
        routing_key: str,
        timeout: timedelta = DEFAULT_TIMEOUT,
    ) -> None:
        seconds = timeout.total_seconds()
        session = await self._connection.ready(timeout)
        time = asyncio.get_running_loop().time
        began = time()
        try:
            async with asyncio.timeout(seconds):
                with self._connection.translated():
                    channel = await session.publisher(exchange).channel()
                    await channel.basic_publish(
                        message.body,
                        exchange=exchange,
                        routing_key=routing_key,
                        properties=_properties(message),
                        mandatory=True,
                    )
        except TimeoutError:
            raise Unconfirmed(
                f"{self.address} did not confirm a message within {seconds:g} s: it may be blocked "
                "by a memory or disk alarm. The message may or may not have been taken."
            ) from None
        except QueueNotFound:
            raise Unroutable(
                f"The exchange {exchange!r} does not exist in {self.address}."
            ) from None
        except IncompatibleBroker as error:
            # The channel was closed because of one message: this one, or another one beside it.
            raise Unconfirmed(str(error)) from None
        self._connection.emit(MessageConfirmed(exchange, timedelta(seconds=time() - began)))

    async def get(self, queue: str) -> Delivery | None:
        session = await self._connection.ready()
        lease = session.borrow_getter()
        try:
            with self._connection.translated():
                channel = await lease.channel()
                taken = await channel.basic_get(queue)
        except BaseException:
            session.return_getter(lease)
            raise
        if isinstance(taken.delivery, Basic.GetEmpty):
            session.return_getter(lease)
            return None
        assert lease.lost is not None
        hand = Hand(self._connection, channel, lease.lost, lambda: session.return_getter(lease))
        return hand.delivery(taken, queue)

    async def wake(self, queue: str) -> None:
        async def put_back(_: DeliveredMessage) -> None:
            """What comes goes back when the channel is closed."""

        async with self._connection.throwaway_channel() as channel:
            await channel.basic_qos(prefetch_count=1)
            answer = await channel.basic_consume(queue, put_back)
            assert answer.consumer_tag is not None
            await channel.basic_cancel(answer.consumer_tag)

    async def consume(
        self, queue: str, handler: Callable[[Delivery], None], *, prefetch: int
    ) -> "AmqpConsumer":
        consumer = AmqpConsumer(self._connection, queue, handler, prefetch)
        await consumer.start()
        self._consumers.add(consumer)
        return consumer

    async def depth(self, queue: str) -> Depth | None:
        try:
            async with self._connection.throwaway_channel() as channel:
                found = await channel.queue_declare(queue, passive=True)
        except QueueNotFound:
            return None
        return Depth(found.message_count or 0, found.consumer_count or 0)

    async def purge(self, queue: str) -> int:
        async with self._connection.throwaway_channel() as channel:
            return (await channel.queue_purge(queue)).message_count or 0

    async def delete(self, queue: str) -> None:
        async with self._connection.throwaway_channel() as channel:
            await channel.queue_delete(queue)

    @asynccontextmanager
    async def mutex(
        self, name: str, *, timeout: timedelta = DEFAULT_TIMEOUT
    ) -> AsyncGenerator[None]:
        # The broker lets one connection declare its exclusive queue twice, so tasks of one process
        # take turns before the process does.
        local = self._local_locks.setdefault(name, asyncio.Lock())
        try:
            async with asyncio.timeout(timeout.total_seconds()):
                await local.acquire()
        except TimeoutError:
            raise self._locked(name, timeout) from None
        try:
            async with self._exclusive_queue(name, timeout):
                yield
        finally:
            local.release()

    @asynccontextmanager
    async def _exclusive_queue(self, name: str, timeout: timedelta) -> AsyncGenerator[None]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout.total_seconds()
        while not await self._declare_exclusive(name):
            if loop.time() >= deadline:
                raise self._locked(name, timeout)
            await asyncio.sleep(MUTEX_POLL * random.uniform(0.5, 1.5))
        try:
            yield
        finally:
            if self.connected:  # a connection that is gone has freed it already
                with suppress(BrokerError):
                    await self.delete(name)

    async def _declare_exclusive(self, name: str) -> bool:
        try:
            async with self._connection.throwaway_channel() as channel:
                await channel.queue_declare(
                    name, exclusive=True, arguments={"x-queue-type": "classic"}
                )
        except Locked:
            return False
        return True

    def _locked(self, name: str, timeout: timedelta) -> Locked:
        return Locked(
            f"Somebody else held the lock {name!r} of {self.address} for "
            f"{timeout.total_seconds():g} s. Nothing was changed; try again."
        )


@dataclass(frozen=True, slots=True)
class Hand:
    """The channel that deliveries come over, and are settled on."""

    connection: Connection
    channel: AbstractChannel
    lost: asyncio.Future[None]
    done: Callable[[], None] = lambda: None

    def delivery(self, taken: DeliveredMessage, queue: str) -> Delivery:
        tag = taken.delivery_tag
        assert tag is not None
        return Delivery(
            message=_message(taken),
            queue=queue,
            exchange=taken.exchange or "",
            routing_key=taken.routing_key or "",
            redelivered=bool(taken.redelivered),
            lost=self.lost,
            _ack=lambda: self._settle(self.channel.basic_ack(tag)),
            _requeue=lambda: self._settle(self.channel.basic_nack(tag, requeue=True)),
        )

    async def _settle(self, sent: Awaitable[None]) -> None:
        try:
            with self.connection.translated():
                await sent
        except BrokerError:
            raise DeliveryLost from None
        finally:
            self.done()


class AmqpConsumer:
    """A consumer with a channel of its own: what the broker closes is opened again."""

    def __init__(
        self,
        connection: Connection,
        queue: str,
        handler: Callable[[Delivery], None],
        prefetch: int,
    ) -> None:
        self._connection = connection
        self._queue = queue
        self._handler = handler
        self._prefetch = prefetch
        self._hand: Hand | None = None
        self._tag: str | None = None
        self._interrupted: asyncio.Future[str] | None = None
        self._keeper: asyncio.Task[None] | None = None

    @property
    def active(self) -> bool:
        if self._tag is None or self._interrupted is None:  # it is only trying to
            return False
        return not self._interrupted.done()

    async def start(self) -> None:
        """Consume from now on."""
        await self._begin_patiently()
        self._keeper = asyncio.create_task(self._keep_consuming(), name=f"consume {self._queue}")

    async def cancel(self) -> None:
        await self.stop()
        if self.active and self._hand is not None and self._tag is not None:
            # A channel that is gone has cancelled it already.
            with suppress(BrokerError), self._connection.translated():
                await self._hand.channel.basic_cancel(self._tag)
        self._interrupt("cancelled")

    async def stop(self) -> None:
        """Do not consume again, once interrupted."""
        if self._keeper is not None:
            await cancelled(self._keeper)

    async def _begin_patiently(self) -> None:
        # RabbitMQ closes the connection of who consumes from a quorum queue that is just being
        # declared.
        for delay in itertools.islice(backoff(), FIRST_TRIES):
            try:
                return await self._begin()
            except Unconfirmed:
                await asyncio.sleep(delay)
        await self._begin()

    async def _begin(self) -> None:
        interrupted: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        session = await self._connection.ready()
        with self._connection.translated():
            if self._hand is None or self._hand.channel.is_closed:
                self._hand = await self._open(session)
            self._interrupted, self._tag = interrupted, None
            answer = await self._hand.channel.basic_consume(self._queue, self._receiver(self._hand))
        self._tag = answer.consumer_tag

    async def _open(self, session: Session) -> Hand:
        channel = await session.open_channel(publisher_confirms=False)
        await channel.basic_qos(prefetch_count=self._prefetch)

        def closed(closing: asyncio.Future[Any]) -> None:
            if self._hand is not None and self._hand.channel is channel:
                self._interrupt(reason_of(closing))

        closing_of(channel).add_done_callback(closed)
        channel.on_consumer_cancel_callbacks.add(
            lambda _: self._interrupt("the broker cancelled it")
        )
        return Hand(self._connection, channel, lost_with(channel))

    def _interrupt(self, reason: str) -> None:
        if self._interrupted is not None and not self._interrupted.done():
            self._interrupted.set_result(reason)

    def _receiver(self, hand: Hand) -> Callable[[DeliveredMessage], Coroutine[Any, Any, None]]:
        async def receive(taken: DeliveredMessage) -> None:
            self._handler(hand.delivery(taken, self._queue))

        return receive

    async def _keep_consuming(self) -> None:
        while True:
            assert self._interrupted is not None
            # Not awaited itself: to cancel this task would cancel the future too.
            await asyncio.wait([self._interrupted])
            self._connection.emit(ConsumerInterrupted(self._queue, self._interrupted.result()))
            for delay in backoff():
                # Not at once: RabbitMQ closes the connection of who consumes from a quorum queue
                # that is just being deleted.
                await asyncio.sleep(delay)
                with suppress(BrokerError):
                    await self._begin()
                    break
            self._connection.emit(ConsumerResumed(self._queue))


async def _declare_exchange(channel: AbstractChannel, exchange: Exchange) -> None:
    try:
        await channel.exchange_declare(
            exchange.name,
            exchange_type=exchange.type,
            passive=exchange.passive,
            durable=True,
            arguments=dict(exchange.arguments),
        )
    except ChannelNotFoundEntity:
        raise missing_exchange(exchange.name) from None


def _properties(message: Message) -> Basic.Properties:
    expiration = message.expiration
    return Basic.Properties(
        content_type=message.content_type,
        headers=dict(message.headers),
        delivery_mode=2,
        priority=message.priority,
        correlation_id=message.correlation_id,
        expiration=None if expiration is None else str(milliseconds(expiration)),
        message_id=message.message_id,
        timestamp=message.timestamp,
        message_type=message.type,
        content_encoding=message.content_encoding,
        reply_to=message.reply_to,
        app_id=message.app_id,
    )


def _message(taken: DeliveredMessage) -> Message:
    properties = taken.header.properties
    return Message(
        body=taken.body,
        headers=_encodable(dict(properties.headers or {})),
        content_type=properties.content_type,
        message_id=properties.message_id,
        correlation_id=properties.correlation_id,
        type=properties.message_type,
        priority=properties.priority,
        timestamp=properties.timestamp,
        expiration=_expiration(properties.expiration),
        content_encoding=properties.content_encoding,
        reply_to=properties.reply_to,
        app_id=properties.app_id,
    )


def _encodable(value: Any) -> Any:
    """What pamqp decoded, so that it can encode it again: text that is not UTF-8 comes as bytes."""
    match value:
        case bytes():
            return bytearray(value)
        case dict():
            return {name: _encodable(each) for name, each in cast(Any, value).items()}
        case list():
            return [_encodable(each) for each in cast(Any, value)]
        case _:
            return value


def _expiration(text: str | None) -> timedelta | None:
    # A foreign publisher may have written anything here; the broker has honoured it already.
    return timedelta(milliseconds=int(text)) if text and text.isdecimal() else None
