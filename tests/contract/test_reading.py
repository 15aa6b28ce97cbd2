"""A stream that is read to its end: nothing is left out that was confirmed before."""

import asyncio
from contextlib import aclosing

import pytest

from scheduler.brokers.contract import Broker
from scheduler.errors import QueueNotFound
from scheduler.protocol.messages import Message
from scheduler.queues.reading import read_to_end
from tests.contract.wire import Wire

KEY = "entry"


async def write(broker: Broker, exchange: str, *bodies: bytes) -> None:
    for body in bodies:
        await broker.publish(Message(body), exchange=exchange, routing_key=KEY)


async def read(broker: Broker, exchange: str, stream: str) -> list[bytes]:
    reading = read_to_end(broker, stream, exchange=exchange, routing_key=KEY)
    async with aclosing(reading) as messages:
        return [message.body async for message in messages]


async def test_each_reader_finds_what_was_confirmed_before_it_began(
    wire: Wire, broker: Broker
) -> None:
    stream = await wire.declare_stream()
    exchange = await wire.declare_exchange("topic", {KEY: stream})
    other = await wire.connect()
    written: list[bytes] = []
    for number in range(20):
        written.append(b"%d" % number)
        await write(broker, exchange, written[-1])
        assert await read(other, exchange, stream) == written


async def test_readers_and_writers_at_once_miss_nothing(wire: Wire, broker: Broker) -> None:
    stream = await wire.declare_stream()
    exchange = await wire.declare_exchange("topic", {KEY: stream})
    confirmed: list[bytes] = []

    async def write_and_note(writer: int) -> None:
        connection = await wire.connect()
        for number in range(50):
            body = b"%d/%d" % (writer, number)
            await write(connection, exchange, body)
            confirmed.append(body)

    async def read_and_compare() -> None:
        connection = await wire.connect()
        for _ in range(5):
            before = set(confirmed)
            assert before <= set(await read(connection, exchange, stream))

    readers, writers = range(2), range(2)
    async with asyncio.TaskGroup() as group:
        for writer in writers:
            group.create_task(write_and_note(writer))
        for _ in readers:
            group.create_task(read_and_compare())
    assert sorted(await read(broker, exchange, stream)) == sorted(confirmed)


async def test_where_there_is_no_stream_nothing_can_be_read(wire: Wire, broker: Broker) -> None:
    exchange = await wire.declare_exchange()
    with pytest.raises(QueueNotFound):
        await read(broker, exchange, wire.name("nowhere"))
