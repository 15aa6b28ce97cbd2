"""A stream that is read to its end: all of it, or an error."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from datetime import datetime, timedelta

import pytest

from scheduler.brokers.contract import DEFAULT_QUIET
from scheduler.brokers.memory.server import MemoryServer
from scheduler.errors import BrokerUnavailable, QueueNotFound, Unconfirmed
from scheduler.protocol.messages import Message
from scheduler.protocol.topology import Names, topology
from scheduler.queues.reading import MARK, UNTIL_MARK, read_to_end
from scheduler.timing.clock import LoopClock
from tests.faulty import Call, FaultyBroker
from tests.stage import START

NAMES = Names("test")


@pytest.fixture
async def broker(clock: LoopClock) -> AsyncIterator[FaultyBroker]:
    async with FaultyBroker(MemoryServer(clock)) as broker:
        await broker.declare(topology("test", [], []))
        yield broker


async def write(broker: FaultyBroker, *bodies: bytes) -> None:
    for body in bodies:
        message = Message(body)
        await broker.publish(message, exchange=NAMES.control, routing_key=NAMES.roster)


async def read(broker: FaultyBroker, since: datetime | None = None) -> list[bytes]:
    reading = read_to_end(
        broker, NAMES.roster, exchange=NAMES.control, routing_key=NAMES.roster, since=since
    )
    async with aclosing(reading) as messages:
        return [message.body async for message in messages]


def is_mark(call: Call) -> bool:
    return call.message.type == MARK


@pytest.mark.parametrize("bodies", [[], [b"1"], [b"1", b"2", b"3"]])
async def test_all_that_was_confirmed_before_is_there(
    broker: FaultyBroker, bodies: list[bytes]
) -> None:
    await write(broker, *bodies)
    assert await read(broker) == bodies


async def test_what_was_confirmed_while_its_mark_was_under_way_is_there(
    broker: FaultyBroker,
) -> None:
    async def write_more(call: Call) -> None:
        await write(broker, b"2")

    broker.on("publish", where=is_mark).first(write_more)
    await write(broker, b"1")
    assert await read(broker) == [b"1", b"2"]


async def test_what_comes_after_the_mark_is_not_waited_for(broker: FaultyBroker) -> None:
    async def write_more(call: Call) -> None:
        await write(broker, b"2")

    broker.on("publish", where=is_mark).then(write_more)
    await write(broker, b"1")
    assert await read(broker) == [b"1"]


async def test_the_marks_of_others_are_neither_read_nor_an_end(broker: FaultyBroker) -> None:
    for body in b"1", b"2":
        await write(broker, body)
        assert (await read(broker))[-1] == body
    assert await asyncio.gather(read(broker), read(broker)) == [[b"1", b"2"]] * 2


async def test_only_what_came_since_a_moment_is_read(broker: FaultyBroker) -> None:
    await write(broker, b"1")
    await asyncio.sleep(10)
    await write(broker, b"2")
    assert await read(broker, since=START + timedelta(seconds=5)) == [b"2"]


@pytest.mark.parametrize("handed_out", range(3))
async def test_a_stream_that_does_not_give_the_mark_is_no_short_stream(
    broker: FaultyBroker, handed_out: int
) -> None:
    broker.on("read", where=lambda call: call.position == handed_out).fails(EOFError())
    await write(broker, b"1", b"2")
    with pytest.raises(BrokerUnavailable, match=r"'test\.v1\.roster' .* not be read to its end"):
        await read(broker)


async def test_a_stream_that_keeps_still_is_given_more_time_than_usual(
    broker: FaultyBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, reading = list[timedelta](), broker.read

    def noted(stream: str, *, since: datetime | None, quiet: timedelta) -> AsyncGenerator[Message]:
        given.append(quiet)
        return reading(stream, since=since, quiet=quiet)

    monkeypatch.setattr(broker, "read", noted)
    await read(broker)
    assert given == [UNTIL_MARK]
    assert UNTIL_MARK > 5 * DEFAULT_QUIET


async def test_without_a_mark_nothing_is_read(broker: FaultyBroker) -> None:
    broker.on("publish", where=is_mark).loses_its_answer()
    reading = broker.on("read")
    await write(broker, b"1")
    with pytest.raises(Unconfirmed):
        await read(broker)
    assert reading.met == []


async def test_where_there_is_no_stream_nothing_can_be_read(broker: FaultyBroker) -> None:
    await broker.delete(NAMES.roster)
    with pytest.raises(QueueNotFound, match=r"no 'test\.v1\.roster'"):
        await read(broker)
