"""Adapt aiormq: it opens and closes connections and channels, and messages bypass it. Its errors
become the package's.

Its bugs are worked around for the package's own connections alone. Some workarounds use private
names, which are checked when this module is imported.
"""

import asyncio
import itertools
import logging
import math
import re
import ssl
from collections.abc import Callable
from contextvars import ContextVar
from datetime import timedelta
from importlib.metadata import version
from typing import Any, NamedTuple, cast

import aiormq
from aiormq.abc import AbstractChannel, AbstractConnection, ChannelFrame, DeliveredMessage
from aiormq.connection import FrameReceiver, TransportFactory
from aiormq.exceptions import (
    AMQPConnectionError,
    AMQPError,
    ChannelAccessRefused,
    ChannelInvalidStateError,
    ChannelLockedResource,
    ChannelNotFoundEntity,
    ChannelPreconditionFailed,
)
from pamqp import commands as spec
from pamqp.base import Frame
from yarl import URL

from scheduler.brokers.amqp.frames import (
    ACK,
    CONTENT,
    DECLARE_OK,
    DELIVER,
    GET_EMPTY,
    GET_OK,
    MESSAGE,
    RETURN,
    SETTLED,
    Frames,
    Incoming,
    PartialMessage,
    RawMessage,
    counting,
    counts_of,
    getting,
    half_publishing,
    publishing,
    settlement_of,
    settling,
)
from scheduler.brokers.properties import decoded, encoded_key, short_string
from scheduler.errors import (
    AccessRefused,
    IncompatibleBroker,
    NoReplica,
    OtherArguments,
    QueueNotFound,
    Rejected,
    SchedulerError,
    TooLarge,
    Unconfirmed,
    Unroutable,
)
from scheduler.user_code import log_of

# A stream is read from a node with a replica. A node that restarts does not have one at once.
NO_REPLICA = "replica on the local node"
OTHER_ARGUMENT = re.compile(r"inequivalent arg '(?P<argument>[^']+)' for queue '(?P<queue>[^']+)'")
TOO_LARGE = re.compile(r"message size \d+.* larger than (?:configured )?max size (?P<limit>\d+)")


class ReturnedMessage(AMQPError):
    """The message of this routing key was returned: there is no queue for it."""


class Refused(AMQPError):
    """The queue rejected the message."""


class Translation:
    """Translate the driver's errors inside a block; add the address of the broker."""

    __slots__ = ("_address",)

    def __init__(self, address: str) -> None:
        self._address = address

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is not None and (ours := _translation(error, self._address)) is not None:
            raise ours from None


def reply(error: BaseException) -> str:
    """Return the words of a driver's error, without its wrapping."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if words := [str(word) for word in error.args if isinstance(word, str) and word]:
        return " ".join(words).rstrip(".")
    wordless = type(error) in (Exception, asyncio.CancelledError)
    return "closed" if wordless else type(error).__name__


def _translation(error: BaseException, address: str) -> SchedulerError | None:
    match error:
        case ReturnedMessage(args=(key,)):
            return Unroutable(f"{address} has no queue bound for the routing key {key!r}.")
        case Refused():
            return Rejected()
        case ChannelNotFoundEntity():
            return QueueNotFound(reply(error))
        case ChannelPreconditionFailed() | ChannelLockedResource():
            return _unmet(reply(error), f"{address} refused: {reply(error)}.")
        case ChannelAccessRefused():
            return AccessRefused(f"{address} refused: {reply(error)}.")
        case _ if _is_lost_connection(error):
            return Unconfirmed(
                f"The connection to {address} was lost before the broker responded: {reply(error)}."
            )
        case _:
            return None


def _unmet(condition: str, text: str) -> SchedulerError:
    if (large := TOO_LARGE.search(condition)) is not None:
        return TooLarge(text, limit=int(large["limit"]))
    if NO_REPLICA in condition:
        return NoReplica(
            f"{text} It may be starting; if this persists, `rabbitmq-streams add_replica` gives "
            "the node one."
        )
    text = f"{text} Nothing was changed."
    if (other := OTHER_ARGUMENT.search(condition)) is not None:
        return OtherArguments(text, **other.groupdict())
    return IncompatibleBroker(text)


def _is_lost_connection(error: BaseException) -> bool:
    match error:
        case AMQPError() | ChannelInvalidStateError() | ConnectionError() | RuntimeError():
            return True
        case asyncio.CancelledError():
            # aiormq cancels calls on a channel that closes; only a cancelled task means this one.
            task = asyncio.current_task()
            return task is not None and not task.cancelling()
        case _:
            # aiormq's word for calls on a connection that ended without a reason.
            return type(error) is Exception


WRITTEN_WITHIN = timedelta(seconds=1)
FIRST_NOTED_WITHIN, EACH_NOTED_WITHIN, NOTED_WITHIN = 0.05, 0.0005, 0.8  # seconds
TESTED = ">=7.2.4,<8"
PRIVATE = (
    "_Channel__close_after_failure",
    "_Connection__connection_unblocked",
    "_Connection__handle_connection_blocked",
    "_Connection__last_frame_time",
    "_Connection__reader",
    "_on_close_frame",
    "_on_reader_done",
)
Receiver = Callable[[RawMessage], None]


def check_private_names(channel: type[Any], connection: type[Any]) -> None:
    """Check that the driver's classes have the names that are overridden and used here."""
    known = {*vars(channel), *vars(connection), *connection.__init__.__code__.co_names}
    if missing := [name for name in PRIVATE if name not in known]:
        raise ImportError(
            f"aiormq {version('aiormq')} has no {', '.join(missing)}, which scheduler needs. "
            f"It was tested with aiormq{TESTED}."
        )


