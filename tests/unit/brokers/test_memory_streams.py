"""What only the stream in process can be asked: exact moments, and what it forgets when."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from scheduler.brokers.contract import Depth
from scheduler.brokers.memory.broker import MemoryBroker
from scheduler.brokers.memory.server import MemoryServer
from scheduler.errors import IncompatibleBroker, QueueNotFound
from scheduler.protocol.messages import Message
from scheduler.protocol.topology import Queue, Topology
from scheduler.timing.moments import LoopClock

START = datetime(2026, 6, 1, tzinfo=UTC)
DAY = 86_400

pytestmark = pytest.mark.usefixtures("clock")  # in virtual time


@asynccontextmanager
async def opened(arguments: dict[str, Any] | None = None) -> AsyncGenerator[MemoryBroker]:
    async with MemoryBroker(MemoryServer(LoopClock(START))) as broker:
        spec = Queue("s", {"x-queue-type": "stream", **(arguments or {})})
        await broker.declare(Topology(queues=(spec,)))
        yield broker


async def append(broker: MemoryBroker, *bodies: bytes) -> None:
    for body in bodies:
        await broker.publish(Message(body), exchange="", routing_key="s")


async def held(broker: MemoryBroker, since: datetime | None = None) -> list[bytes]:
    return [message.body async for message in broker.read("s", since=since)]


async def test_a_moment_is_found_exactly_and_reading_takes_no_time() -> None:
    async with opened() as broker:
        for body in b"a", b"b", b"c":
            await append(broker, body)
            await asyncio.sleep(DAY)
        began = asyncio.get_running_loop().time()
        assert await held(broker, START + timedelta(days=1)) == [b"b", b"c"]
        assert await held(broker, START + timedelta(days=1, seconds=1)) == [b"c"]
        assert await held(broker, START + timedelta(days=9)) == []
        assert asyncio.get_running_loop().time() == began


async def test_what_is_too_old_goes_but_for_the_newest() -> None:
    async with opened({"x-max-age": "7D"}) as broker:
        await append(broker, b"a")
        await asyncio.sleep(5 * DAY)
        await append(broker, b"b", b"c")
        assert await held(broker) == [b"a", b"b", b"c"]
        await asyncio.sleep(3 * DAY)
        assert await held(broker) == [b"b", b"c"]
        await asyncio.sleep(300 * DAY)
        assert await broker.depth("s") == Depth(1, 0)
        assert await held(broker) == [b"c"]


@pytest.mark.parametrize(
    ("age", "seconds"),
    [("90s", 90), ("2m", 120), ("1h", 3600), ("2M", 60 * DAY), ("1Y", 365 * DAY)],
)
async def test_ages_have_the_units_of_rabbitmq(age: str, seconds: float) -> None:
    async with opened({"x-max-age": age}) as broker:
        await append(broker, b"a", b"b")
        await asyncio.sleep(seconds - 1)
        assert await held(broker) == [b"a", b"b"]
        await asyncio.sleep(2)
        assert await held(broker) == [b"b"]


async def test_what_is_too_much_goes_but_for_the_newest() -> None:
    async with opened({"x-max-length-bytes": 6}) as broker:
        await append(broker, b"aa", b"bb", b"cc", b"dd")
        assert await held(broker) == [b"bb", b"cc", b"dd"]
        await append(broker, b"too much")
        assert await held(broker) == [b"too much"]


async def test_a_reader_goes_on_with_what_is_left() -> None:
    async with opened({"x-max-length-bytes": 3}) as broker:
        await append(broker, b"a", b"b", b"c")
        reading = broker.read("s")
        assert (await anext(reading)).body == b"a"
        await append(broker, b"d", b"e")
        assert [message.body async for message in reading] == [b"c"]


async def test_a_stream_is_not_consumed_and_a_queue_is_not_followed() -> None:
    async with opened() as broker:
        await broker.declare(Topology(queues=(Queue("q"),)))
        for operation in (
            broker.get("s"),
            broker.consume("s", lambda delivery: None, prefetch=1),
            broker.follow("q", lambda message: None),
            anext(broker.read("q")),
        ):
            with pytest.raises(IncompatibleBroker, match="stream"):
                await operation
        with pytest.raises(QueueNotFound):
            await broker.follow("nothing", lambda message: None)
