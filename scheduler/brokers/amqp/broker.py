"""RabbitMQ through aiormq: the operations of the contract, each on the channel that fits it.

The broker answers a refusal by closing the channel it came over. So publishing has a channel of its
own, each consumer has one, what is taken by `get` has one while it is in hand, and whatever may be
refused gets one to throw away.
"""

import asyncio
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from random import Random
from typing import Any, Literal, TypeVar, cast

from aiormq.abc import AbstractChannel, DeliveredMessage
from aiormq.exceptions import ChannelNotFoundEntity
from pamqp.commands import Basic
from pamqp.header import ContentHeader
from yarl import URL

from scheduler.brokers.amqp.connection import (
    Connection,
    Lease,
    Session,
    backoff,
    cancelled,
    closed,
    closing_of,
    reason_of,
)
from scheduler.brokers.amqp.tls import Tls
from scheduler.brokers.contract import (
    DEFAULT_QUIET,
    DEFAULT_TIMEOUT,
    BrokerInfo,
    Delivery,
    Depth,
    missing_exchange,
)
from scheduler.brokers.credentials import parse_url
from scheduler.errors import (
    BrokerError,
    BrokerUnavailable,
    DeliveryLost,
    IncompatibleBroker,
    Locked,
    NoReplica,
    QueueNotFound,
    TooLarge,
    Unconfirmed,
    Unroutable,
)
from scheduler.events import ConsumerInterrupted, ConsumerResumed, Emit, MessageConfirmed
from scheduler.protocol.messages import Message
from scheduler.protocol.topology import Binding, Exchange, Queue, Topology
from scheduler.timing.durations import milliseconds

dice = Random()  # not the one that a program may have seeded


D = TypeVar("D")

DECLARING = 4  # channels: more make a broker no faster
MUTEX_FIRST_POLL = 0.03
MUTEX_LAST_POLL = 0.5
FIRST_TRIES = 9
# RabbitMQ closes the connection of who consumes from a quorum queue that is just being deleted.
BEFORE_RESUMING = 0.1
FOLLOW_PREFETCH = 100
QUIET_S = 20.0
READ_PREFETCH = 500
FIRST_ENTRY = timedelta(seconds=2)  # on a busy machine it comes a second after it was asked for
RECOGNITION_S = 5.0
FRAME_OVERHEAD = 8  # what frame_max counts besides the payload
AIORMQS_MESSAGE_ID = 33  # it gives one to every message that has none


