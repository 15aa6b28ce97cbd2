"""Implement the broker contract on RabbitMQ, each operation on a suitable channel.

RabbitMQ responds to an error by closing the channel. So publishing has a channel of its own, each
consumer has one, a message taken by `get` keeps its channel until it is settled, and an operation
that may be refused gets a disposable one.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Literal, TypeVar
from uuid import uuid4

from aiormq.abc import AbstractChannel
from aiormq.exceptions import ChannelNotFoundEntity
from yarl import URL

from scheduler.brokers.amqp import streams
from scheduler.brokers.amqp.browsing import Browsing
from scheduler.brokers.amqp.connection import Connection, Endpoint
from scheduler.brokers.amqp.consumers import AmqpConsumer, DeliveryChannel
from scheduler.brokers.amqp.frames import RawMessage
from scheduler.brokers.amqp.session import Session
from scheduler.brokers.contract import (
    DEFAULT_TIMEOUT,
    Browsed,
    Delivery,
    Since,
    missing_exchange,
    written_into,
)
from scheduler.brokers.credentials import Tls, parse_urls
from scheduler.brokers.properties import check_body, check_size, encoded, encoded_key, short_string
from scheduler.errors import (
    ConfirmationTimeout,
    IncompatibleBroker,
    QueueNotFound,
    TooLarge,
    Unconfirmed,
    Unroutable,
)
from scheduler.events import Emit, MessageConfirmed, QueueDeclared
from scheduler.protocol.messages import Message
from scheduler.protocol.topology import Binding, Exchange, Queue, Topology

D = TypeVar("D")

# A quorum queue is slow to declare; more at once make a broker no faster.
DECLARING_CHANNELS = 16
SURELY_ACCEPTED = 64 * 1024
"""The body size above which a message has a channel of its own, until the broker's limit is known.

