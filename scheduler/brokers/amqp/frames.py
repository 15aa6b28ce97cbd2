"""Read and write frames of AMQP 0-9-1 (https://www.rabbitmq.com/resources/specs/amqp0-9-1.pdf).

Only frames of messages, their confirmations and counts; aiormq handles all others. It is slow: it
makes tasks, futures and locks for each. And its reader raises on frames that it cannot read, so
that one foreign message would close the connection again and again
(https://github.com/mosquito/aiormq/issues/186).
"""

import asyncio
import math
import struct
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol, SupportsIndex, cast

from aiormq.connection import FrameReceiver
from aiormq.exceptions import AMQPConnectionError
from pamqp import frame
from pamqp.commands import Basic, Queue
from pamqp.constants import FRAME_BODY, FRAME_END, FRAME_HEADER, FRAME_METHOD

from scheduler.brokers.properties import read_short, short_string

HEAD = struct.Struct(">BHI")
HEAD_SIZE = HEAD.size
AROUND = HEAD_SIZE + 1  # bytes of a frame, besides its payload
END = bytes([FRAME_END])
METHOD = struct.Struct(">I")
SETTLEMENT = struct.Struct(">IQB")
ABOUT_CONTENT = struct.Struct(">HHQ")
PUBLISH, ACK, NACK = (METHOD.pack(kind.index) for kind in (Basic.Publish, Basic.Ack, Basic.Nack))
DELIVER, GET_OK, GET_EMPTY, RETURN = (
    METHOD.pack(kind.index) for kind in (Basic.Deliver, Basic.GetOk, Basic.GetEmpty, Basic.Return)
)
DECLARE, DECLARE_OK = METHOD.pack(Queue.Declare.index), METHOD.pack(Queue.DeclareOk.index)
COUNTS = struct.Struct(">II")
PASSIVE, NO_ARGUMENTS = b"\1", bytes(4)
MANDATORY = b"\1"
NO_PROPERTIES = b"\0\0"
MESSAGE, SETTLED = (DELIVER, GET_OK, RETURN), (ACK, NACK)
CONTENT = FRAME_HEADER, FRAME_BODY  # frames of a message after its method
TURN_S = 0.005
"""The seconds for which frames are dispatched before others have their turn."""


class Taker(Protocol):
    """Take the frames of a channel, before aiormq does."""

    def takes(self, kind: int, payload: bytes) -> bool:
        """Take a frame; return False to leave it to aiormq."""
        ...


class Incoming(asyncio.StreamReader):
    """Split the incoming frames of a connection: dispatch some, leave the others to aiormq.

    However many have come, others have their turn every few milliseconds.

    Args:
        taker: returns the taker of a channel's frames; None: there is none any more.
        heard: called whenever data arrives.
    """

    def __init__(self, taker: Callable[[int], Taker | None], heard: Callable[[], None]) -> None:
        super().__init__()
        self._taker = taker
        self._heard = heard
        self._came = b""
        self._source: asyncio.ReadTransport | None = None
        self._rest: asyncio.Handle | None = None

    def set_transport(self, transport: asyncio.BaseTransport) -> None:
        super().set_transport(transport)
        self._source = cast(asyncio.ReadTransport, transport)

    def feed_data(self, data: Iterable[SupportsIndex]) -> None:
        self._heard()
        self._came += bytes(data)
        if self._rest is None:
            self._dispatch(TURN_S)

    def feed_eof(self) -> None:
        self._dispatch_rest()
        if self._came:
            rest, self._came = self._came, b""
            super().feed_data(rest)
        super().feed_eof()

    def set_exception(self, exc: BaseException) -> None:
        self._dispatch_rest()
        super().set_exception(cast(Exception, exc))

    def _dispatch(self, seconds: float) -> None:
        """Dispatch the frames that have come; after some seconds, continue in the next turn of the
        event loop.
        """
        loop = asyncio.get_running_loop()
        came, at, end_of_turn = self._came, 0, loop.time() + seconds
        while (begin := at + HEAD_SIZE) < len(came):
            kind, channel, size = HEAD.unpack_from(came, at)
            if (end := begin + size) >= len(came):
                break
            if came[end] != FRAME_END:
                super().set_exception(AMQPConnectionError("A frame does not end where it says."))
                break
            taker = self._taker(channel)
            if not channel or (taker is not None and not taker.takes(kind, came[begin:end])):
                super().feed_data(came[at : end + 1])
            at = end + 1
            if loop.time() > end_of_turn and at < len(came):
                self._rest = loop.call_soon(self._continue)
                if self._source is not None and not self._source.is_closing():
                    self._source.pause_reading()
                break
        self._came = came[at:]

    def _continue(self) -> None:
        self._rest = None
        self._dispatch(TURN_S)
        if self._rest is None and self._source is not None and not self._source.is_closing():
            self._source.resume_reading()

    def _dispatch_rest(self) -> None:
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None
            self._dispatch(math.inf)


