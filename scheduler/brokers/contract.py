"""Define a broker: the contract that `memory` and `amqp` both keep.

1. `publish` returns when the broker has confirmed the message in every queue it was routed to.
   An unroutable message raises `Unroutable`; a full queue with `reject-publish` raises `Rejected`;
   a confirmation lost with the connection, `Unconfirmed`. A message for which RabbitMQ would close
   the connection is not sent: headers that do not fit in a frame are `TooLarge`, values that no
   message can carry `Unencodable`. A body larger than the broker accepts is `TooLarge` to its
   publisher alone: other messages in flight are confirmed. A message is routed by its routing key
   alone: the headers CC and BCC of other applications travel under other names.
2. A message waits in its queue in order; if the queue has priorities, those with a higher one
   come first (in quorum queues of RabbitMQ before 4.3 not all of them). Its time to live counts
   from when it entered; it leaves by dead-lettering when it is expired *and* at the head: with its
   routing key, but without its expiration.
3. A delivery belongs to its consumer until it is acked or requeued. A requeued message is back at
   its place, in a quorum queue before all that were not requeued, whatever their priority; with its
   original expiry, and marked as redelivered.
4. A delivery whose channel or connection closes is `lost`: its message is requeued for other
   consumers, and acking it raises `DeliveryLost`.
5. A consumer holds at most `prefetch` unacked deliveries, and outlives reconnects: it consumes
   again as soon as the broker can be reached.
6. Declaring is idempotent. Declaring the same name with other arguments is `IncompatibleBroker`,
   for a queue `OtherArguments`, and changes nothing.
7. A message of a stream stays there for all readers and followers, until the stream's limits of
   age or size drop it. A stream is never full, keeps the order, and does not expire messages. It
   keeps labels, and headers that are text, numbers, bytes and truth values; it drops tables and
   lists. Each message has an offset: the n-th that came has n - 1, always.
   A follower outlives reconnects and continues after the last message that it has seen; if the
   stream was recreated, with the first. One that has seen none before a reconnect knows its place
   by the time alone: it may get some that came shortly before it began, and miss one that comes at
   the moment of the reconnect.
   `read` returns what the connected node has: it writes nothing, so it works on a broker that
   accepts no messages. In a cluster, a node may lag behind. A decision that relies on a missing
   message needs `read_to_end`, which writes a mark into the stream: a read up to the mark has
   everything that was confirmed before. Marks stay in the stream, and readers do not get them.
   `get` and `consume` are for queues: RabbitMQ closes the connection of a `get` from a stream.
8. The first consumer of a queue with `x-single-active-consumer` gets all. When it is cancelled,
   the next one may get messages after those that the first still holds; when it leaves, or its
   connection closes, the next one gets these first.
9. A missing queue or stream raises `QueueNotFound`; an operation for streams on a queue, or the
   other way round, `IncompatibleBroker`; a lost connection, `BrokerUnavailable`.
"""

import asyncio
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal, Protocol

from scheduler.errors import (
    BrokerUnavailable,
    IncompatibleBroker,
    QueueNotFound,
    StreamTooLong,
    Unroutable,
)
from scheduler.protocol.messages import Message
from scheduler.protocol.topology import Binding, Topology

EMBEDDED = "memory"
MARK_TYPE = "scheduler.barrier"
DEFAULT_TIMEOUT = timedelta(seconds=30)
IN_FLIGHT = 192
"""As many messages as a connection publishes at once without waiting, in any order."""
LONGEST_SILENCE = timedelta(seconds=10)
LOOK_EVERY = timedelta(seconds=0.5)
LOOKS = 10  # in the time that a broker may stall
BEFORE_TELLING_AGAIN = timedelta(seconds=0.5)
AS_LONG_AS_IT_TAKES = None
"""No timeout: after one, the caller would publish a duplicate."""


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """Describe the broker, and this connection to it.

    Attributes:
        user: the authenticated user.
        cluster: the name of the broker's cluster, of one node or many; empty: it sends none.
    """

    product: str
    version: str
    vhost: str = "/"
    user: str = ""
    cluster: str = ""

    @property
    def is_embedded(self) -> bool:
        """Return whether the broker is in this process."""
        return self.product == EMBEDDED


@dataclass(frozen=True, slots=True)
class Depth:
    """Count the messages and consumers of a queue."""

    ready: int
    consumers: int


@dataclass(eq=False, slots=True)
class Delivery:
    """Hold an unacked message.

    Attributes:
        redelivered: the message was delivered before and not acked.
        lost: done when the broker has requeued the message (statement 4).
        ack: acks the message.
        requeue: requeues it in its place.
    """

    message: Message
    queue: str
    exchange: str
    routing_key: str
    redelivered: bool
    lost: asyncio.Future[None]
    ack: Callable[[], Awaitable[None]] = field(repr=False)
    requeue: Callable[[], Awaitable[None]] = field(repr=False)


Since = datetime | int | None
"""The position at which to begin to read a stream."""

Browsed = AbstractAsyncContextManager[AsyncIterator[Delivery]]
"""Messages of a queue, unacked during a block."""