The broker closes the channel of a body larger than its max_message_size, and reports this limit
only then.
"""


class AmqpBroker(Connection):
    """Connect to RabbitMQ.

    Args:
        url: `amqp://user:password@host:port/vhost`, or `amqps://`; for a cluster, several,
            separated by commas; or a function that returns them at each connect.
        tls: the certificates for `amqps://`.
        emit: called with events about lost and restored connections.
        patient: keep trying if the broker cannot be reached at first, instead of raising.
        heartbeat: the interval of heartbeats; a dead peer is noticed after three.
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
        super().__init__(endpoint, emit=emit, patient=patient)
        self._consumers: set[AmqpConsumer] = set()

    async def __aenter__(self) -> "AmqpBroker":
        await self.open()
        return self

    async def __aexit__(self, *exception: object) -> None:
        for consumer in tuple(self._consumers):
            await consumer.stop()
        await self.close()

    async def declare(self, topology: Topology) -> None:
        if topology.exchanges:
            # In order: a subscription may name an exchange that an earlier one declares.
            async with self.lease(at_once=False) as lease:
                for exchange in topology.exchanges:
                    await _declare_exchange(await lease.channel(), exchange)

        async def declare_queue(channel: AbstractChannel, queue: Queue) -> None:
            await channel.queue_declare(queue.name, durable=True, arguments=dict(queue.arguments))
            self.emit(QueueDeclared(queue.name))

        await self._over_channels(declare_queue, topology.queues)
        await self._over_channels(partial(_change, "bind"), topology.bindings)

    async def unbind(self, bindings: Iterable[Binding]) -> None:
        await self._over_channels(partial(_change, "unbind"), tuple(bindings))

    async def publish(
        self,
        message: Message,
        *,
        exchange: str,
        routing_key: str,
        timeout: timedelta | None = DEFAULT_TIMEOUT,
        in_order: bool = True,
    ) -> None:
        key = encoded_key(routing_key)
        if timeout is None:
            session = await self.ready(None)
            return await self._publish(session, message, exchange, routing_key, key, in_order)
        end = asyncio.get_running_loop().time() + timeout.total_seconds()
        session = await self.ready(timeout)
        try:
            async with asyncio.timeout_at(end):
                await self._publish(session, message, exchange, routing_key, key, in_order)
        except TimeoutError:
            alarm = ": a memory or disk alarm blocks it" if self.is_blocked else ""
            raise ConfirmationTimeout(
                f"{self.address} did not confirm a message within "
                f"{timeout.total_seconds():.3g} s{alarm}. The message may or may not be queued."
            ) from None

    async def get(self, queue: str) -> Delivery | None:
        async with self.lease() as lease:
            channel = await lease.channel()
            raw = await channel.get(queue)
            if raw is None or lease.lost is None:
                return None
            lease.is_kept = True
        deliveries = DeliveryChannel(self, channel, lease.lost, lease.release)
        return deliveries.delivery(raw, queue)

    def browse(self, queue: str, *, limit: int) -> Browsed:
        return Browsing(self, queue, limit)

    async def consume(
        self, queue: str, handler: Callable[[Delivery], object], *, prefetch: int
    ) -> AmqpConsumer:
        def receive(deliveries: DeliveryChannel, raw: RawMessage) -> None:
            handler(deliveries.delivery(raw, queue))

        consumer = AmqpConsumer(self, queue, prefetch, receive)
        return await consumer.start(self._consumers)

    async def follow(
        self,
        stream: str,
        handler: Callable[[Message], None],
        *,
        since: Literal["first", "next"] | int = "next",
    ) -> streams.AmqpFollower:
        follower = streams.AmqpFollower(self, stream, handler, since)
        return await follower.start(self._consumers)

    def read(
        self, stream: str, *, since: Since = None, timeout: timedelta | None = None
    ) -> AsyncGenerator[Message]:
        return streams.read(self, stream, since, timeout)

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

        return streams.read_to_end(self, stream, write, since, timeout)

    async def last(self, stream: str) -> Message | None:
        depth = await self.depth(stream)
        if depth is not None and not depth.ready:
            return None
        return await streams.last(self, stream)

    async def delete(self, queue: str) -> None:
        session = await self.ready()
        with session.awaiting_answer(), self.translated:
            async with session.lone_channel() as channel:
                await channel.queue_delete(queue)
        session = await self.ready()
        with self.translated:
            await session.renew_getters()

    async def _publish(
        self,
        session: Session,
        message: Message,
        exchange: str,
        routing_key: str,
        key: bytes,
        in_order: bool,
    ) -> None:
        time = session.connection.loop.time
        began = time()
        message_id = message.message_id
        if message_id is None:  # identifies a returned message
            message_id = str(uuid4())
            message = replace(message, message_id=message_id)
        properties = encoded(message)
        address, body, place = self.address, message.body, f"{exchange} ({routing_key})"
        check_size(properties, session.frame_max, address)
        check_body(body, session.largest_body, place, address)
        sent = body, properties, short_string(exchange, "The exchange"), key, message_id
        try:
            with self.translated, session.awaiting_answer():
                if len(body) > SURELY_ACCEPTED and session.largest_body is None:
                    async with session.large, session.lone_channel(publisher_confirms=True) as own:
                        await own.publish(*sent)
                else:
                    lane = session.publisher(exchange, in_order=in_order)
                    lane.in_flight += 1
                    try:
                        if (channel := lane.usable) is None:
                            for spare in session.spare_publishers():
                                self.close_soon(spare)
                            channel = await lane.channel()
                        await channel.publish(*sent)
                    finally:
                        lane.in_flight -= 1
        except TooLarge as error:
            session.largest_body = error.limit
            check_body(body, error.limit, place, address)
            raise Unconfirmed(str(error)) from None  # caused by another message of this channel
        except QueueNotFound:
            raise Unroutable(f"The exchange {exchange!r} does not exist in {address}.") from None
        except IncompatibleBroker as error:
            # One message closed the channel: this one, or another one in flight.
            raise Unconfirmed(str(error)) from None
        self.emit(MessageConfirmed(exchange, timedelta(seconds=time() - began)))

    async def _over_channels(
        self, act: Callable[[AbstractChannel, D], Awaitable[None]], subjects: Sequence[D]
    ) -> None:
        """Run an operation on each item, over a few channels at once."""

        async def do(mine: Sequence[D]) -> None:
            async with self.lease(at_once=False) as lease:
                channel = await lease.channel()
                for subject in mine:
                    await act(channel, subject)

        shares = [
            share for n in range(DECLARING_CHANNELS) if (share := subjects[n::DECLARING_CHANNELS])
        ]
        # All run to the end: aiormq must not be interrupted.
        for error in await asyncio.gather(*map(do, shares), return_exceptions=True):
            if error is not None:
                raise error


async def _change(
    how: Literal["bind", "unbind"], channel: AbstractChannel, binding: Binding
) -> None:
    act, arguments = getattr(channel, f"{binding.to}_{how}"), dict(binding.arguments)
    await act(binding.destination, binding.source, binding.routing_key, arguments=arguments)


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
