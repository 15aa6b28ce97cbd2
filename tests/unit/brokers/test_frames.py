"""Frames: what aiormq is given to read, of whatever comes."""

import asyncio
import struct
from typing import Any

import pytest
from aiormq.exceptions import AMQPConnectionError
from pamqp import frame
from pamqp.body import ContentBody
from pamqp.commands import Basic
from pamqp.header import ContentHeader
from pamqp.heartbeat import Heartbeat

from scheduler.brokers.amqp.frames import Frames, ReceivedProperties


async def read(*sent: bytes) -> list[Any]:
    return [each async for each in frames_of(*sent)]


def frames_of(*sent: bytes) -> Frames:
    reader = asyncio.StreamReader()
    for each in sent:
        reader.feed_data(each)
    reader.feed_eof()
    return Frames(reader)


def a_frame(kind: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, 7, len(payload)) + payload + b"\xce"


async def test_all_of_a_delivery_is_read() -> None:
    deliver = Basic.Deliver("tag", 5, True, "exchange", "key")
    header = ContentHeader(body_size=4, properties=Basic.Properties(message_id="m"))
    written = [frame.marshal(each, 7) for each in (deliver, header, ContentBody(b"body"))]
    found = await read(*written)
    assert [(size, channel) for size, channel, _ in found] == [(len(each), 7) for each in written]
    (_, _, delivered), (_, _, about), (_, _, body) = found
    assert isinstance(delivered, Basic.Deliver)
    assert dict(delivered) == dict(deliver)
    assert (about.body_size, about.properties.message_id) == (4, "m")
    assert isinstance(about.properties, ReceivedProperties)
    assert body.value == b"body"


async def test_what_was_got_is_read() -> None:
    got = Basic.GetOk(5, True, "exchange", "key", 3)
    ((_, _, found),) = await read(frame.marshal(got, 7))
    assert isinstance(found, Basic.GetOk)
    assert dict(found) == dict(got)


async def test_keys_and_headers_may_be_any_bytes() -> None:
    deliver = frame.marshal(Basic.Deliver("t", 1, False, "e", "cafe"), 7).replace(
        b"cafe", b"caf\xe9"
    )
    header = a_frame(2, struct.pack(">HHQH", 60, 0, 0, 0x2000) + b"\0\0\0\6\4caf\xe9V")
    (_, _, delivered), (_, _, about) = await read(deliver, header)
    assert delivered.routing_key == "caf\udce9"
    assert about.properties.came.endswith(b"\4caf\xe9V")


async def test_all_other_frames_are_read_as_the_driver_reads_them() -> None:
    others = [Heartbeat(), Basic.ConsumeOk("tag"), Basic.Ack(3, True), Basic.QosOk()]
    found = [each for _, _, each in await read(*(frame.marshal(each, 0) for each in others))]
    assert [type(each) for each in found] == [type(each) for each in others]


async def test_a_frame_that_ends_too_soon_is_a_connection_that_was_closed() -> None:
    with pytest.raises(AMQPConnectionError, match="closed"):
        await frames_of(frame.marshal(Basic.QosOk(), 1)[:-1]).get_frame()