class Consumer(Protocol):
    """Consume the messages of one queue or stream."""

    @property
    def active(self) -> bool:
        """Return whether the broker is delivering to it now."""
        ...

    async def cancel(self) -> None:
        """Take no further deliveries. Unacked ones stay valid."""
        ...

    async def leave(self) -> None:
        """Take no further deliveries, and requeue unacked ones, all at once (statement 8)."""
        ...


class Broker(Protocol):
    """Connect to a broker, with `async with`."""

    @property
    def address(self) -> str:
        """Return the address of the broker, without its password."""
        ...

    @property
    def info(self) -> BrokerInfo: ...

    @property
    def connected(self) -> bool: ...

    @property
    def is_blocked(self) -> bool:
        """Return whether an alarm blocks this connection, because it has published."""
        ...

    @property
    def silence(self) -> timedelta:
        """Return how long the broker has sent nothing at all while a request is pending."""
        ...

    async def __aenter__(self) -> "Broker": ...

    async def __aexit__(self, *exception: object) -> None: ...

    async def alarm(self) -> str:
        """Return why the broker blocks publishers, without publishing; empty: it does not.

        For example "low on disk", in the broker's words.
        """
        ...

    async def declare(self, topology: Topology) -> None:
        """Declare everything of the topology.

        Raises:
            IncompatibleBroker: something of this name exists with other arguments.
            AccessRefused: the user may not declare.
        """
        ...

    async def unbind(self, bindings: Iterable[Binding]) -> None:
        """Remove these bindings, if they exist."""
        ...

    async def publish(
        self,
        message: Message,
        *,
        exchange: str,
        routing_key: str,
        timeout: timedelta | None = DEFAULT_TIMEOUT,
        in_order: bool = True,
    ) -> None:
        """Publish a message: persistent, mandatory, confirmed (statement 1).

        Args:
            timeout: None: no limit.
            in_order: it comes after all messages published to this exchange in order before; False:
                it may come before others, and is not held up by a slow queue of these.
        """
        ...

    async def get(self, queue: str) -> Delivery | None:
        """Get the message at the head of a queue, if one is ready."""
        ...

    def browse(self, queue: str, *, limit: int) -> Browsed:
        """Browse the messages of a queue inside the block, from its head on.

        Each stays unacked until you ack it, before you ask for the next one. After the block, all
        unacked ones are requeued, in their order, before newer messages.

        It ends when no more are ready: another reader may hold some.

        Args:
            limit: the maximum number of messages.
        """
        ...

    async def consume(
        self, queue: str, handler: Callable[[Delivery], object], *, prefetch: int
    ) -> Consumer:
        """Call the handler with each message of the queue."""
        ...

    async def follow(
        self,
        stream: str,
        handler: Callable[[Message], None],
        *,
        since: Literal["first", "next"] | int = "next",
    ) -> Consumer:
        """Call the handler with each message of a stream (statement 7).

        Needs only the right to read the stream.

        Args:
            since: where to begin: with the first message, the next that comes, or that of this
                offset. A shorter stream is followed from its first message.
        """
        ...

    def read(
        self, stream: str, *, since: Since = None, timeout: timedelta | None = None
    ) -> AsyncGenerator[Message]:
        """Read what this node has of a stream, oldest first, up to its current end.

        Needs only the right to read the stream. Nothing is written (statement 7).

        Args:
            since: skip messages from before this moment, by the broker's clock, except some that
                came shortly before; or begin at this offset. A shorter stream was recreated, and is
                read from its first message on. None: all of it.
            timeout: for the whole read, including the caller's work between messages; None: none.

        Raises:
            StreamTooLong: the timeout was over before the last message came, or no more came for
                `LONGEST_SILENCE`. A read from the offset `reached` misses nothing.
            BrokerUnavailable: no message came at all.
        """
        ...

    def read_to_end(
        self,
        stream: str,
        *,
        exchange: str,
        routing_key: str,
        since: datetime | int | None = None,
        timeout: timedelta = DEFAULT_TIMEOUT,
    ) -> AsyncGenerator[Message]:
        """Read everything that was confirmed before this call, oldest first, and a little more.

        Args:
            exchange: to publish a mark to, with the routing key, by which it gets into the stream.
            since: as for `read`.
            timeout: for the whole read, including the caller's work between messages.

        Raises:
            QueueNotFound: this exchange and routing key lead nowhere.
            AccessRefused: the user may not publish there.
            StreamTooLong: the timeout was over before the mark came, or no more messages came for
                `LONGEST_SILENCE`. A read from the offset `reached` misses nothing.
            BrokerUnavailable: no message came at all.
        """
        ...

    async def last(self, stream: str) -> Message | None:
        """Return the last message that this node has of a stream without marks.

        None: it is empty, or its first messages are only seconds old.
        """
        ...

    async def depth(self, queue: str) -> Depth | None:
        """Return the depth of the queue, or None if it does not exist.

        For a stream, the count may be seconds old and a few too high; followers do not count as
        consumers.
        """
        ...

    async def delete(self, queue: str) -> None:
        """Delete the queue and its messages."""
        ...