class Frames(FrameReceiver):
    """Yield the frames of an open connection that are left to aiormq."""

    async def get_frame(self) -> Any:
        try:
            head = await self.reader.readexactly(HEAD.size)
            *_, size = HEAD.unpack(head)
            return frame.unmarshal(head + await self.reader.readexactly(size + len(END)))
        except asyncio.IncompleteReadError:
            text = "The connection was closed: end of stream."
            raise AMQPConnectionError(text) from None
        except OSError as error:
            raise AMQPConnectionError(f"The connection was closed: {error}") from error


class RawMessage(NamedTuple):
    """Hold a received message: delivered to a consumer, got or returned."""

    properties: bytes
    body: bytes
    exchange: str
    routing_key: str
    tag: int = 0
    redelivered: bool = False
    consumer: str = ""


class PartialMessage:
    """Collect the frames of a message."""

    def __init__(self, method: bytes) -> None:
        self.kind = method[:4]
        self._method = method
        self._properties = b""
        self._body = list[bytes]()
        self._missing = 0

    def add(self, kind: int, payload: bytes) -> bool:
        """Add a frame; return whether the message is complete."""
        if kind == FRAME_HEADER:
            _, _, self._missing = ABOUT_CONTENT.unpack_from(payload)
            self._properties = payload[ABOUT_CONTENT.size :]
        else:
            self._body.append(payload)
            self._missing -= len(payload)
        return self._missing <= 0

    def message(self) -> RawMessage:
        method, consumer, tag, redelivered, at = self._method, "", 0, False, 4
        if self.kind == RETURN:
            _, at = read_short(method, 6)  # after the code: the reason, in words
        else:
            if self.kind == DELIVER:
                consumer, at = read_short(method, at)
            tag, redelivered = int.from_bytes(method[at : at + 8]), method[at + 8] & 1 == 1
            at += 9
        exchange, at = read_short(method, at)
        routing_key, _ = read_short(method, at)
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        return RawMessage(self._properties, body, exchange, routing_key, tag, redelivered, consumer)


def settlement_of(method: bytes) -> tuple[int, bool]:
    """Return the tag of a confirmation, and whether it covers all before it."""
    _, tag, bits = SETTLEMENT.unpack_from(method)
    return tag, bits & 1 == 1


def publishing(
    channel: int, exchange: bytes, routing_key: bytes, properties: bytes, body: bytes, largest: int
) -> bytes:
    """Return the frames of a mandatory message, each of at most `largest` bytes (0: any)."""
    method = PUBLISH + b"\0\0" + exchange + routing_key + MANDATORY
    header = ABOUT_CONTENT.pack(Basic.frame_id, 0, len(body)) + properties
    frames = _framed(FRAME_METHOD, channel, method) + _framed(FRAME_HEADER, channel, header)
    size = largest - AROUND if largest else len(body)
    if len(body) <= size:
        return frames + _framed(FRAME_BODY, channel, body) if body else frames
    parts = (body[begin : begin + size] for begin in range(0, len(body), size))
    return frames + b"".join([_framed(FRAME_BODY, channel, part) for part in parts])


def half_publishing(channel: int) -> bytes:
    """Return the frames of a message whose body never comes: nothing is published by them.

    RabbitMQ blocks a connection, and says why, as soon as it has the header of a message.
    """
    nowhere = PUBLISH + b"\0\0" + short_string("", "") * 2 + MANDATORY
    header = ABOUT_CONTENT.pack(Basic.frame_id, 0, 1) + NO_PROPERTIES
    return _framed(FRAME_METHOD, channel, nowhere) + _framed(FRAME_HEADER, channel, header)


def settling(channel: int, tag: int, *, requeue: bool, multiple: bool) -> bytes:
    """Return the frame that acks or requeues a message, with all before it if multiple."""
    method, bits = (NACK, multiple | 2) if requeue else (ACK, multiple)
    return _framed(FRAME_METHOD, channel, method + tag.to_bytes(8) + bytes([bits]))


def getting(channel: int, queue: bytes) -> bytes:
    """Return the frame that gets a message from a queue, named by a short string."""
    return _framed(FRAME_METHOD, channel, METHOD.pack(Basic.Get.index) + b"\0\0" + queue + b"\0")


def counting(channel: int, queue: bytes) -> bytes:
    """Return the frame that counts the messages and consumers of a queue, named by a short
    string.
    """
    method = DECLARE + b"\0\0" + queue + PASSIVE + NO_ARGUMENTS
    return _framed(FRAME_METHOD, channel, method)


def counts_of(method: bytes) -> tuple[int, int]:
    """Return how many messages and consumers a queue has, from the answer to `counting`."""
    messages, consumers = COUNTS.unpack_from(method, len(method) - COUNTS.size)
    return messages, consumers


def _framed(kind: int, channel: int, payload: bytes) -> bytes:
    return HEAD.pack(kind, channel, len(payload)) + payload + END
