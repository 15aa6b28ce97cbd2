"""Frames: what is taken of what comes, and what aiormq is given to read."""

import asyncio
import struct
import time
from contextlib import suppress
from typing import Any

import pytest
from aiormq.exceptions import AMQPConnectionError
from pamqp import frame
from pamqp.commands import Basic
from pamqp.heartbeat import Heartbeat

from scheduler.brokers.amqp.frames import Frames, Incoming, settlement_of


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


async def test_frames_of_a_channel_bypass_the_driver() -> None:
    taker = Everything(but=struct.pack(">I", Basic.QosOk.index))
    sent = [Basic.Ack(3, True), Basic.QosOk(), Basic.Ack(4), Basic.QosOk()]
    strange = struct.pack(">BHI", 2, 8, 3) + b"\xff\xff\xff" + b"\xce"  # of a channel that is gone
    frames = [*(frame.marshal(each, 7) for each in sent), strange, frame.marshal(Heartbeat(), 0)]
    found = await left(taker, *frames)
    expected = [(7, Basic.QosOk), (7, Basic.QosOk), (0, Heartbeat)]
    assert [(channel, type(each)) for _, channel, each in found] == expected
    assert [settlement_of(payload) for _, payload in taker.taken] == [(3, True), (4, False)]


@pytest.mark.parametrize("size", [1, 3, 11, 1000])
async def test_frames_may_arrive_in_pieces(size: int) -> None:
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


async def test_a_frame_with_a_wrong_length_ends_the_connection() -> None:
    taker, heard = Everything(), asyncio.Event()
    incoming = Incoming(taker.of, heard.set)
    incoming.feed_data(frame.marshal(Basic.Ack(1), 7)[:-1] + b"\0")
    assert heard.is_set()
    incoming.feed_data(frame.marshal(Basic.Ack(2), 7))
    with pytest.raises(AMQPConnectionError, match="does not end"):
        await Frames(incoming).get_frame()
    assert not taker.taken


class Slow(Everything):
    """Takes each frame for some milliseconds."""

    def takes(self, kind: int, payload: bytes) -> bool:
        time.sleep(0.003)
        return super().takes(kind, payload)


@pytest.mark.parametrize("end", ["none", "lost", "closed"])
async def test_other_tasks_run_while_many_frames_arrive(end: str) -> None:
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
