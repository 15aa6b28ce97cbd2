"""What only the stream in process can be asked: exact moments, and what it forgets when."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from scheduler.brokers.contract import Depth
from scheduler.brokers.memory.broker import MemoryBroker
from scheduler.brokers.memory.server import MemoryServer
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


async def held(broker: MemoryBroker) -> list[bytes]:
    return [message.body async for message in broker.read("s")]


@pytest.mark.parametrize(
    ("age", "seconds"),
    [("90s", 90), ("2m", 120), ("1h", 3600), ("7D", 7 * DAY), ("2M", 60 * DAY), ("1Y", 365 * DAY)],
)
async def test_ages_have_the_units_of_rabbitmq(age: str, seconds: float) -> None:
    async with opened({"x-max-age": age}) as broker:
        await append(broker, b"a", b"b")
        await asyncio.sleep(seconds - 1)
        assert await held(broker) == [b"a", b"b"]
        await asyncio.sleep(2)
        assert await held(broker) == [b"b"]  # the newest stays
        assert await broker.depth("s") == Depth(1, 0)


async def test_a_stream_over_its_limit_keeps_the_newest_entry() -> None:
    async with opened({"x-max-length-bytes": 6}) as broker:
        await append(broker, b"aa", b"bb", b"cc", b"dd")
        assert await held(broker) == [b"bb", b"cc", b"dd"]
        await append(broker, b"too much")
        assert await held(broker) == [b"too much"]


async def test_a_reader_continues_with_the_remaining_entries() -> None:
    async with opened({"x-max-length-bytes": 3}) as broker:
        await append(broker, b"a", b"b", b"c")
        reading = broker.read("s")
        assert (await anext(reading)).body == b"a"
        await append(broker, b"d", b"e")
        assert [message.body async for message in reading] == [b"c"]
