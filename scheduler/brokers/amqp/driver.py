"""aiormq as we need it. What it gets wrong is worked round for our connections alone."""

import asyncio
import logging
import ssl
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import Any

import aiormq
from aiormq.abc import ChannelFrame, DeliveredMessage
from aiormq.connection import FrameReceiver, TransportFactory
from aiormq.exceptions import AMQPConnectionError
from yarl import URL

from scheduler.brokers.amqp.channels import DriverChannel
from scheduler.brokers.amqp.frames import Frames, Incoming

WRITTEN_WITHIN = timedelta(seconds=1)


class Transports(TransportFactory):
    """Has what comes over a connection go where it belongs, before aiormq reads it."""

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
    """A connection of ours.

    Attributes:
        write_queue: never full. aiormq drops its answer to a channel that the broker closes when it
            is; the broker then keeps the channel, and closes the connection over its number's next
            use.
    """

    channels: dict[int, Any]
    write_queue: asyncio.Queue[ChannelFrame]
    transport: asyncio.Transport

    def __init__(self, url: URL, context: ssl.SSLContext | None) -> None:
        super().__init__(url, transport_factory=Transports(self, context))
        self.write_queue = asyncio.Queue()
        self._together = list[bytes]()
        self._left_behind: set[asyncio.Task[Any]] = set()

    async def _Connection__reader(self, frames: FrameReceiver) -> None:
        # It has no other way in, to where it reads frames.
        read: Any = super()._Connection__reader  # pyright: ignore[reportUnknownMemberType, reportAttributeAccessIssue, reportUnknownVariableType]
        await read(Frames(frames.reader))

    def write(self, frames: bytes) -> None:
        """Write frames, together with all others of this turn of the event loop.

        They come after what aiormq was to write before, and before what it is to write after.
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
        """Whether the broker has said that an alarm blocks whoever publishes."""
        unblocked: asyncio.Event = getattr(self, "_Connection__connection_unblocked")  # noqa: B009
        return not unblocked.is_set()

    async def open(self, channel: DriverChannel) -> DriverChannel:
        """Open a channel, to its end."""
        self.channels[channel.number] = channel
        await channel.open()
        return channel

    async def written(self) -> None:
        """Wait until all is written that was to be, unless that takes too long."""
        if not self.is_closed:
            done = self.loop.create_future()
            self.write_queue.put_nowait(ChannelFrame(b"", should_close=False, drain_future=done))
            await asyncio.wait([done], timeout=WRITTEN_WITHIN.total_seconds())

    async def left(self) -> None:
        """Wait for what aiormq does when it has closed: an event loop that ends before tells of it,
        though nothing is wrong."""
        if self._left_behind:
            await asyncio.wait(self._left_behind, timeout=WRITTEN_WITHIN.total_seconds())

    def _on_reader_done(self, task: asyncio.Task[Any]) -> None:
        others = asyncio.all_tasks(self.loop)
        super()._on_reader_done(task)  # pyright: ignore[reportUnknownMemberType]
        self._left_behind = asyncio.all_tasks(self.loop) - others

    def hear(self) -> None:
        # A broker that sends all the time sends no heartbeats, and aiormq sees but few frames.
        self._Connection__last_frame_time = self.loop.time()


async def connect(url: URL, context: ssl.SSLContext | None) -> DriverConnection:
    connection = DriverConnection(url, context)
    with _within_our_connection():
        await connection.connect()  # pyright: ignore[reportUnknownMemberType]
    return connection


class ForeignRecords(logging.Filter):
    """Lets through what aiormq logs of other connections than ours.

    It logs a traceback for every connection that goes, and a line for every refused connect
    (https://github.com/mosquito/aio-pika/issues/601); of ours, the same is told once, in a line, by
    ConnectionLost and ConnectionRetried. Who gives aiormq's logger a level hears of ours as well.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        if logging.getLogger("aiormq").level != logging.NOTSET:
            return True
        return not (_ours.get() or any(map(_is_ours, record.args or ())))


_ours: ContextVar[bool] = ContextVar("ours", default=False)
"""Set in the tasks in which aiormq reads from and writes to a connection of ours."""


@contextmanager
def _within_our_connection() -> Generator[None]:
    before = _ours.set(True)
    try:
        yield
    finally:
        _ours.reset(before)


def _is_ours(value: object) -> bool:
    """Whether this is one of our connections, a channel of it or a message that came over it."""
    if isinstance(value, DeliveredMessage):
        value = value.channel
    return isinstance(getattr(value, "connection", value), DriverConnection)


for _module in "aiormq.connection", "aiormq.channel":
    logging.getLogger(_module).addFilter(ForeignRecords())
