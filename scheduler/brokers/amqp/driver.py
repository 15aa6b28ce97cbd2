"""aiormq as we need it. What it gets wrong is worked round for our connections alone."""

import itertools
import logging
import ssl
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar, cast

import aiormq
from aiormq.abc import DeliveredMessage
from aiormq.connection import FrameReceiver
from aiormq.exceptions import ChannelInvalidStateError
from pamqp.commands import Basic
from pamqp.header import ContentHeader
from yarl import URL

from scheduler.brokers.amqp.frames import Frames


class DriverConnection(aiormq.Connection):
    """A connection of ours."""

    # aiormq drops its answer to a channel that the broker closes when this many frames wait to be
    # written; the broker then keeps the channel, and closes the connection over its number's next
    # use.
    FRAME_BUFFER_SIZE = 100_000

    async def _Connection__reader(self, frames: FrameReceiver) -> None:
        # It has no other way in, to where it reads frames.
        read: Any = super()._Connection__reader  # pyright: ignore[reportUnknownMemberType, reportAttributeAccessIssue, reportUnknownVariableType]
        await read(Frames(frames.reader))

    async def open(self, channel: "C") -> "C":
        """Open a channel, to its end."""
        self.channels[channel.number] = channel
        await channel.open()
        return channel


class DriverChannel(aiormq.Channel):
    """A channel over which nothing is settled any more once its closing has begun.

    RabbitMQ closes the connection over what comes after the end of a channel; aiormq sends it for
    as long as it waits for the answer.
    """

    _ends = False

    async def close(self, *args: Any, **kwargs: Any) -> None:
        self._ends = True
        await super().close(*args, **kwargs)

    async def basic_ack(self, *args: Any, **kwargs: Any) -> None:
        self._expect_more()
        await super().basic_ack(*args, **kwargs)

    async def basic_nack(self, *args: Any, **kwargs: Any) -> None:
        self._expect_more()
        await super().basic_nack(*args, **kwargs)

    def _expect_more(self) -> None:
        if self._ends:
            raise ChannelInvalidStateError(f"{self!r} is being closed")


C = TypeVar("C", bound=DriverChannel)


class ReceivingChannel(DriverChannel):
    """A channel that hands over what a stream or a queue delivers as it comes.

    aiormq makes a task of each delivery, and changes tasks every ten frames: for nothing, where
    they are only laid out to be read.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._tags = itertools.count()
        self._receivers: dict[str, Callable[[DeliveredMessage], None]] = {}

    async def receive(
        self,
        source: str,
        receiver: Callable[[DeliveredMessage], None],
        *,
        prefetch: int,
        arguments: dict[str, Any] | None = None,
    ) -> str:
        """Have the receiver called with each message of a stream or a queue; returns its tag."""
        tag = f"receiver {next(self._tags)}"
        self._receivers[tag] = receiver
        await self.basic_qos(prefetch_count=prefetch)
        await self.basic_consume(source, _never_called, consumer_tag=tag, arguments=arguments)
        return tag

    async def end(self, tag: str) -> None:
        """Have nothing more delivered to a receiver."""
        await self.basic_cancel(tag)
        del self._receivers[tag]

    async def _on_deliver_frame(self, frame: Basic.Deliver) -> None:
        header = cast(ContentHeader, await self._get_frame())
        taken = await self._read_content(frame, header)
        self._receivers[str(frame.consumer_tag)](taken)


async def _never_called(_: DeliveredMessage) -> None: ...


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
