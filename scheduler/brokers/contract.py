"""What a broker is: the contract that `memory` and `amqp` both keep.

1. `publish` returns when the broker has confirmed the message in every queue it was routed to.
   What no queue is bound for is `Unroutable`; what a full queue with `reject-publish` refuses is
   `Rejected`; an answer that the connection took with it is `Unconfirmed`. What RabbitMQ would
   close the connection for is not sent: headers that do not fit in a frame are `TooLarge`, what no
   message can carry is `Unencodable`. A body that is larger than the broker accepts is `TooLarge`
   to its publisher alone: messages beside it are confirmed. A message goes by its routing key
   alone: where others name more queues, in the headers CC and BCC, these travel under other names.
2. A message waits in its queue in order; where the queue has priorities, those with a higher one
   come first (in quorum queues of RabbitMQ before 4.3 not all of them). Its time to live counts
   from when it entered; it leaves by dead-lettering when it is expired *and* at the head: with its
   routing key, but without its expiration.
3. A delivery belongs to whoever holds it until it is acked or requeued. Requeued, it is back at its
   place, with its original expiry, and marked as redelivered.
4. A delivery whose channel or connection goes is `lost`: its message is back in the queue for
   somebody else, and acking it raises `DeliveryLost`.
5. A consumer holds at most `prefetch` unacked deliveries, and outlives reconnects: it is
   consuming again as soon as the broker can be reached.
6. Declaring is idempotent. Declaring the same name with other arguments is `IncompatibleBroker`,
   of a queue `OtherArguments`, and changes nothing.
7. What is published to a stream stays there for all who read or follow it, until it is too old or
   too much. A stream is never full; what it holds keeps its order, and does not expire. It keeps
   labels, and headers that are text, numbers, bytes and truth values; it drops tables and lists.
   Each message of it that is handed out says its offset: the n-th that came has n - 1, for ever.
   A follower outlives reconnects and goes on after the last message that it has seen; where the
   stream was deleted and declared anew, with the first. One that has seen none before a reconnect
   knows its place by the time alone: it may get some that came shortly before it began, and miss
   one that comes in the very moment in which it is back.
   Who only looks reads what the node has that the connection leads to (`read`): nothing is written
   for that, so that a broker which accepts no messages answers. Of a cluster, a node may lag
   behind. So who decides by what it has not found writes a mark into the stream (`read_to_end`):
   who has read as far as to that has read all that was confirmed before. Marks stay there, and
   nobody is handed one.
   `get` and `consume` are for queues: RabbitMQ answers a `get` of a stream by closing the
   connection.
8. Of a queue with `x-single-active-consumer`, the first consumer gets all. When it is cancelled,
   the next one may get what comes after the deliveries that the first still holds; when it leaves,
   or its connection goes, the next one gets these first.
9. What names a queue or a stream that is not there raises `QueueNotFound`; what is for a stream and
   names a queue, or the other way round, `IncompatibleBroker`; what the connection goes in the
   middle of, `BrokerUnavailable`.
"""

import asyncio
import uuid
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
)
from contextlib import AbstractAsyncContextManager, contextmanager
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
LONGEST_SILENCE = timedelta(seconds=10)
BEFORE_TELLING_AGAIN = timedelta(seconds=0.5)
AS_LONG_AS_IT_TAKES = None
"""For what must not be given up: published again, it would be there twice."""


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """Who is at the other end, and what we are there.

    Attributes:
        user: whom the broker takes us for.
        cluster: the name of the broker's cluster, of one node or many; empty: it sends none.
    """

    product: str
    version: str
    vhost: str = "/"
    user: str = ""
    cluster: str = ""

    @property
    def is_embedded(self) -> bool:
        """Whether the broker is in this process."""
        return self.product == EMBEDDED


@dataclass(frozen=True, slots=True)
class Depth:
    """How full a queue is."""

    ready: int
    consumers: int