class AmqpBroker:
    """A connection to RabbitMQ.

    Args:
        url: `amqp://user:password@host:port/vhost`, or `amqps://`; or a function that is asked for
            it at each connect.
        tls: whom to trust, and what to show, where the URL is `amqps://`.
        emit: told about lost and rebuilt connections.
        patient: keep trying when the broker cannot be reached at first, instead of raising.
        heartbeat: how often both sides say that they live; a dead peer is noticed after three.
    """

    def __init__(
        self,
        url: str | Callable[[], URL],
        *,
        tls: Tls | None = None,
        emit: Emit = lambda event: None,
        patient: bool = False,
        heartbeat: timedelta = timedelta(seconds=20),
    ) -> None:
        self._connection = Connection(
            partial(parse_url, url) if isinstance(url, str) else url,
            tls=tls or Tls(),
            heartbeat=heartbeat,
            emit=emit,
            patient=patient,
        )
        self._consumers: set[StandingOrder] = set()
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
        for consumer in tuple(self._consumers):
            await consumer.stop()
        await self._connection.close()

    async def declare(self, topology: Topology) -> None:
        async with self._connection.throwaway_channel() as channel:
            for exchange in topology.exchanges:
                await _declare_exchange(channel, exchange)
        await self._over_channels(_declare_queue, topology.queues)
        await self._over_channels(_bind, topology.bindings)

    async def _over_channels(
        self, act: Callable[[AbstractChannel, D], Awaitable[None]], subjects: Sequence[D]
    ) -> None:
        """Do something to each over a few channels at once: a quorum queue takes its time."""

        async def do(mine: Sequence[D]) -> None:
            async with self._connection.throwaway_channel() as channel:
                for subject in mine:
                    await act(channel, subject)

        shares = [share for n in range(DECLARING) if (share := subjects[n::DECLARING])]
        # All to their end: aiormq is not to be interrupted.
        ended = await asyncio.gather(*map(do, shares), return_exceptions=True)
        for error in ended:
            if error is not None:
                raise error

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
        properties = _properties(message)
        self._check_size(properties, session.frame_max)
        time = asyncio.get_running_loop().time
        began = time()
        try:
            async with asyncio.timeout(seconds):
                with self._connection.translated(), session.awaiting_answer():
                    channel = await session.publisher(exchange).channel()
                    await channel.basic_publish(
                        message.body,
                        exchange=exchange,
                        routing_key=routing_key,
                        properties=properties,
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

    def _check_size(self, properties: Basic.Properties, frame_max: int) -> None:
        # RabbitMQ closes the connection of who sends a larger one; a frame_max of 0 is no limit.
        size = len(ContentHeader(properties=properties).marshal())
        size += 0 if properties.message_id else AIORMQS_MESSAGE_ID
        excess = size + FRAME_OVERHEAD - frame_max
        if frame_max and excess > 0:
            raise TooLarge(
                f"The headers and properties of the message are {size} bytes, {excess} more than "
                f"fit in a frame of {self.address}. It was not sent: put less into its headers, or "
                "raise frame_max in rabbitmq.conf.",
                excess=excess,
            )

    async def get(self, queue: str) -> Delivery | None:
        session = await self._connection.ready()
        lease = session.borrow_getter()
        try:
            with self._calling(session, lease):
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

        async with self._connection.brief_channel() as channel:
            await channel.basic_qos(prefetch_count=1)
            answer = await channel.basic_consume(queue, put_back)
            assert answer.consumer_tag is not None
            await channel.basic_cancel(answer.consumer_tag)

    async def consume(
        self, queue: str, handler: Callable[[Delivery], None], *, prefetch: int
    ) -> "AmqpConsumer":
        consumer = AmqpConsumer(self._connection, queue, handler, prefetch)
        await consumer.start(self._consumers)
        return consumer

    async def follow(
        self,
        stream: str,
        handler: Callable[[Message], None],
        *,
        since: Literal["first", "next"] = "next",
    ) -> "AmqpFollower":
        follower = AmqpFollower(self._connection, stream, handler, since)
        await follower.start(self._consumers)
        return follower

    async def read(
        self, stream: str, *, since: datetime | None = None, quiet: timedelta = DEFAULT_QUIET
    ) -> AsyncGenerator[Message]:
        async with self._connection.throwaway_channel() as channel:
            reading = Reading(channel, stream)
            await reading.start("first" if since is None else since)
            # That the stream is not empty, RabbitMQ says seconds later.
            entry = await reading.next(max(quiet, FIRST_ENTRY))
            while entry is not None:
                yield entry.message
                entry = None if reading.ends_with(entry) else await reading.next(quiet)

    async def depth(self, queue: str) -> Depth | None:
        session = await self._connection.ready()
        lease = session.borrow_getter()
        try:
            with self._calling(session, lease):
                channel = await lease.channel()
                found = await channel.queue_declare(queue, passive=True)
        except QueueNotFound:
            return None
        finally:
            session.return_getter(lease)
        return Depth(found.message_count or 0, found.consumer_count or 0)

    @contextmanager
    def _calling(self, session: Session, lease: Lease) -> Generator[None]:
        try:
            with self._connection.translated(), session.awaiting_answer():
                yield
        except asyncio.CancelledError:
            # aiormq closes the channel over which a call was cancelled, by and by.
            if (channel := lease.give_up()) is not None:
                self._connection.close_soon(channel)
            raise

    async def purge(self, queue: str) -> int:
        async with self._connection.brief_channel() as channel:
            return (await channel.queue_purge(queue)).message_count or 0

    async def delete(self, queue: str) -> None:
        async with self._connection.brief_channel() as channel:
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
        pause = MUTEX_FIRST_POLL
        while not await self._declare_exclusive(name):
            if loop.time() >= deadline:
                raise self._locked(name, timeout)
            left = max(deadline - loop.time(), 0)
            await asyncio.sleep(min(pause * dice.uniform(0.5, 1.5), left))
            pause = min(pause * 1.5, MUTEX_LAST_POLL)
        try:
            yield
        finally:
            if self.connected:  # a connection that is gone has freed it already
                with suppress(BrokerError):
                    await self.delete(name)

    async def _declare_exclusive(self, name: str) -> bool:
        try:
            async with self._connection.brief_channel() as channel:
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


@dataclass(slots=True, eq=False)
class Hand:
    """The channel that deliveries come over, and are settled on.

    Attributes:
        done: called when one of them is settled.
        held: the tags of those that are not.
        retired: no more will come.
    """

    connection: Connection
    channel: AbstractChannel
    lost: asyncio.Future[None]
    done: Callable[[], None] = lambda: None
    held: set[int] = field(default_factory=set[int])
    retired: bool = False

    def retire(self) -> None:
        """Close the channel as soon as nothing that came over it is in hand any more."""
        self.retired = True
        if not self.held:
            self.connection.close_soon(self.channel)

    def delivery(self, taken: DeliveredMessage, queue: str) -> Delivery:
        tag = taken.delivery_tag
        assert tag is not None
        self.held.add(tag)
        return Delivery(
            message=_message(taken),
            queue=queue,
            exchange=taken.exchange or "",
            routing_key=taken.routing_key or "",
            redelivered=bool(taken.redelivered),
            lost=self.lost,
            _ack=lambda: self._settle(tag, self.channel.basic_ack(tag)),
            _requeue=lambda: self._settle(tag, self.channel.basic_nack(tag, requeue=True)),
        )

    async def _settle(self, tag: int, sent: Awaitable[None]) -> None:
        try:
            with self.connection.translated():
                await sent
        except BrokerError:
            raise DeliveryLost from None
        finally:
            self.held.discard(tag)
            if self.retired and not self.held:
                self.connection.close_soon(self.channel)
            self.done()


class StandingOrder(ABC):
    """A consumer with a channel of its own: what the broker closes is opened again."""

    def __init__(self, connection: Connection, queue: str, prefetch: int) -> None:
        self._connection = connection
        self._queue = queue
        self._prefetch = prefetch
        self._hand: Hand | None = None
        self._tag: str | None = None
        self._interrupted: asyncio.Future[str] | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._orders: set[StandingOrder] = set()

    @property
    def active(self) -> bool:
        if self._tag is None or self._interrupted is None:  # it is only trying to
            return False
        return not self._interrupted.done()

    async def start(self, orders: "set[StandingOrder]") -> None:
        """Consume from now on, and be among these orders until it is cancelled."""
        await self._begin_patiently()
        self._orders = orders
        orders.add(self)
        self._keeper = asyncio.create_task(self._keep_consuming(), name=f"consume {self._queue}")

    async def cancel(self) -> None:
        await self.stop()
        if self.active and self._hand is not None and self._tag is not None:
            # A channel that is gone has cancelled it already.
            with suppress(BrokerError), self._connection.translated():
                await self._hand.channel.basic_cancel(self._tag)
        self._interrupt("cancelled")
        self._orders.discard(self)
        hand, self._hand = self._hand, None
        if hand is not None:
            hand.retire()

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
            except NoReplica as error:
                # A node that comes back has not all of them at once; and, seen on 4.3, one may
                # stay without for minutes.
                await self._connection.begin_anew(str(error))
                await asyncio.sleep(delay)
            except BrokerUnavailable:
                await asyncio.sleep(delay)
        await self._begin()

    async def _begin(self) -> None:
        interrupted: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        session = await self._connection.ready()
        with self._connection.translated():
            if self._hand is None or self._hand.channel.is_closed:
                self._hand = await self._open(session)
            self._interrupted, self._tag = interrupted, None
            answer = await self._hand.channel.basic_consume(
                self._queue, self._receiver(self._hand), arguments=self._arguments()
            )
        self._tag = answer.consumer_tag

    async def _open(self, session: Session) -> Hand:
        channel = await session.open_channel(publisher_confirms=False)
        await channel.basic_qos(prefetch_count=self._prefetch)

        hand = Hand(self._connection, channel, asyncio.get_running_loop().create_future())

        def closed(closing: asyncio.Future[Any]) -> None:
            if self._hand is hand:
                self._interrupt(reason_of(closing))
            if (hand.held or not hand.retired) and not hand.lost.done():
                hand.lost.set_result(None)

        closing_of(channel).add_done_callback(closed)
        channel.on_consumer_cancel_callbacks.add(
            lambda _: self._interrupt("the broker cancelled it")
        )
        return hand

    def _interrupt(self, reason: str) -> None:
        if self._interrupted is not None and not self._interrupted.done():
            self._interrupted.set_result(reason)

    async def _until_interrupted(self, interrupted: asyncio.Future[str]) -> bool:
        """Wait until it has to begin anew; says whether by its own doing."""
        await asyncio.wait([interrupted])
        return False

    def _receiver(self, hand: Hand) -> Callable[[DeliveredMessage], Coroutine[Any, Any, None]]:
        async def receive(taken: DeliveredMessage) -> None:
            await self._receive(hand, taken)

        return receive

    @abstractmethod
    async def _receive(self, hand: Hand, taken: DeliveredMessage) -> None: ...

    def _arguments(self) -> dict[str, Any]:
        return {}

    async def _keep_consuming(self) -> None:
        while True:
            assert self._interrupted is not None
            # Not awaited itself: to cancel this task would cancel the future too.
            planned = await self._until_interrupted(self._interrupted)
            await asyncio.sleep(BEFORE_RESUMING)
            # Of a lost connection one line is enough.
            lost_alone = self._connection.connected and not planned
            if lost_alone:
                self._connection.emit(ConsumerInterrupted(self._queue, self._interrupted.result()))
            for delay in backoff():
                with suppress(BrokerError):
                    await self._begin()
                    break
                await asyncio.sleep(delay)
            if lost_alone:
                self._connection.emit(ConsumerResumed(self._queue))


class AmqpConsumer(StandingOrder):
    """Hands over what a queue delivers, to be acked by whoever has it in hand."""

    def __init__(
        self,
        connection: Connection,
        queue: str,
        handler: Callable[[Delivery], None],
        prefetch: int,
    ) -> None:
        super().__init__(connection, queue, prefetch)
        self._handler = handler

    async def _receive(self, hand: Hand, taken: DeliveredMessage) -> None:
        self._handler(hand.delivery(taken, self._queue))


class AmqpFollower(StandingOrder):
    """Hands over what a stream holds, and knows the place where it goes on after a break.

    A stream may have been made anew meanwhile, and nothing but its entries says so. Therefore it
    goes on *at* the last entry that it has seen: if that does not come again, it is another stream.

    After a partition of a cluster (seen on 3.10), RabbitMQ may deliver no more to a consumer, and
    leave it at that. So one that has heard nothing for a while asks anew.
    """

    def __init__(
        self,
        connection: Connection,
        stream: str,
        handler: Callable[[Message], None],
        since: Literal["first", "next"],
    ) -> None:
        super().__init__(connection, stream, FOLLOW_PREFETCH)
        self._handler = handler
        self._since = since
        self._began: float | None = None
        self._last: Entry | None = None
        self._recognised: asyncio.Future[bool] | None = None

    async def _until_interrupted(self, interrupted: asyncio.Future[str]) -> bool:
        while True:
            heard = self._last
            await asyncio.wait([interrupted], timeout=QUIET_S)
            if interrupted.done():
                return False
            if self._last is heard and self._hand is not None:
                with suppress(BrokerError), self._connection.translated():
                    await closed(self._hand.channel)
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
        self._recognised = asyncio.get_running_loop().create_future() if self._last else None
        await super()._begin()
        if self._recognised and not await self._is_recognised(self._recognised):
            await self._forget()
            await super()._begin()

    async def _is_recognised(self, recognised: asyncio.Future[bool]) -> bool:
        assert self._interrupted is not None
        await asyncio.wait(
            [recognised, self._interrupted],
            timeout=RECOGNITION_S,
            return_when=asyncio.FIRST_COMPLETED,
        )
        if not recognised.done():
            # Interrupted before it could tell, it tries again.
            recognised.set_result(self._interrupted.done())
        return recognised.result()

    async def _forget(self) -> None:
        """Be as if nothing had been seen. What is still under way goes with the channel."""
        if self._hand is not None:
            await closed(self._hand.channel)
        self._hand = self._last = self._recognised = None
        self._since = "first"

    async def _receive(self, hand: Hand, taken: DeliveredMessage) -> None:
        if hand is not self._hand or self._interrupted is None or self._interrupted.done():
            return
        entry = Entry.of(taken)
        if self._is_news(entry):
            self._last = entry
            self._handler(entry.message)
        with suppress(BrokerError), self._connection.translated():
            await hand.channel.basic_ack(entry.tag)

    def _is_news(self, entry: "Entry") -> bool:
        if self._recognised is None or self._last is None:
            return True
        if not self._recognised.done():
            self._recognised.set_result(entry.continues(self._last))
        return self._recognised.result() and entry.offset > self._last.offset


class Reading:
    """A stream that is being read, over a channel of its own, up to what is written meanwhile.

    Where that begins, a second consumer tells.
    """

    def __init__(self, channel: AbstractChannel, stream: str) -> None:
        self._channel = channel
        self._stream = stream
        self._arrived: asyncio.Queue[DeliveredMessage | None] = asyncio.Queue()
        self._end: float = math.inf
        self._unacked = 0

    async def start(self, offset: str | datetime) -> None:
        def end(_: object) -> None:
            self._arrived.put_nowait(None)

        closing_of(self._channel).add_done_callback(end)
        self._channel.on_consumer_cancel_callbacks.add(end)
        await self._consume("next", 1, self._find_end)
        await self._consume(offset, READ_PREFETCH, self._arrived.put)

    async def _consume(
        self,
        offset: str | datetime,
        prefetch: int,
        use: Callable[[DeliveredMessage], Coroutine[Any, Any, None]],
    ) -> None:
        await self._channel.basic_qos(prefetch_count=prefetch)
        await self._channel.basic_consume(self._stream, use, arguments={"x-stream-offset": offset})

    async def _find_end(self, written_meanwhile: DeliveredMessage) -> None:
        self._end = min(self._end, Entry.of(written_meanwhile).offset)

    def ends_with(self, entry: "Entry") -> bool:
        """Whether what comes after this entry was not there when reading began."""
        return entry.offset + 1 >= self._end

    async def next(self, patience: timedelta) -> "Entry | None":
        """The next message, or None when none has come for so long."""
        try:
            async with asyncio.timeout(patience.total_seconds()):
                taken = await self._arrived.get()
        except TimeoutError:
            return None
        if taken is None:
            raise self._error()
        entry = Entry.of(taken)
        self._unacked += 1
        if self._unacked == READ_PREFETCH // 2:
            self._unacked = 0
            await self._channel.basic_ack(entry.tag, multiple=True)
        return entry

    def _error(self) -> BaseException:
        if not self._channel.is_closed:
            return QueueNotFound(f"The stream {self._stream!r} was deleted while it was read.")
        return closing_of(self._channel).exception() or BrokerUnavailable()


@dataclass(frozen=True, slots=True)
class Entry:
    """A message of a stream, and where it stands there."""

    message: Message
    offset: int
    tag: int

    @classmethod
    def of(cls, taken: DeliveredMessage) -> "Entry":
        headers, tag = cast(dict[str, Any], taken.header.properties.headers), taken.delivery_tag
        assert tag is not None
        offset = headers.pop("x-stream-offset")
        return cls(_message(taken), offset, tag)

    def continues(self, last: "Entry") -> bool:
        """Whether this may come in one stream where the last one was asked for.

        A later one comes when the last one was forgotten meanwhile.
        """
        if self.offset == last.offset:
            return self.message == last.message
        return self.offset > last.offset


async def _declare_queue(channel: AbstractChannel, queue: Queue) -> None:
    await channel.queue_declare(queue.name, durable=True, arguments=dict(queue.arguments))


async def _bind(channel: AbstractChannel, binding: Binding) -> None:
    bind = channel.queue_bind if binding.to == "queue" else channel.exchange_bind
    await bind(binding.destination, binding.source, binding.routing_key)


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