def total(depths: Iterable[Depth | None]) -> Depth | None:
    """Combine the depths of the queues of a task; None: none of them exists.

    Each processor consumes from all of them, so the one with the fewest consumers counts.
    """
    known = [depth for depth in depths if depth is not None]
    if not known:
        return None
    return Depth(sum(each.ready for each in known), min(each.consumers for each in known))


def new_mark() -> Message:
    """Make a mark with a unique name (statement 7)."""
    return Message(message_id=uuid.uuid4().hex, type=MARK_TYPE)


def is_mark(message: Message) -> bool:
    return message.type == MARK_TYPE


@contextmanager
def written_into(stream: str, exchange: str, routing_key: str) -> Generator[None]:
    """Raise a clear error if, inside the block, a mark was unroutable."""
    try:
        yield
    except Unroutable:
        raise QueueNotFound(
            f"Messages to the exchange {exchange!r} for {routing_key!r} do not reach the stream "
            f"{stream!r}: it does not exist, or is not bound."
        ) from None


def silent(stream: str, reached: int | None = None) -> BrokerUnavailable:
    """Make the error for a read of which no more messages come.

    Args:
        reached: the offset of the last message; None: none came.
    """
    reason = (
        f"The stream {stream!r} could not be read to its end: no more messages arrived. The "
        "broker may be busy, or the node may lag behind. Try again later."
    )
    return BrokerUnavailable(reason) if reached is None else StreamTooLong(reason, reached=reached)


def too_long(stream: str, reached: int | None) -> StreamTooLong:
    """Make the error for a read whose mark did not come in time, though messages did."""
    return StreamTooLong(
        f"The stream {stream!r} could not be read to its end in time: it holds too much.",
        reached=reached,
    )


def missing_exchange(name: str) -> IncompatibleBroker:
    """Make the error for bindings of a missing exchange of another application."""
    return IncompatibleBroker(
        f"The exchange {name!r} does not exist. A task subscribes to it: ask its owner to declare "
        "it, or name its type in subscribe= to declare it here."
    )


async def cancelled(task: asyncio.Future[Any]) -> None:
    """Cancel a task that waits for a broker, and wait for its end.

    aiormq may respond to a cancellation with the error of a channel that closes at that moment,
    from which the task recovers: so it is cancelled again.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=BEFORE_TELLING_AGAIN.total_seconds())
    if not task.cancelled():
        task.exception()  # avoids asyncio's warning about exceptions that were never retrieved


async def ready_in(broker: Broker, queue: str) -> AsyncGenerator[Delivery]:
    """Yield the ready messages of a queue until it is empty; ack each before the next.

    It browses: RabbitMQ has no `get` for a quorum queue with a single active consumer.
    """
    while (depth := await broker.depth(queue)) is not None:
        if not depth.ready and await is_empty(broker, queue):
            return
        async with broker.browse(queue, limit=max(depth.ready, 1)) as found:
            async for delivery in found:
                yield delivery


async def is_empty(broker: Broker, queue: str) -> bool:
    """Return whether a queue has no ready messages, to be asked before it is deleted.

    RabbitMQ reports a depth of 0 for a quorum queue whose leader is on a lost node, but rejects its
    consumers; 3.10 and 4.0 would delete it (tried with one node left of three).
    """
    async with broker.browse(queue, limit=1) as found:
        return not [delivery async for delivery in found]


def is_stalled(broker: Broker) -> bool:
    """Return whether a broker is silent, is not connected, or blocks this connection."""
    return broker.is_blocked or not broker.connected or broker.silence > LOOK_EVERY


@asynccontextmanager
async def unless_stalled(broker: Broker) -> AsyncGenerator[None]:
    """Interrupt the block once the broker has stalled for 30 s.

    RabbitMQ reads nothing from a connection that an alarm blocks: without a limit, a question
    would wait as long as the alarm lasts.

    Raises:
        BrokerUnavailable: the broker has stalled; the message says why.
    """
    loop, seconds = asyncio.get_running_loop(), DEFAULT_TIMEOUT.total_seconds()
    deadline = asyncio.timeout(seconds)

    def look() -> None:
        nonlocal looking
        if not (is_stalled(broker) or deadline.expired()):
            deadline.reschedule(loop.time() + seconds)
        looking = loop.call_later(seconds / LOOKS, look)

    # No task: a program may start thousands of loops at once.
    looking = loop.call_later(seconds / LOOKS, look)
    try:
        async with deadline:
            yield
    except TimeoutError:
        if not deadline.expired():
            raise
        raise BrokerUnavailable(
            f"{broker.address} has not responded for {seconds:g} s: {_why_stalled(broker)}. The "
            "operation may have taken effect; repeat it."
        ) from None
    finally:
        looking.cancel()


def _why_stalled(broker: Broker) -> str:
    if not broker.connected:
        return "there is no connection to it"
    if broker.is_blocked:
        return "a memory or disk alarm blocks it (see `rabbitmqctl status`)"
    return "it is connected, and silent; check its nodes"
