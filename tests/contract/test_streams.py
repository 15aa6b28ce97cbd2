"""Statement 7: a stream keeps what was published, for all who read or follow it."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from scheduler.brokers.contract import Broker
from scheduler.errors import BrokerUnavailable, IncompatibleBroker, QueueNotFound, StreamTooLong
from scheduler.protocol.messages import Message
from scheduler.protocol.topology import Queue, QueueType, Topology
from tests.contract.wire import PATIENCE, MemoryWire, Reader, Wire, has_depth, send, take_all, until


@pytest.fixture
def queue_type() -> QueueType:
    """A stream is of no other type: once is enough."""
    return "quorum"


async def bodies_of(broker: Broker, stream: str, since: datetime | None = None) -> list[bytes]:
    async with asyncio.timeout(PATIENCE):
        return [message.body async for message in broker.read(stream, since=since)]


def numbered(*numbers: int) -> list[bytes]:
    return [b"%d" % number for number in numbers]


async def test_confirmed_messages_are_read_at_once_without_writing(
    broker: Broker, stream: str, other: Broker
) -> None:
    many = numbered(*range(5000))  # RabbitMQ writes them in few chunks
    await asyncio.gather(*(send(other, stream, body) for body in many))
    assert set(await bodies_of(broker, stream)) == set(many)
    await has_depth(broker, stream, ready=5000)
    began = asyncio.get_running_loop().time()
    for number in range(5000, 5020):
        await send(other, stream, b"%d" % number)
        last = await broker.last(stream)
        read = [message.offset async for message in broker.read(stream, since=number)]
        assert (last and last.offset, read) == (number, [number])
        assert [each async for each in broker.read(stream, since=number + 1)] == []
    assert asyncio.get_running_loop().time() - began < 55  # 60 reads, none of which waits a second
    await has_depth(broker, stream, ready=5020)


async def test_a_message_is_read_as_published_without_tables_and_lists(
    broker: Broker, stream: str
) -> None:
    headers = {
        "seq": 2**40,
        "ratio": 0.1,
        "loop": "tägliches",
        "empty": "",
        "yes": True,
        "no": None,
    }
    message = Message(
        b'{"carry": 1}',
        headers,
        content_type="application/json",
        message_id="t/loop/1/0",
        priority=3,
        timestamp=datetime(2026, 6, 1, 12, tzinfo=UTC),
        expiration=timedelta(milliseconds=1),
        app_id="a",
    )
    unkept = {"table": {"a": 1}, "list": [1, "a"], "CC": ["elsewhere"]}
    sent = replace(message, headers={**headers, **unkept})
    await broker.publish(sent, exchange="", routing_key=stream)
    assert [each async for each in broker.read(stream)] == [message]


async def disturbed(
    reading: AsyncGenerator[Message], disturb: Callable[[], Awaitable[None]], *, after: int = 1
) -> None:
    entries = itertools.count(1)
    async with asyncio.timeout(PATIENCE):
        async for _ in reading:
            if next(entries) == after:
                await disturb()


def to_end(
    broker: Broker, stream: str, *, timeout: float = PATIENCE, **window: Any
) -> AsyncGenerator[Message]:
    """What a stream is read back as, the mark straight into it."""
    return broker.read_to_end(
        stream, exchange="", routing_key=stream, timeout=timedelta(seconds=timeout), **window
    )


async def bodies_to_end(broker: Broker, stream: str, **window: Any) -> list[bytes]:
    return [message.body async for message in to_end(broker, stream, **window)]


async def test_the_end_of_a_stream_is_found_while_it_grows(
    broker: Broker, stream: str, other: Broker
) -> None:
    written = itertools.count()
    confirmed: list[bytes] = []

    async def write() -> None:
        for number in written:
            await send(other, stream, b"%d" % number)
            confirmed.append(b"%d" % number)

    writing = [asyncio.create_task(write()) for _ in range(3)]
    try:
        for _ in range(20):
            before = set(confirmed)
            assert before <= set(await bodies_to_end(broker, stream))
            assert before <= set(await bodies_of(broker, stream))
    finally:
        for each in writing:
            each.cancel()
    assert len(confirmed) > 20


async def test_marks_reach_no_reader(broker: Broker, stream: str, other: Broker) -> None:
    assert await bodies_of(broker, stream) == []
    follower = await Reader.open(broker, stream, since="first")
    for number in range(3):
        await send(broker, stream, b"%d" % number)
        await asyncio.gather(*(bodies_to_end(each, stream) for each in (broker, other)))
    await has_depth(broker, stream, ready=9)
    assert await bodies_to_end(other, stream) == numbered(0, 1, 2)
    for each in (broker, other):
        assert await bodies_of(each, stream) == numbered(0, 1, 2)
    assert await follower.bodies(3) == numbered(0, 1, 2)
    await send(broker, stream, b"3")
    assert await follower.bodies(1) == [b"3"]


async def test_a_mark_takes_the_route_of_the_messages(wire: Wire, broker: Broker) -> None:
    stream, queue = await wire.declare_stream(), await wire.declare_queue()
    exchange = await wire.declare_exchange("topic", {"#": stream, "loop.#": queue})
    await broker.publish(Message(b"a"), exchange=exchange, routing_key="loop.a")
    reading = broker.read_to_end(stream, exchange=exchange, routing_key="mark")
    assert [message.body async for message in reading] == [b"a"]
    assert await take_all(broker, queue, 1) == [b"a"]


async def test_a_missing_mark_is_an_error(wire: Wire, broker: Broker) -> None:
    stream, elsewhere = await wire.declare_stream(), await wire.declare_queue()
    await send(broker, stream, b"a", b"b")
    reading = broker.read_to_end(
        stream, exchange="", routing_key=elsewhere, timeout=timedelta(seconds=1.5)
    )
    assert [(await anext(reading)).body for _ in range(2)] == [b"a", b"b"]
    with pytest.raises(BrokerUnavailable, match="could not be read to its end: no more"):
        await anext(reading)
    assert broker.connected


async def test_a_long_stream_is_read_on_from_the_last_position(wire: Wire, broker: Broker) -> None:
    stream, numbers, read = await wire.declare_stream(), range(9), set[bytes]()
    for number in numbers:
        await send(broker, stream, b"%d" % number)

    async def read_slowly(since: int) -> int | None:
        """Where it came to; None: to the end."""
        try:
            async for message in to_end(broker, stream, timeout=1, since=since):
                read.add(message.body)
                await asyncio.sleep(0.3)
        except StreamTooLong as error:
            return error.reached
        return None

    reached, parts = await read_slowly(0), 1
    while reached is not None:
        reached, parts = await read_slowly(reached), parts + 1
    assert read == set(numbered(*numbers))
    assert parts < len(numbers)


async def test_an_unroutable_mark_is_an_error(wire: Wire, broker: Broker) -> None:
    stream, exchange = await wire.declare_stream(), await wire.declare_exchange()
    with pytest.raises(QueueNotFound, match="do not reach the stream"):
        await anext(broker.read_to_end(stream, exchange=exchange, routing_key="mark"))
    with pytest.raises(QueueNotFound, match="do not reach the stream"):
        await anext(broker.read_to_end(stream, exchange=wire.name("none"), routing_key="mark"))
    assert await bodies_to_end(broker, stream) == []


async def test_reading_a_deleted_or_cut_stream_fails(wire: Wire, broker: Broker, stream: str):
    await asyncio.gather(*(send(broker, stream, body) for body in numbered(*range(3000))))
    if not isinstance(wire, MemoryWire):  # what is in this process is read without a connection
        for after in 1, 240:
            with pytest.raises(BrokerUnavailable):
                await disturbed(to_end(broker, stream), wire.cut, after=after)
    with pytest.raises(QueueNotFound):
        await disturbed(broker.read(stream), lambda: broker.delete(stream))


async def test_reading_to_the_end_may_stop_early(broker: Broker, stream: str) -> None:
    await send(broker, stream, b"a", b"b", b"c")
    for _ in range(3):
        async with aclosing(to_end(broker, stream)) as messages:
            assert (await anext(messages)).body == b"a"
    assert await bodies_to_end(broker, stream) == [b"a", b"b", b"c"]


async def test_a_stream_is_read_from_a_moment_to_the_end(wire: Wire, broker: Broker, stream: str):
    await send(broker, stream, b"old")
    await asyncio.sleep(1.1)  # RabbitMQ is asked for a moment in whole seconds
    between = wire.clock.now()
    await send(broker, stream, b"a", b"b")
    assert await bodies_to_end(broker, stream, since=between) == [b"a", b"b"]
    assert await bodies_to_end(broker, stream, since=between + timedelta(days=1)) == []
    long_ago = between - timedelta(days=36525)
    assert await bodies_to_end(broker, stream, since=long_ago) == [b"old", b"a", b"b"]
    assert await bodies_of(broker, stream, between) == [b"a", b"b"]
    assert await bodies_of(broker, stream, between + timedelta(days=1)) == []
    assert await bodies_of(broker, stream, long_ago) == [b"old", b"a", b"b"]


async def test_a_stream_is_read_from_the_offset_of_a_message(wire: Wire, broker: Broker) -> None:
    stream, heard = await wire.declare_stream(), list[int | None]()
    follower = await broker.follow(stream, lambda message: heard.append(message.offset))
    await asyncio.gather(*(send(broker, stream, b"") for _ in range(600)))
    for offset in 0, 300, 599:
        for reading in to_end(broker, stream, since=offset), broker.read(stream, since=offset):
            assert [message.offset async for message in reading] == [*range(offset, 600)]
    await until(lambda: heard == [*range(600)])
    await follower.cancel()


async def test_a_stream_shorter_than_an_offset_is_read_from_its_start(
    wire: Wire, broker: Broker, stream: str
) -> None:
    assert await bodies_to_end(broker, stream, since=3) == []
    await send(broker, stream, *numbered(0, 1, 2))
    for reading in to_end(broker, stream, since=1_000), broker.read(stream, since=2**62):
        assert [message.body async for message in reading] == numbered(0, 1, 2)
    stream = await wire.declare_stream()
    await send(broker, stream, *numbered(0, 1, 2))
    readers = [await Reader.open(broker, stream, since=since) for since in (3, 100)]
    for reader in readers:
        assert await reader.bodies(3) == numbered(0, 1, 2)
    await send(broker, stream, b"3")
    for reader in readers:
        assert await reader.bodies(1) == [b"3"]


async def test_the_last_message_of_a_stream(broker: Broker, stream: str, other: Broker) -> None:
    assert await broker.last(stream) is None
    await send(other, stream, b"first")
    await has_depth(broker, stream, ready=1)  # RabbitMQ counts the messages of a stream at times
    for number in 1, 2:
        await send(other, stream, b"%d" % number * 200_000)
        last = await broker.last(stream)
        assert last is not None
        assert (last.body, last.offset) == (b"%d" % number * 200_000, number)


async def test_reading_since_a_moment_misses_nothing(wire: Wire, broker: Broker, stream: str):
    for number in range(4):
        since = wire.clock.now()
        await send(broker, stream, b"%d" % number)
        assert b"%d" % number in await bodies_to_end(broker, stream, since=since)
        await asyncio.sleep(0.3)  # another part of a second


@pytest.mark.parametrize("kind", ["quorum", "classic"])
async def test_other_queues_cannot_be_read_or_followed_as_streams(
    wire: Wire, broker: Broker, kind: str
) -> None:
    queue = wire.name("queue")
    await broker.declare(Topology(queues=(Queue(queue, {"x-queue-type": kind}),)))
    await send(broker, queue, b"a", b"b")
    await has_depth(broker, queue, ready=2)
    for name, error in ((queue, IncompatibleBroker), (wire.name("nothing"), QueueNotFound)):
        for operation in (
            bodies_of(broker, name),
            bodies_to_end(broker, name),
            Reader.open(broker, name, since="first"),
            broker.last(name),
        ):
            with pytest.raises(error):
                await operation
    await has_depth(broker, queue, ready=2, consumers=0)  # and no mark is left there
    assert await take_all(broker, queue, 2) == [b"a", b"b"]


async def test_a_follower_begins_with_the_first_or_the_next(
    wire: Wire, broker: Broker, stream: str
) -> None:
    await send(broker, stream, b"a", b"b")
    first = await Reader.open(broker, stream, since="first")
    following = await Reader.open(broker, stream)
    assert await first.bodies(2) == [b"a", b"b"]
    await send(await wire.connect(), stream, b"c")
    assert await first.bodies(1) == [b"c"]
    assert await following.bodies(1) == [b"c"]
    assert first.follower.active
    assert following.follower.active


async def test_a_follower_begins_with_the_message_of_an_offset(
    wire: Wire, broker: Broker, stream: str
) -> None:
    await send(broker, stream, *numbered(*range(5)))
    assert len(await bodies_to_end(broker, stream)) == 5  # with a mark, that is handed to nobody
    for since in (0, 3, 4):
        reader = await Reader.open(broker, stream, since=since)
        assert await reader.bodies(5 - since) == numbered(*range(since, 5))
        assert reader.is_empty
        await reader.follower.cancel()
    following = await Reader.open(await wire.connect(), stream, since=4)
    await send(broker, stream, b"next")
    assert await following.bodies(2) == [b"4", b"next"]


async def test_a_cancelled_follower_gets_nothing_more(broker: Broker, stream: str) -> None:
    cancelled, other = [await Reader.open(broker, stream) for _ in range(2)]
    await cancelled.follower.cancel()
    await cancelled.follower.cancel()
    assert not cancelled.follower.active
    await send(broker, stream, b"x")
    assert await other.bodies(1) == [b"x"]
    assert cancelled.is_empty


async def test_a_follower_continues_after_every_cut(wire: Wire, broker: Broker, stream: str):
    await send(broker, stream, b"0")
    reader = await Reader.open(broker, stream, since="first")
    publisher = await wire.connect_past_cuts()
    assert await reader.bodies(1) == [b"0"]
    for number in range(1, 4):
        assert len(await bodies_to_end(publisher, stream)) == number  # with a mark
        await wire.cut()
        await send(publisher, stream, b"%d" % number)
        assert await reader.bodies(1) == [b"%d" % number]
    assert reader.is_empty
    assert reader.follower.active


async def test_a_new_follower_gets_messages_of_a_disconnection(wire: Wire, broker: Broker) -> None:
    publisher = await wire.connect_past_cuts()
    for _ in range(3):
        stream = await wire.declare_stream()
        reader = await Reader.open(broker, stream)
        await wire.cut()
        await send(publisher, stream, b"x")
        assert await reader.bodies(1) == [b"x"]


async def test_a_closed_connection_ends_its_followers(wire: Wire, broker: Broker) -> None:
    stream, other = await wire.declare_stream(), wire.make_broker()
    async with other:
        gone, here = await Reader.open(other, stream), await Reader.open(broker, stream)
    await send(broker, stream, b"x")
    assert await here.bodies(1) == [b"x"]
    assert gone.is_empty
    assert not gone.follower.active


@pytest.mark.parametrize("anew", [1, 3, 5], ids=["shorter", "as long", "longer"])
async def test_a_recreated_stream_is_followed_from_its_start(
    broker: Broker, stream: str, other: Broker, anew: int
) -> None:
    await send(broker, stream, b"a", b"b", b"c")
    reader = await Reader.open(other, stream, since="first")
    assert await reader.bodies(3) == [b"a", b"b", b"c"]
    await broker.delete(stream)
    await until(lambda: not reader.follower.active)
    await broker.declare(Topology(queues=(Queue(stream, {"x-queue-type": "stream"}),)))
    bodies = numbered(*range(anew))
    await send(broker, stream, *bodies)
    assert await reader.bodies(anew) == bodies
    await send(broker, stream, b"last")
    assert await reader.bodies(1) == [b"last"]
    assert reader.follower.active


async def test_a_stream_is_bound_and_declared_like_a_queue(wire: Wire, broker: Broker, queue: str):
    limits = {"x-max-length-bytes": 10_000_000, "x-stream-max-segment-size-bytes": 1_000_000}
    stream = Queue(wire.name("stream"), {"x-queue-type": "stream", "x-max-age": "7D", **limits})
    for _ in range(2):
        await broker.declare(Topology(queues=(stream,)))
    exchange = await wire.declare_exchange("topic", {"#": stream.name, "a.*": queue})
    await broker.publish(Message(b"both"), exchange=exchange, routing_key="a.b")
    await broker.publish(Message(b"stream"), exchange=exchange, routing_key="c")
    assert await bodies_of(broker, stream.name) == [b"both", b"stream"]
    assert await take_all(broker, queue, 1) == [b"both"]
    await has_depth(broker, stream.name, ready=2)


async def test_a_stream_with_other_arguments_or_a_bad_age_is_refused(wire: Wire, broker: Broker):
    there, other = await wire.declare_stream({"x-max-age": "7D"}), wire.name("stream")
    for name, arguments in (
        (there, {}),
        (there, {"x-queue-type": "stream", "x-max-age": "1D"}),
        (there, {"x-queue-type": "quorum"}),
        (other, {"x-queue-type": "stream", "x-max-age": "7 days"}),
    ):
        with pytest.raises(IncompatibleBroker, match=name):
            await broker.declare(Topology(queues=(Queue(name, arguments),)))
    assert await broker.depth(other) is None
