"""Frames: what is taken of what comes, what aiormq is given to read, and what is written."""

import asyncio
import struct
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import pytest
from aiormq.connection import FrameReceiver
from aiormq.exceptions import AMQPConnectionError, ProtocolSyntaxError
from pamqp import frame
from pamqp.body import ContentBody
from pamqp.commands import Basic
from pamqp.header import ContentHeader
from pamqp.heartbeat import Heartbeat

from scheduler.brokers.amqp.frames import (
    CONTENT,
    Frames,
    Incoming,
    PartialMessage,
    RawMessage,
    getting,
    publishing,
    settlement_of,
    settling,
)
from scheduler.brokers.properties import short_string


class Everything:
    """Takes all frames of channel 7 but these."""

    def __init__(self, *, but: bytes = b"none") -> None:
        self.taken = list[tuple[int, bytes]]()
        self._but = but

    def takes(self, kind: int, payload: bytes) -> bool:
        if payload.startswith(self._but):
            return False
        self.taken.append((kind, payload))
        return True

    def of(self, channel: int) -> "Everything | None":
        return self if channel == 7 else None


async def left(taker: Everything, *sent: bytes) -> list[Any]:
    """What is left for aiormq, until the connection is closed."""
    incoming, found = Incoming(taker.of, lambda: None), list[Any]()
    for piece in sent:
        incoming.feed_data(piece)
    incoming.feed_eof()
    frames = Frames(incoming)
    with suppress(AMQPConnectionError):
        while True:
            found.append(await frames.get_frame())
    return found


def a_frame(kind: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, 7, len(payload)) + payload + b"\xce"


def arrived(*frames: bytes) -> RawMessage:
    """The message whose frames these are."""
    (_, method), *content = [(each[0], each[7:-1]) for each in frames]
    arriving = PartialMessage(method)
    complete = [arriving.add(kind, payload) for kind, payload in content]
    assert complete == [each is content[-1] for each in content]
    return arriving.message()


def content(properties: Basic.Properties, *bodies: bytes) -> list[bytes]:
    header = ContentHeader(body_size=sum(map(len, bodies)), properties=properties)
    return [frame.marshal(each, 7) for each in (header, *map(ContentBody, bodies))]


def read(written: bytes) -> Iterable[Any]:
    """What aiormq would read."""
    while written:
        size, channel, found = frame.unmarshal(written)
        assert channel == 7
        written = written[size:]
        yield found


async def test_frames_of_a_channel_are_taken_on_their_way() -> None:
    taker = Everything(but=struct.pack(">I", Basic.QosOk.index))
    sent = [Basic.Ack(3, True), Basic.QosOk(), Basic.Ack(4), Basic.QosOk()]
    found = await left(taker, *(frame.marshal(each, 7) for each in sent))
    assert [(channel, type(each)) for _, channel, each in found] == [(7, Basic.QosOk)] * 2
    assert [settlement_of(payload) for _, payload in taker.taken] == [(3, True), (4, False)]


@pytest.mark.parametrize("size", [1, 3, 11, 1000])
async def test_they_may_come_in_pieces_of_any_size(size: int) -> None:
    taker = Everything()
    sent = b"".join(
        frame.marshal(each, 7 * bool(tag % 5))
        for tag in range(20)
        for each in [Basic.Ack(tag) if tag % 5 else Heartbeat()]
    )
    pieces = [sent[begin : begin + size] for begin in range(0, len(sent), size)]
    assert [type(each) for *_, each in await left(taker, *pieces)] == [Heartbeat] * 4
    assert [settlement_of(payload)[0] for _, payload in taker.taken] == [
        tag for tag in range(20) if tag % 5
    ]


async def test_those_of_a_channel_that_is_gone_go_to_nobody() -> None:
    strange = struct.pack(">BHI", 2, 8, 3) + b"\xff\xff\xff" + b"\xce"
    assert not await left(Everything(), strange)


async def test_those_of_the_connection_are_the_drivers() -> None:
    found = await left(Everything(), *(frame.marshal(Heartbeat(), 0) for _ in range(2)))
    assert [(channel, type(each)) for _, channel, each in found] == [(0, Heartbeat)] * 2


async def test_a_frame_that_does_not_end_where_it_says_ends_the_connection() -> None:
    taker = Everything()
    incoming = Incoming(taker.of, lambda: None)
    incoming.feed_data(frame.marshal(Basic.Ack(1), 7)[:-1] + b"\0")
    incoming.feed_data(frame.marshal(Basic.Ack(2), 7))
    with pytest.raises(AMQPConnectionError, match="does not end"):
        await Frames(incoming).get_frame()
    assert not taker.taken


async def test_what_a_stranger_says_is_the_drivers_to_be_refused() -> None:
    incoming = Incoming(Everything().of, lambda: None)
    incoming.feed_data(b"AMQP\0\0\x09\1")
    incoming.feed_eof()
    with pytest.raises(ProtocolSyntaxError):
        await FrameReceiver(incoming).get_frame()