check_private_names(aiormq.Channel, aiormq.Connection)


class Transports(TransportFactory):
    """Dispatch incoming frames before aiormq reads them."""

    def __init__(self, connection: "DriverConnection", context: ssl.SSLContext | None) -> None:
        self._connection = connection
        self._context = context

    async def create(
        self, url: URL, **kwargs: Any
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        connection, loop = self._connection, asyncio.get_running_loop()
        reader = Incoming(connection.channels.get, connection.hear)
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            connection.transport, _ = await loop.create_connection(
                lambda: protocol, str(url.host), url.port or 0, ssl=self._context
            )
        except OSError as error:
            raise AMQPConnectionError(*error.args) from error
        return reader, asyncio.StreamWriter(connection.transport, protocol, reader, loop)


class DriverConnection(aiormq.Connection):
    """Extend a connection of aiormq.

    Attributes:
        write_queue: never full. If it is, aiormq drops its answer to a channel that the broker
            closes; the broker then keeps the channel, and closes the connection when its number is
            reused.
        heard_at: when the broker last sent anything, by the running event loop.
        alarm: why the broker blocked it first, as it said; done once it has.
    """

    channels: dict[int, Any]
    write_queue: asyncio.Queue[ChannelFrame]
    transport: asyncio.Transport

    def __init__(self, url: URL, context: ssl.SSLContext | None) -> None:
        super().__init__(url, transport_factory=Transports(self, context))
        self.write_queue = asyncio.Queue()
        self.heard_at = self.loop.time()
        self.alarm: asyncio.Future[str] = self.loop.create_future()
        self._together = list[bytes]()
        self._left_behind: set[asyncio.Task[Any]] = set()

    async def _Connection__reader(self, frames: FrameReceiver) -> None:
        read: Any = super()._Connection__reader  # pyright: ignore[reportUnknownMemberType, reportAttributeAccessIssue, reportUnknownVariableType]
        await read(Frames(frames.reader))

    async def _Connection__handle_connection_blocked(self, frame: spec.Connection.Blocked) -> None:
        note: Any = super()._Connection__handle_connection_blocked  # pyright: ignore[reportUnknownMemberType, reportAttributeAccessIssue, reportUnknownVariableType]
        await note(frame)
        if not self.alarm.done():
            self.alarm.set_result(frame.reason)

    def write(self, frames: bytes) -> None:
        """Write frames, together with all others of this turn of the event loop.

        Their place is after the queued writes of aiormq, and before its later ones.
        """
        if not self.write_queue.empty():
            self.write_queue.put_nowait(ChannelFrame(frames, should_close=False))
            return
        if not self._together:
            self.loop.call_soon(self._write_together)
        self._together.append(frames)

    def _write_together(self) -> None:
        frames, self._together = b"".join(self._together), []
        if not self.transport.is_closing():
            self.transport.write(frames)

    @property
    def is_blocked(self) -> bool:
        """Return whether the broker has said that an alarm blocks publishers."""
        unblocked: asyncio.Event = getattr(self, "_Connection__connection_unblocked")  # noqa: B009
        return not unblocked.is_set()

    async def open(self, channel: "DriverChannel") -> "DriverChannel":
        """Open a channel, without being interrupted."""
        self.channels[channel.number] = channel
        await channel.open()
        return channel

    async def written(self) -> None:
        """Wait until all queued frames are written, up to a limit."""
        if not self.is_closed:
            done = self.loop.create_future()
            self.write_queue.put_nowait(ChannelFrame(b"", should_close=False, drain_future=done))
            await asyncio.wait([done], timeout=WRITTEN_WITHIN.total_seconds())

    async def left(self) -> None:
        """Wait for aiormq's cleanup: an event loop that ends before logs it as an error."""
        if self._left_behind:
            await asyncio.wait(self._left_behind, timeout=WRITTEN_WITHIN.total_seconds())

    def _on_reader_done(self, task: asyncio.Task[Any]) -> None:
        others = asyncio.all_tasks(self.loop)
        super()._on_reader_done(task)  # pyright: ignore[reportUnknownMemberType]
        self._left_behind = asyncio.all_tasks(self.loop) - others

    def hear(self) -> None:
        # A broker that sends all the time sends no heartbeats, and aiormq sees only few frames.
        self._Connection__last_frame_time = self.heard_at = self.loop.time()


async def connect(url: URL, context: ssl.SSLContext | None) -> DriverConnection:
    connection, before = DriverConnection(url, context), _ours.set(True)
    try:
        await connection.connect()  # pyright: ignore[reportUnknownMemberType]
    finally:
        _ours.reset(before)
    return connection


class Publication(NamedTuple):
    """Track a published message until it is confirmed."""

    confirmed: asyncio.Future[None]
    message_id: str
    key: bytes


class DriverChannel(aiormq.Channel):
    """Publish, get, receive and settle messages on a channel.

    Nothing is written once its closing has begun, from either end: RabbitMQ closes the connection
    (CHANNEL_ERROR) over frames after the end of a channel.
    """

    connection: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._write: Callable[[bytes], None] = self.connection.write
        self._ends = False
        self._is_closed_by_broker = self._is_broken_off = False
        self._largest_frame = self.connection.connection_tune.frame_max
        self._arriving: PartialMessage | None = None
        self._consumer_tags = (f"consumer {number}" for number in itertools.count(1))
        self._receivers: dict[str, Receiver] = {}
        self._published = 0
        self._unconfirmed: dict[int, Publication] = {}
        self._asked: asyncio.Future[Any] | None = None
        self._settled_at = -math.inf
        self._settled_together = 0
        self._gone = closing_of(self)
        self._gone.add_done_callback(self._fail)

    @property
    def ends(self) -> bool:
        """Return whether its closing has begun: it cannot be used any more."""
        return self._ends or self._gone.done()

    async def rpc(self, frame: Frame, timeout: float | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        # Limited by aiormq, the frame would be written a turn of the event loop later: the broker
        # may close the channel in between (Python 3.11).
        async with asyncio.timeout(timeout):
            return await super().rpc(frame)

    async def close(self, *args: Any, **kwargs: Any) -> None:
        self._ends = True
        await super().close(*args, **kwargs)

    async def _on_close_frame(self, frame: spec.Channel.Close) -> None:
        self._ends = self._is_closed_by_broker = True
        await super()._on_close_frame(frame)

    async def _Channel__close_after_failure(self, frame: Frame | None) -> None:
        # Where it closes a channel after an interrupted call.
        self._ends = True
        is_on_its_way = isinstance(frame, spec.Channel.Close)
        if not (is_on_its_way or self._is_closed_by_broker):
            self._is_broken_off = True
            close: Any = super()._Channel__close_after_failure  # pyright: ignore[reportUnknownMemberType, reportAttributeAccessIssue, reportUnknownVariableType]
            await close(frame)

    async def end(self) -> None:
        """Close the channel once the broker had time to process its settlements.

        While more than 32 settlements are on their way to a quorum queue, RabbitMQ delays further
        ones, and drops them with the channel (measured on 4.0: 967 of 1,000 messages were
        redelivered).
        """
        self._ends = True
        takes = min(FIRST_NOTED_WITHIN + self._settled_together * EACH_NOTED_WITHIN, NOTED_WITHIN)
        await asyncio.sleep(max(self._settled_at + takes - self.loop.time(), 0))
        if self._is_broken_off:  # aiormq would not await, nor give, the answers that are due
            heartbeat = self.connection.connection_tune.heartbeat or None
            await asyncio.wait([self._gone], timeout=heartbeat)
        await self.close()

    def publish(
        self, body: bytes, properties: bytes, exchange: bytes, key: bytes, message_id: str
    ) -> asyncio.Future[None]:
        """Publish a message, mandatory; return the future of its confirmation.

        Args:
            exchange, key: as short strings.
            message_id: that of its properties: it identifies a returned message, with its key.
        """
        self.expect_more()
        frames = publishing(self.number, exchange, key, properties, body, self._largest_frame)
        # The broker counts every message: only sendable ones may be counted here.
        self._published += 1
        confirmed = self.loop.create_future()
        self._unconfirmed[self._published] = Publication(confirmed, message_id, key)
        self._write(frames)
        return confirmed

    def begin_publishing(self) -> None:
        """Begin to publish a message that is never completed: the last use of the channel."""
        self._write(half_publishing(self.number))

    async def get(self, queue: str) -> RawMessage | None:
        """Get the message at the head of a queue, if there is one."""
        return await self._ask(getting, queue)

    async def depth(self, queue: str) -> tuple[int, int]:
        return await self._ask(counting, queue)

    async def round_trip(self) -> float:
        """Return the shortest time, in seconds, of three requests without any work."""
        times = [self.loop.time()]
        for _ in range(3):
            await self.basic_qos(prefetch_count=0)
            times.append(self.loop.time())
        return min(later - earlier for earlier, later in itertools.pairwise(times))

    async def _ask(self, question: Callable[[int, bytes], bytes], queue: str) -> Any:
        self.expect_more()
        self._asked = asked = self.loop.create_future()
        self._write(question(self.number, short_string(queue, "The name of the queue")))
        return await asked

    async def consume(
        self,
        source: str,
        receiver: Receiver,
        *,
        prefetch: int,
        arguments: dict[str, Any] | None = None,
    ) -> str:
        """Call the receiver with each message of a stream or a queue; return its tag."""
        tag = next(self._consumer_tags)
        self._receivers[tag] = receiver
        await self.basic_qos(prefetch_count=prefetch)
        await self.basic_consume(source, _never_called, consumer_tag=tag, arguments=arguments)
        return tag

    async def cancel(self, tag: str) -> None:
        await self.basic_cancel(tag)
        self._receivers.pop(tag, None)

    def settle(self, tag: int, *, requeue: bool = False, multiple: bool = False) -> None:
        """Ack or requeue a message, unless the broker has requeued it."""
        self.expect_more()
        now = self.loop.time()
        is_soon = now - self._settled_at < NOTED_WITHIN
        self._settled_at, self._settled_together = now, self._settled_together * is_soon + 1
        self._write(settling(self.number, tag, requeue=requeue, multiple=multiple))

    def takes(self, kind: int, payload: bytes) -> bool:
        """Take a frame of a message, or of its confirmation; leave all others to aiormq."""
        if kind in CONTENT:
            if self._arriving is not None and self._arriving.add(kind, payload):
                arrived, self._arriving = self._arriving, None
                self._receive(arrived.kind, arrived.message())
            return True
        match payload[:4]:
            case method if method in MESSAGE:
                self._arriving = PartialMessage(payload)
            case method if method in SETTLED:
                self._confirm(*settlement_of(payload), taken=method == ACK)
            case method if method == GET_EMPTY:
                self._answer(None)
            case method if method == DECLARE_OK and self._asked is not None:
                self._answer(counts_of(payload))
            case _:
                return False
        return True

    def _receive(self, kind: bytes, message: RawMessage) -> None:
        if kind == DELIVER and (receiver := self._receivers.get(message.consumer)) is not None:
            try:
                receiver(message)
            except Exception:
                log_of(__name__).exception("A message could not be received")
        elif kind == GET_OK:
            self._answer(message)
        elif kind == RETURN:
            self._return(message)

    def _answer(self, answer: object) -> None:
        asked, self._asked = self._asked, None
        if asked is not None and not asked.done():
            asked.set_result(answer)

    def _return(self, message: RawMessage) -> None:
        returned, key = decoded(message.properties).message_id, encoded_key(message.routing_key)
        for confirmed, *sent in self._unconfirmed.values():
            if sent == [returned, key] and not confirmed.done():
                confirmed.set_exception(ReturnedMessage(message.routing_key))
                return

    def _confirm(self, last: int, multiple: bool, *, taken: bool) -> None:
        waiting, tags = self._unconfirmed, [last]
        if multiple:
            tags = list(itertools.takewhile(last.__ge__, waiting))
        for tag in tags:
            sent = waiting.pop(tag, None)
            if sent is None or sent.confirmed.done():
                continue  # it was returned, or the caller has gone
            if taken:
                sent.confirmed.set_result(None)
            else:
                sent.confirmed.set_exception(Refused())

    def _fail(self, closing: asyncio.Future[Any]) -> None:
        error = None if closing.cancelled() else closing.exception()
        waiting = [sent.confirmed for sent in self._unconfirmed.values()]
        for answer in waiting if self._asked is None else [*waiting, self._asked]:
            if not answer.done():
                answer.set_exception(error or ChannelInvalidStateError(f"{self!r} was closed"))

    def expect_more(self) -> None:
        """Raise unless the channel can still be written to."""
        if self.ends:
            raise ChannelInvalidStateError(f"{self!r} is being closed")


async def _never_called(_: DeliveredMessage) -> None: ...


async def closed(channel: DriverChannel) -> None:
    """Close a channel, to the end even if the caller is cancelled."""
    if not channel.is_closed:
        await asyncio.shield(asyncio.ensure_future(channel.end()))


def closing_of(resource: AbstractConnection | AbstractChannel) -> asyncio.Future[Any]:
    """Return the future of the end of a connection or channel."""
    return cast(asyncio.Future[Any], resource.closing)  # pyright: ignore[reportUnknownMemberType, reportAttributeAccessIssue]


def lost_with(channel: AbstractChannel) -> asyncio.Future[None]:
    """Return the future of the channel's end, with which its deliveries are lost."""
    lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def lose(_: asyncio.Future[Any]) -> None:
        if not lost.done():
            lost.set_result(None)

    closing_of(channel).add_done_callback(lose)
    return lost


def reason_of(closed: asyncio.Future[Any]) -> str:
    """Return why a connection or channel ended, in the broker's words if it gave any."""
    error = None if closed.cancelled() else closed.exception()
    return "closed" if error is None else reply(error)


class ForeignRecords(logging.Filter):
    """Filter aiormq's log: keep only records of other connections.

    It logs a traceback for every lost connection, and a line for every refused connect
    (https://github.com/mosquito/aio-pika/issues/601); for the package's own connections,
    ConnectionLost and ConnectionRetried log the same in one line. To see both, set a level for
    aiormq's logger.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        if logging.getLogger("aiormq").level != logging.NOTSET:
            return True
        return not (_ours.get() or any(map(_is_ours, record.args or ())))


_ours: ContextVar[bool] = ContextVar("ours", default=False)
"""Set in the tasks in which aiormq reads from and writes to a connection of the package."""


def _is_ours(value: object) -> bool:
    """Return whether a record is about a connection, channel or message of the package."""
    if isinstance(value, DeliveredMessage):
        value = value.channel
    return isinstance(getattr(value, "connection", value), DriverConnection)


for _module in "aiormq.connection", "aiormq.channel":
    logging.getLogger(_module).addFilter(ForeignRecords())
