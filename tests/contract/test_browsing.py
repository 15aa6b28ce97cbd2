"""What waits in a queue is looked at, one after the other, and stays there."""

from collections.abc import Callable

import pytest

from scheduler.brokers.amqp import browsing
from scheduler.brokers.contract import Broker, Delivery
from scheduler.errors import BrokerUnavailable, DeliveryLost, QueueNotFound
from tests.contract.wire import Wire, has_depth, send, take, take_all, until

PAGE = 40
COUNT = 170


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browsing, "PAGE", PAGE)
    monkeypatch.setattr(browsing, "KEPT_BY_CHANNEL", 60)
    monkeypatch.setattr(browsing, "CHANNELS", 2)
    monkeypatch.setattr(browsing, "SILENCE", 0.1)


BODIES = [b"%03d" % n for n in range(COUNT)]


async def look(
    broker: Broker,
    queue: str,
    wanted: Callable[[bytes], bool] = lambda body: False,
    limit: int = COUNT,
) -> list[bytes]:
    """Look at messages, and take those that are wanted."""
    seen: list[bytes] = []
    async with broker.browse(queue, limit=limit) as deliveries:
        async for delivery in deliveries:
            seen.append(delivery.message.body)
            if wanted(delivery.message.body):
                await delivery.ack()
    return seen


@pytest.mark.parametrize("page", [PAGE, 4])
async def test_browsing_leaves_all_messages_in_the_queue(
    wire: Wire, broker: Broker, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    monkeypatch.setattr(browsing, "PAGE", page)
    with pytest.raises(QueueNotFound):
        await look(broker, wire.name("gone"))
    queue = await wire.declare_queue()
    assert await look(broker, queue) == []
    await send(broker, queue, *BODIES)
    for _ in range(2):
        assert await look(broker, queue) == BODIES
        assert await ready(broker, queue) == COUNT
    assert await take_all(broker, queue, COUNT) == BODIES


async def test_acked_messages_leave_and_the_rest_keeps_its_order(broker: Broker, queue: str):
    await send(broker, queue, *BODIES)
    assert await look(broker, queue, lambda body: int(body) % 3 == 0) == BODIES
    rest = [body for body in BODIES if int(body) % 3]
    assert await look(broker, queue, lambda body: True) == rest
    assert await broker.get(queue) is None


@pytest.mark.parametrize("limit", [0, PAGE, PAGE + 1])
async def test_browsing_stops_at_its_limit(broker: Broker, queue: str, limit: int) -> None:
    await send(broker, queue, *BODIES)
    assert await look(broker, queue, limit=limit) == BODIES[:limit]
    assert await look(broker, queue) == BODIES


async def test_new_messages_come_after_the_browsed_ones(broker: Broker, queue: str) -> None:
    await send(broker, queue, *BODIES[:60])
    async with broker.browse(queue, limit=60) as deliveries:
        async for delivery in deliveries:
            if int(delivery.message.body) % 2:
                await delivery.ack()
                await send(broker, queue, delivery.message.body + b" again")
    left = [*BODIES[:60:2], *(body + b" again" for body in BODIES[1:60:2])]
    assert await take_all(broker, queue, 60) == left


async def test_browsing_that_ends_early_leaves_all_messages(broker: Broker, queue: str) -> None:
    await send(broker, queue, *BODIES)
    async with broker.browse(queue, limit=COUNT) as deliveries:
        assert (await anext(deliveries)).message.body == BODIES[0]
        assert await ready(broker, queue) < COUNT
    assert await ready(broker, queue) == COUNT


async def ready(broker: Broker, queue: str) -> int:
    """How many are there at once: what was looked at is back when the look is over."""
    depth = await broker.depth(queue)
    assert depth
    return depth.ready


async def test_browsing_does_not_wait_for_unacked_messages(broker: Broker, queue: str) -> None:
    await send(broker, queue, *BODIES[:12])
    other = await take(broker, queue)
    assert await look(broker, queue, limit=12) == BODIES[1:12]
    await other.requeue()


async def test_browsed_messages_are_requeued_with_the_connection(
    wire: Wire, broker: Broker, queue: str
) -> None:
    await send(broker, queue, *BODIES)
    seen: list[Delivery] = []

    async def look_until_cut() -> None:
        async with broker.browse(queue, limit=COUNT) as deliveries:
            async for delivery in deliveries:
                seen.append(delivery)
                if len(seen) == PAGE + 1:
                    await wire.cut()
                    await until(seen[0].lost.done)

    with pytest.raises((BrokerUnavailable, DeliveryLost)):
        await look_until_cut()
    assert len(seen) <= 2 * PAGE
    with pytest.raises(DeliveryLost):
        await seen[0].ack()
    await has_depth(await wire.connect(), queue, ready=COUNT)