@dataclass(eq=False, slots=True)
class Delivery:
    """A message in hand.

    Attributes:
        redelivered: somebody had this message before and did not ack it.
        lost: done when the broker has taken the message back (statement 4).
    """

    message: Message
    queue: str
    exchange: str
    routing_key: str
    redelivered: bool
    lost: asyncio.Future[None]
    _ack: Callable[[], Awaitable[None]] = field(repr=False)
    _requeue: Callable[[], Awaitable[None]] = field(repr=False)

    async def ack(self) -> None:
        """Tell the broker that the message is done with (statement 4)."""
        await self._ack()

    async def requeue(self) -> None:
        """Put the message back in its place (statement 4)."""
        await self._requeue()


Since = datetime | int | None
"""From where on to read a stream."""

Browsed = AbstractAsyncContextManager[AsyncIterator[Delivery]]
"""Messages of a queue, in hand for as long as a block takes."""


class Consumer(Protocol):
    """A subscription to the messages of one queue or stream."""

    @property
    def active(self) -> bool:
        """Whether the broker is delivering to it now."""
        ...

    async def cancel(self) -> None:
        """Take no further deliveries. Those in hand stay valid."""
        ...

    async def leave(self) -> None:
        """Take no further deliveries, and give back those in hand, all at once (statement 8)."""
        ...


