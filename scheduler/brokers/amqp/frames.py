"""What travels in frames, read and written so that no message of anybody can end a connection.

pamqp raises on what it cannot read, inside aiormq's reader: one message of somebody else would
cost us the connection, again and again (https://github.com/mosquito/aiormq/issues/186). So it is
kept from all that others may have chosen: properties, and the keys that messages came by.
"""

import asyncio
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import uuid4

from aiormq.abc import DeliveredMessage
from aiormq.connection import FrameReceiver
from aiormq.exceptions import AMQPConnectionError
from pamqp import frame
from pamqp.base import Frame
from pamqp.body import ContentBody
from pamqp.commands import Basic
from pamqp.constants import FRAME_BODY, FRAME_HEADER, FRAME_METHOD
from pamqp.header import ContentHeader

from scheduler.brokers.properties import decoded, encoded
from scheduler.brokers.tables import read_short
from scheduler.protocol.messages import Message

HEAD = struct.Struct(">BHI")
PROPERTIES_AT = 12  # after the class, the weight and the size of the body
BODY_SIZE = struct.Struct(">4xQ")


class Frames(FrameReceiver):
    """The frames of an open connection, one after the other."""

    async def get_frame(self) -> Any:
        if self.reader.at_eof():
            raise StopAsyncIteration
        try:
            head = await self.reader.readexactly(HEAD.size)
            kind, channel, size = HEAD.unpack(head)
            rest = await self.reader.readexactly(size + 1)
        except (asyncio.IncompleteReadError, OSError) as error:
            raise AMQPConnectionError(f"The connection was closed: {error}") from error
        if (read := _readers.get(kind)) is None or (found := read(rest[:-1])) is None:
            return frame.unmarshal(head + rest)
        return HEAD.size + len(rest), channel, found


class SentProperties(Basic.Properties):
    """The properties of a message that is published."""

    def __init__(self, message: Message) -> None:
        super().__init__()
        # Of a message that is returned, aiormq knows by its id which one that is.
        self.message_id = message.message_id or str(uuid4())
        self._encoded = encoded(replace(message, message_id=self.message_id))

    def marshal(self) -> bytes:
        return self._encoded


class ReceivedProperties(Basic.Properties):
    """The properties of a message that has come, as they came."""

    def __init__(self, came: bytes) -> None:
        self.came = came

    @property
    def message_id(self) -> str | None:
        return decoded(self.came).message_id


def message_of(taken: DeliveredMessage) -> Message:
    properties = taken.header.properties
    assert isinstance(properties, ReceivedProperties)
    return decoded(properties.came, taken.body)


def _header(payload: bytes) -> ContentHeader:
    properties = ReceivedProperties(payload[PROPERTIES_AT:])
    return ContentHeader(body_size=BODY_SIZE.unpack_from(payload)[0], properties=properties)


def _method(payload: bytes) -> Frame | None:
    """One of those that tell with which key a message came; None: another one."""
    read = _methods.get(int.from_bytes(payload[:4]))
    return None if read is None else read(payload)


def _deliver(payload: bytes) -> Frame:
    deliver = Basic.Deliver()
    deliver.consumer_tag, at = read_short(payload, 4)
    deliver.delivery_tag, at = int.from_bytes(payload[at : at + 8]), at + 8
    deliver.redelivered, at = payload[at] & 1 == 1, at + 1
    deliver.exchange, at = read_short(payload, at)
    deliver.routing_key, at = read_short(payload, at)
    return deliver


def _get_ok(payload: bytes) -> Frame:
    found = Basic.GetOk()
    found.delivery_tag = int.from_bytes(payload[4:12])
    found.redelivered = payload[12] & 1 == 1
    found.exchange, at = read_short(payload, 13)
    found.routing_key, at = read_short(payload, at)
    found.message_count = int.from_bytes(payload[at : at + 4])
    return found


_methods: dict[int, Callable[[bytes], Frame]] = {
    Basic.Deliver.index: _deliver,
    Basic.GetOk.index: _get_ok,
}
_readers: dict[int, Callable[[bytes], Any]] = {
    FRAME_METHOD: _method,
    FRAME_HEADER: _header,
    FRAME_BODY: ContentBody,
}