async def test_a_connection_that_breaks_has_ended() -> None:
    incoming = Incoming(Everything().of, lambda: None)
    incoming.set_exception(TimeoutError())
    with pytest.raises(AMQPConnectionError):
        await Frames(incoming).get_frame()


async def test_whatever_comes_is_heard_and_taken_at_once() -> None:
    taker, heard = Everything(), asyncio.Event()
    Incoming(taker.of, heard.set).feed_data(frame.marshal(Basic.Ack(1), 7))
    assert heard.is_set()
    assert len(taker.taken) == 1


class Slow(Everything):
    """Takes each frame for some milliseconds."""

    def takes(self, kind: int, payload: bytes) -> bool:
        time.sleep(0.003)
        return super().takes(kind, payload)


@pytest.mark.parametrize("end", ["none", "lost", "closed"])
async def test_others_have_their_turn_while_many_frames_are_taken(end: str) -> None:
    taker, turns, frames = Slow(), 0, [frame.marshal(Basic.Ack(tag), 7) for tag in range(20)]
    incoming = Incoming(taker.of, lambda: None)
    incoming.feed_data(b"".join(frames[:15]))
    incoming.feed_data(b"".join(frames[15:]))
    assert 0 < len(taker.taken) < 15
    if end == "lost":
        incoming.set_exception(ConnectionResetError())
    elif end == "closed":
        incoming.feed_eof()
    while len(taker.taken) < 20:
        turns += 1
        await asyncio.sleep(0)
    assert turns >= 5 if end == "none" else not turns
    assert [payload for _, payload in taker.taken] == [each[7:-1] for each in frames]


def test_a_refusal_is_of_one_message_or_of_all_before_it() -> None:
    refusals = [
        frame.marshal(Basic.Nack(3, multiple, requeue=True), 7) for multiple in (False, True)
    ]
    assert [settlement_of(each[7:-1]) for each in refusals] == [(3, False), (3, True)]


def test_a_message_goes_on_in_its_header_and_its_body() -> None:
    assert [kind for kind in range(256) if kind in CONTENT] == [2, 3]


def test_all_of_a_delivery_is_read() -> None:
    deliver = frame.marshal(Basic.Deliver("tag", 5, True, "exchange", "key"), 7)
    found = arrived(deliver, *content(Basic.Properties(message_id="m"), b"one ", b"two"))
    expected = RawMessage(found.properties, b"one two", "exchange", "key", 5, True, "tag")
    assert found == expected
    assert found.properties == Basic.Properties(message_id="m").marshal()


def test_what_was_got_is_read() -> None:
    got = frame.marshal(Basic.GetOk(5, True, "exchange", "key", 3), 7)
    found = arrived(got, *content(Basic.Properties()))
    assert found == RawMessage(found.properties, b"", "exchange", "key", 5, True)


def test_what_was_returned_is_read() -> None:
    returned = frame.marshal(Basic.Return(312, "NO_ROUTE", "exchange", "key"), 7)
    found = arrived(returned, *content(Basic.Properties(message_id="m"), b"body"))
    assert found == RawMessage(found.properties, b"body", "exchange", "key")


def test_keys_and_headers_may_be_any_bytes() -> None:
    deliver = frame.marshal(Basic.Deliver("t", 1, False, "e", "cafe"), 7)
    strange = b"\x20\0\0\0\0\6\4caf\xe9V"
    header = a_frame(2, struct.pack(">HHQ", 60, 0, 0) + strange)
    found = arrived(deliver.replace(b"cafe", b"caf\xe9"), header)
    assert (found.routing_key, found.properties) == ("caf\udce9", strange)


@pytest.mark.parametrize(
    ("body", "largest", "parts"),
    [(b"", 4096, 0), (b"body", 4096, 1), (b"x" * 10, 12, 3), (b"x" * 10000, 0, 1), (b"", 0, 0)],
)
def test_the_driver_reads_what_is_published(body: bytes, largest: int, parts: int) -> None:
    properties = Basic.Properties(message_id="m", delivery_mode=2).marshal()
    to = short_string("exchange", "it"), short_string("key", "it")
    publish, header, *bodies = read(publishing(7, *to, properties, body, largest))
    assert dict(publish) == dict(Basic.Publish(0, "exchange", "key", mandatory=True))
    assert (header.body_size, header.properties.message_id) == (len(body), "m")
    assert b"".join(each.value for each in bodies) == body
    assert len(bodies) == parts


@pytest.mark.parametrize("multiple", [True, False])
def test_the_driver_reads_how_a_message_is_settled(multiple: bool) -> None:
    written = [
        settling(7, tag, requeue=requeue, multiple=multiple)
        for tag, requeue in ((2**40, False), (3, True))
    ]
    ack, nack = read(b"".join(written))
    assert dict(ack) == dict(Basic.Ack(2**40, multiple))
    assert dict(nack) == dict(Basic.Nack(3, multiple, requeue=True))


def test_the_driver_reads_what_a_queue_is_asked_for() -> None:
    (get,) = read(getting(7, short_string("queue", "it")))
    assert dict(get) == dict(Basic.Get(0, "queue"))