class Broker(Protocol):
    """A connection to a broker. Open it with `async with`."""

    @property
    def address(self) -> str:
        """Where the broker is, without its password."""
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
        """For how long the broker has sent nothing at all, though an answer is waited for."""
        ...

    async def __aenter__(self) -> "Broker": ...

    async def __aexit__(self, *exception: object) -> None: ...

    async def alarm(self) -> str:
        """Ask whether the broker accepts messages, without publishing any.

        Returns:
            Why it blocks publishers, as it says: "low on disk"; empty: it does not.
        """
        ...

    async def declare(self, topology: Topology) -> None:
        """Make everything of the topology exist.

        Raises:
            IncompatibleBroker: something of this name exists with other arguments.
            AccessRefused: the user may not declare.
        """
        ...

    async def unbind(self, bindings: Iterable[Binding]) -> None:
        """Have nothing more come to queues by these bindings, be they there or not."""
        ...

    async def publish(
        self,
        message: Message,
        *,
        exchange: str,
        routing_key: str,
        timeout: timedelta | None = DEFAULT_TIMEOUT,
        lane: int = 0,
    ) -> None:
        """Hand a message over: persistent, mandatory, confirmed (statement 1).

        Args:
            timeout: None: as long as it takes.
            lane: messages of one lane keep their order; a slow queue holds up one lane alone.
        """
        ...

    async def get(self, queue: str) -> Delivery | None:
        """Take the message at the head of a queue, if one is ready."""
        ...

    def browse(self, queue: str, *, limit: int) -> Browsed:
        """Inside the block, the messages of a queue, from its head on, however many they are.

        Each stays in hand until it is acked, which is done before the next one is asked for. After
        the block, all that were not acked are back, in their order, before what came meanwhile.

        It ends when no more are ready: somebody else may have some in hand.

        Args:
            limit: it ends after so many.
        """
        ...

    async def consume(
        self, queue: str, handler: Callable[[Delivery], object], *, prefetch: int
    ) -> Consumer:
        """Have the handler called with each message of the queue."""
        ...

    async def follow(
        self,
        stream: str,
        handler: Callable[[Message], None],
        *,
        since: Literal["first", "next"] | int = "next",
    ) -> Consumer:
        """Have the handler called with each message of a stream (statement 7).

        Needs no right but to read the stream.

        Args:
            since: where to begin: with the first message, the next that comes, or that of this
                offset. A stream that does not reach so far is followed from its first.
        """
        ...

    def read(
        self, stream: str, *, since: Since = None, timeout: timedelta | None = None
    ) -> AsyncGenerator[Message]:
        """Read what this node has of a stream, oldest first, to the end that it has now.

        Needs no right but to read the stream. Nothing is written (statement 7).

        Args:
            since: without what came before this moment, by the broker's clock, but for some that
                came shortly before; or from the message with this offset on. Where the stream does
                not reach so far, it was made anew, and is read from its first message on. None:
                all of it.
            timeout: for the whole of it, with all that is done between two messages; None: none.

        Raises:
            StreamTooLong: the timeout was over before the last message came. Who reads on from
                where it was reached, leaves nothing out.
            BrokerUnavailable: nothing more came, for `LONGEST_SILENCE` or until the timeout.
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
        """All that was confirmed before this was asked for, oldest first; of the rest, a little.

        Args:
            exchange: to publish a mark to, with the routing key, by which it gets into the stream.
            since: as for `read`.
            timeout: for the whole of it, with all that is done between two messages.

        Raises:
            QueueNotFound: nothing gets anywhere by this exchange and routing key, either.
            AccessRefused: the user may not publish there.
            StreamTooLong: the timeout was over before the mark came. Who reads on from where it
                was reached, leaves nothing out.
            BrokerUnavailable: nothing at all came, for `LONGEST_SILENCE` or until the timeout.
        """
        ...

    async def last(self, stream: str) -> Message | None:
        """The last message that this node has of a stream that no marks are written into.

        None: it holds none, or its first ones came only seconds ago.
        """
        ...

    async def depth(self, queue: str) -> Depth | None:
        """How full the queue is, or None when it does not exist.

        Of a stream, the count may be seconds old and a few too high; a follower is no consumer.
        """
        ...

    async def delete(self, queue: str) -> None:
        """Delete the queue with all that is in it."""
        ...


def new_mark() -> Message:
    """Make a mark that is told from all others by its name (statement 7)."""
    return Message(message_id=uuid.uuid4().hex, type=MARK_TYPE)


def is_mark(message: Message) -> bool:
    return message.type == MARK_TYPE


@contextmanager
def written_into(stream: str, exchange: str, routing_key: str) -> Generator[None]:
    """Have it told, inside the block, that a mark was published and routed to nothing."""
    try:
        yield
    except Unroutable:
        raise QueueNotFound(
            f"What is published to the exchange {exchange!r} for {routing_key!r} does not get into "
            f"the stream {stream!r}: it is not there, or not bound."
        ) from None


def silent(stream: str) -> BrokerUnavailable:
    """Make the error of who has not found the mark, and is handed nothing."""
    return BrokerUnavailable(
        f"The stream {stream!r} could not be read to its end: nothing more came. The broker may "
        "be busy, or the node that was asked may lag behind. Try again later."
    )


def too_long(stream: str, reached: int | None) -> StreamTooLong:
    """Make the error of who has not found the mark in time, though much came."""
    return StreamTooLong(
        f"The stream {stream!r} could not be read to its end in time: it holds too much.",
        reached=reached,
    )


def missing_exchange(name: str) -> IncompatibleBroker:
    """Make the error of who declares bindings of an exchange of another owner that is missing."""
    return IncompatibleBroker(
        f"The exchange {name!r} does not exist. A task subscribes to it, and it is somebody "
        "else's: have its owner declare it first, or name its type in subscribe= to do it here."
    )


async def cancelled(task: asyncio.Future[Any]) -> None:
    """Cancel a task that asks a broker, and wait for its end.

    aiormq may answer a cancellation with the error of a channel that closes at that moment, which
    the task takes for one to recover from: so it is told again.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=BEFORE_TELLING_AGAIN.total_seconds())
    if not task.cancelled():
        task.exception()  # or asyncio logs that nobody has asked for it


async def ready_in(broker: Broker, queue: str) -> AsyncGenerator[Delivery]:
    """Yield what is ready in a queue until it is empty, each to be acked before the next.

    It is browsed: RabbitMQ has no `get` for a quorum queue with a single active consumer.
    """
    while (depth := await broker.depth(queue)) is not None and depth.ready:
        async with broker.browse(queue, limit=depth.ready) as found:
            async for delivery in found:
                yield delivery
