"""What only the broker in process can be asked: exact moments, and what takes RabbitMQ minutes."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from scheduler.brokers.contract import Delivery, Depth
from scheduler.brokers.memory.broker import MemoryBroker
from scheduler.brokers.memory.server import MemoryServer
from scheduler.errors import BrokerUnavailable
from scheduler.protocol.messages import Message
from scheduler.protocol.topology import Queue, Topology
from scheduler.timing.moments import LoopClock
from tests.contract.wire import MemoryWire, send, take, take_all
from tests.stage import START

pytestmark = pytest.mark.usefixtures("clock")  # in virtual time


@pytest.fixture
async def wire() -> AsyncIterator[MemoryWire]:
    async with MemoryWire("quorum") as wire:
        yield wire


async def test_publishing_does_not_call_a_handler(wire: MemoryWire) -> None:
    queue, seen = await wire.declare_queue(), list[Delivery]()
    await wire.broker.consume(queue, seen.append, prefetch=1)
    publishing = wire.broker.publish(Message(b"x"), exchange="", routing_key=queue)
    publishing.send(None)
    assert not seen
    publishing.close()
    await asyncio.sleep(0)
    assert len(seen) == 1


async def test_a_delivery_cancelled_before_its_handler_is_requeued(wire: MemoryWire) -> None:
    queue, seen = await wire.declare_queue(), list[Delivery]()
    await send(wire.broker, queue, b"x")
    consumer = await wire.broker.consume(queue, seen.append, prefetch=1)
    await consumer.cancel()
    await asyncio.sleep(0)
    assert not seen
    assert await take_all(wire.broker, queue, 1) == [b"x"]


async def test_a_delivery_lost_before_its_handler_comes_once(wire: MemoryWire) -> None:
    queue, seen = await wire.declare_queue(), list[Delivery]()
    await send(wire.broker, queue, b"x")
    await wire.broker.consume(queue, seen.append, prefetch=5)
    await wire.cut()
    await asyncio.sleep(0)
    (delivery,) = seen
    assert delivery.redelivered
    await delivery.ack()


async def test_a_cut_takes_a_message_from_its_holder_once(wire: MemoryWire) -> None:
    queue, seen = await wire.declare_queue({"x-delivery-limit": 1}), list[Delivery]()
    for broker in wire.broker, await wire.connect():
        await broker.consume(queue, seen.append, prefetch=1)
    await send(wire.broker, queue, b"x")
    # Were it handed to the other connection in between, it would be over its limit.
    await wire.cut()
    await asyncio.sleep(0)
    assert [delivery.message.body for delivery in seen] == [b"x", b"x"]


async def test_a_deleted_queue_drops_its_unacked_messages(wire: MemoryWire) -> None:
    queue = wire.queue()
    await wire.broker.declare(Topology(queues=(queue,)))
    await send(wire.broker, queue.name, b"a", b"b")
    first, second = [await take(wire.broker, queue.name) for _ in range(2)]
    await wire.broker.delete(queue.name)
    await wire.broker.declare(Topology(queues=(queue,)))
    await first.ack()
    await second.requeue()
    assert await wire.broker.depth(queue.name) == Depth(ready=0, consumers=0)


async def test_each_embedded_broker_is_another_cluster_and_ends_when_it_is_closed() -> None:
    async with MemoryBroker() as one, MemoryBroker() as other:
        assert one.info.cluster != other.info.cluster
        assert one.connected
    assert not one.connected
    with pytest.raises(BrokerUnavailable):
        await one.depth("queue")


# Streams


DAY = 86_400


@asynccontextmanager
async def opened(arguments: dict[str, Any] | None = None) -> AsyncGenerator[MemoryBroker]:
    async with MemoryBroker(MemoryServer(LoopClock(START))) as broker:
        spec = Queue("s", {"x-queue-type": "stream", **(arguments or {})})
        await broker.declare(Topology(queues=(spec,)))
        yield broker


async def held(broker: MemoryBroker) -> list[bytes]:
    return [message.body async for message in broker.read("s")]


@pytest.mark.parametrize(
    ("age", "seconds"),
    [("90s", 90), ("2m", 120), ("1h", 3600), ("7D", 7 * DAY), ("2M", 60 * DAY), ("1Y", 365 * DAY)],
)
async def test_ages_have_the_units_of_rabbitmq(age: str, seconds: float) -> None:
    async with opened({"x-max-age": age}) as broker:
        await send(broker, "s", b"a", b"b")
        await asyncio.sleep(seconds - 1)
        assert await held(broker) == [b"a", b"b"]
        await asyncio.sleep(2)
        assert await held(broker) == [b"b"]  # the newest stays
        assert await broker.depth("s") == Depth(1, 0)


async def test_a_stream_over_its_limit_keeps_the_newest_entry() -> None:
    async with opened({"x-max-length-bytes": 6}) as broker:
        await send(broker, "s", b"aa", b"bb", b"cc", b"dd")
        assert await held(broker) == [b"bb", b"cc", b"dd"]
        await send(broker, "s", b"too much")
        assert await held(broker) == [b"too much"]


async def test_time_spent_on_the_last_entry_is_not_missing_for_others() -> None:
    async with opened() as broker:
        await send(broker, "s", b"a", b"b")
        read = list[bytes]()
        async for message in broker.read("s", timeout=timedelta(seconds=1)):
            read.append(message.body)
            await asyncio.sleep(0.9)
        assert read == [b"a", b"b"]


async def test_a_reader_continues_with_the_remaining_entries() -> None:
    async with opened({"x-max-length-bytes": 3}) as broker:
        await send(broker, "s", b"a", b"b", b"c")
        reading = broker.read("s")
        assert (await anext(reading)).body == b"a"
        await send(broker, "s", b"d", b"e")
        assert [message.body async for message in reading] == [b"c"]
