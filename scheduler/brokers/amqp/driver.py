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
from aiormq.connection import FrameReceiver
from yarl import URL

from scheduler.brokers.amqp.channels import DriverChannel
from scheduler.brokers.amqp.frames import Frames

WRITTEN_WITHIN = timedelta(seconds=1)


class Outgoing(asyncio.Queue[ChannelFrame]):
    """What waits to be written: all that has come together goes together.

    It is never full: aiormq drops its answer to a channel that the broker closes when it is; the
    broker then keeps the channel, and closes the connection over its number's next use.
    """

    _queue: Any

    def _get(self) -> ChannelFrame:
        first = super()._get()
        if not self._queue or not _is_plain(first):
            return first
        together = [first.payload]
        while self._queue and _is_plain(self._queue[0]):
            together.append(super()._get().payload)
        return ChannelFrame(b"".join(together), should_close=False)


class DriverConnection(aiormq.Connection):
    """A connection of ours."""

    channels: dict[int, Any]
    write_queue: asyncio.Queue[ChannelFrame]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.write_queue = Outgoing()
        self._left_behind: set[asyncio.Task[Any]] = set()

    async def _Connection__reader(self, frames: FrameReceiver) -> None:
        # It has no other way in, to where it reads frames.
        read: Any = super()._Connection__reader  # pyright: ignore[reportUnknownMemberType, reportAttributeAccessIssue, reportUnknownVariableType]
        await read(Frames(frames.reader, self.channels.get, self._hear))

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

    def _hear(self) -> None:
        # A broker that sends all the time sends no heartbeats, and aiormq sees but few frames.
        self._Connection__last_frame_time = self.loop.time()


def _is_plain(frame: ChannelFrame) -> bool:
    return not frame.should_drain and not frame.should_close


async def connect(url: URL, context: ssl.SSLContext | None) -> DriverConnection:
    connection = DriverConnection(url, context=context)
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
