"""What only the broker in process can be asked: exact moments, and what takes RabbitMQ minutes."""

import asyncio
import itertools
from datetime import timedelta
from typing import Any

import pytest

from scheduler.brokers.contract import Delivery, Depth
from scheduler.brokers.memory.broker import MemoryBroker
from scheduler.brokers.memory.server import MemoryServer
from scheduler.errors import (
    BrokerUnavailable,
)
from scheduler.protocol.messages import Message
from scheduler.protocol.topology import Binding, Exchange, Queue, Topology

HOUR = timedelta(hours=1)


pytestmark = pytest.mark.usefixtures("clock")  # in virtual time


def now() -> float:
    return asyncio.get_running_loop().time()


def into(target: str, **arguments: Any) -> dict[str, Any]:
    """Arguments of a queue that dead-letters into the target queue."""
    named = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    return {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": target, **named}


AT_LEAST_ONCE: dict[str, Any] = {
    "queue_type": "quorum",
    "overflow": "reject-publish",
    "dead_letter_strategy": "at-least-once",
}


async def declare(broker: MemoryBroker, name: str, arguments: dict[str, Any] | None = None) -> str:
    await broker.declare(Topology(queues=(Queue(name, arguments or {}),)))
    return name


async def send(broker: MemoryBroker, queue: str, *bodies: bytes, **properties: Any) -> None:
    for body in bodies:
        await broker.publish(Message(body, **properties), exchange="", routing_key=queue)


async def take(broker: MemoryBroker, queue: str) -> Delivery:
    delivery = await broker.get(queue)
    assert delivery
    return delivery


async def take_all(broker: MemoryBroker, queue: str) -> list[bytes]:
    bodies: list[bytes] = []
    while delivery := await broker.get(queue):
        bodies.append(delivery.message.body)
        await delivery.ack()
    return bodies


async def ready(broker: MemoryBroker, queue: str) -> int:
    depth = await broker.depth(queue)
    assert depth
    return depth.ready


async def test_a_month_of_hours_takes_exactly_a_month() -> None:
    async with MemoryBroker() as broker:
        await declare(broker, "processor")
        slot = await declare(broker, "slot", into("processor", max_length=0, **AT_LEAST_ONCE))
        arrived: asyncio.Queue[Delivery] = asyncio.Queue()
        await broker.consume("processor", arrived.put_nowait, prefetch=1)
        await send(broker, slot, b"token", expiration=HOUR)
        for run in itertools.count(1):
            hatched = await arrived.get()
            assert now() == pytest.approx(run * HOUR.total_seconds(), abs=1e-3)
            if run == 30 * 24:
                break
            await send(broker, slot, b"token", expiration=HOUR)
            await hatched.ack()


async def test_the_broker_needs_no_timer_while_nothing_can_expire() -> None:
    async with MemoryBroker() as broker:
        queue = await declare(broker, "queue")
        await send(broker, queue, b"x", expiration=HOUR)
        held = await take(broker, queue)
        await asyncio.sleep(7200)
        assert not held.lost.done()
        await held.requeue()
        assert await ready(broker, queue) == 0


async def test_publishing_does_not_call_a_handler() -> None:
    async with MemoryBroker() as broker:
        queue = await declare(broker, "queue")
        seen: list[Delivery] = []
        await broker.consume(queue, seen.append, prefetch=1)
        publishing = broker.publish(Message(b"x"), exchange="", routing_key=queue)
        publishing.send(None)
        assert not seen
        publishing.close()
        await asyncio.sleep(0)
        assert len(seen) == 1


async def test_what_is_cancelled_before_its_handler_was_called_goes_back() -> None:
    async with MemoryBroker() as broker:
        queue = await declare(broker, "queue")
        await send(broker, queue, b"x")
        seen: list[Delivery] = []
        consumer = await broker.consume(queue, seen.append, prefetch=1)
        await consumer.cancel()
        await asyncio.sleep(0)
        assert not seen
        assert await take_all(broker, queue) == [b"x"]


async def test_what_is_lost_before_its_handler_was_called_comes_once() -> None:
    server = MemoryServer()
    async with MemoryBroker(server) as broker:
        queue = await declare(broker, "queue")
        await send(broker, queue, b"x")
        seen: list[Delivery] = []
        await broker.consume(queue, seen.append, prefetch=5)
        server.disconnect_all()
        await asyncio.sleep(0)
        (delivery,) = seen
        assert delivery.redelivered
        await delivery.ack()


async def test_a_cut_takes_a_message_from_its_holder_once() -> None:
    server = MemoryServer()
    async with MemoryBroker(server) as first, MemoryBroker(server) as second:
        queue = await declare(first, "queue", {"x-queue-type": "quorum", "x-delivery-limit": 1})
        seen: list[Delivery] = []
        await first.consume(queue, seen.append, prefetch=1)
        await second.consume(queue, seen.append, prefetch=1)
        await send(first, queue, b"x")
        # Were it handed to the other connection in between, it would be over its limit.
        server.disconnect_all()
        await asyncio.sleep(0)
        assert [delivery.message.body for delivery in seen] == [b"x", b"x"]


async def test_a_letter_that_nothing_takes_leaves_when_a_queue_is_made() -> None:
    async with MemoryBroker() as broker:
        queue = await declare(broker, "queue", into("later", **AT_LEAST_ONCE))
        await send(broker, queue, b"x", expiration=HOUR)
        await asyncio.sleep(7200)
        assert await ready(broker, queue) == 0
        await declare(broker, "later")
        assert await take_all(broker, "later") == [b"x"]


async def test_a_letter_that_a_full_queue_rejects_is_tried_again_after_minutes() -> None:
    async with MemoryBroker() as broker:
        full = await declare(broker, "full", {"x-max-length": 1, "x-overflow": "reject-publish"})
        queue = await declare(broker, "queue", into(full, **AT_LEAST_ONCE))
        await send(broker, full, b"first")
        await send(broker, queue, b"second", expiration=timedelta(0))
        await asyncio.sleep(1000)
        assert await take_all(broker, full) == [b"first"]
        await asyncio.sleep(180)
        assert await take_all(broker, full) == [b"second"]


async def test_over_the_delivery_limit_and_without_an_exchange_a_message_is_dropped() -> None:
    async with MemoryBroker() as broker:
        queue = await declare(broker, "queue", {"x-queue-type": "quorum", "x-delivery-limit": 0})
        await send(broker, queue, b"x")
        await (await take(broker, queue)).requeue()
        assert await ready(broker, queue) == 0


async def test_a_header_of_the_sender_is_no_death() -> None:
    async with MemoryBroker() as broker:
        await declare(broker, "target")
        queue = await declare(broker, "queue", into("target"))
        forged = {"x-death": [{"queue": "target", "reason": "expired"}]}
        await send(broker, queue, b"x", headers=forged, expiration=timedelta(0))
        (death,) = (await take(broker, "target")).message.headers["x-death"]
        assert death["queue"] == queue


async def test_exchanges_that_are_bound_in_a_circle_route_once() -> None:
    async with MemoryBroker() as broker:
        await declare(broker, "queue")
        await broker.declare(
            Topology(
                exchanges=(Exchange("a", "topic"), Exchange("b", "fanout")),
                bindings=(
                    Binding("a", "b", "#", to="exchange"),
                    Binding("b", "a", "", to="exchange"),
                    Binding("b", "queue", ""),
                ),
            )
        )
        await broker.publish(Message(b"x"), exchange="a", routing_key="k")
        assert await take_all(broker, "queue") == [b"x"]


async def test_a_deleted_queue_forgets_what_was_in_hand() -> None:
    async with MemoryBroker() as broker:
        queue = await declare(broker, "queue")
        await send(broker, queue, b"a", b"b")
        first, second = await take(broker, queue), await take(broker, queue)
        await broker.delete(queue)
        await declare(broker, queue)
        await first.ack()
        await second.requeue()
        assert await broker.depth(queue) == Depth(ready=0, consumers=0)


async def test_a_closed_broker_does_nothing() -> None:
    broker = MemoryBroker()
    assert not broker.connected
    async with broker:
        assert broker.connected
    with pytest.raises(BrokerUnavailable):
        await broker.depth("queue")


async def test_brokers_without_a_server_have_nothing_in_common() -> None:
    async with MemoryBroker() as one, MemoryBroker() as other:
        await declare(one, "queue")
        assert await other.depth("queue") is None
        assert one.info.cluster != other.info.cluster
