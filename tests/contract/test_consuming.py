"""Statements 3 and 5: deliveries belong to their holder, and a consumer holds so many."""

import asyncio
from contextvars import ContextVar

import pytest

from scheduler.brokers.contract import Broker, Delivery
from scheduler.errors import DeliveryLost
from scheduler.protocol.topology import Topology
from tests.contract.wire import PATIENCE, Inbox, Wire, has_depth, send, take, take_all, until


async def test_a_consumer_gets_old_and_new_messages_up_to_its_prefetch(broker: Broker, queue: str):
    await send(broker, queue, b"a")
    inbox = await Inbox.open(broker, queue, prefetch=2)
    await send(broker, queue, b"b", b"c", b"d")
    first, second = await inbox.next(), await inbox.next()
    await has_depth(broker, queue, ready=2)
    assert inbox.is_empty
    await second.ack()
    third = await inbox.next()
    assert [d.message.body for d in (first, second, third)] == [b"a", b"b", b"c"]
    await has_depth(broker, queue, ready=1)
    assert inbox.is_empty


async def test_consumers_share_a_queue_each_with_its_own_prefetch(
    wire: Wire, broker: Broker, queue: str
) -> None:
    narrow = await Inbox.open(broker, queue, prefetch=1)
    wide = await Inbox.open(broker, queue, prefetch=3)
    there = await Inbox.open(await wire.connect(), queue, prefetch=1)
    await send(broker, queue, *[b"x"] * 6)
    for inbox, count in (narrow, 1), (wide, 3), (there, 1):
        held = [await inbox.next() for _ in range(count)]
    await has_depth(broker, queue, ready=1)
    assert narrow.is_empty
    assert wide.is_empty
    await held[0].ack()
    assert (await there.next()).message.body == b"x"


async def test_a_requeued_message_is_first_and_marked_redelivered(broker: Broker, queue: str):
    await send(broker, queue, b"a", b"b", b"c")
    held = await take(broker, queue)
    assert not held.redelivered
    for _ in range(30):  # more often than RabbitMQ's own delivery limit allows
        await held.requeue()
        await has_depth(broker, queue, ready=3)
        held = await take(broker, queue)
        assert (held.message.body, held.redelivered) == (b"a", True)
    await held.ack()
    unseen = await take(broker, queue)
    assert (unseen.message.body, unseen.redelivered) == (b"b", False)


async def test_requeued_messages_keep_their_order(broker: Broker, queue: str) -> None:
    await send(broker, queue, b"a", b"b", b"c", b"d")
    held = [await take(broker, queue) for _ in range(3)]
    for number, delivery in enumerate(held, 1):
        await delivery.requeue()
        await has_depth(broker, queue, ready=1 + number)  # what is sent side by side may overtake
    assert await take_all(broker, queue, 4) == [b"a", b"b", b"c", b"d"]


whose: ContextVar[str] = ContextVar("whose", default="nobody's")


async def test_a_handler_runs_outside_the_context_of_the_publisher(broker: Broker, queue: str):
    seen: asyncio.Queue[str] = asyncio.Queue()

    def handle(delivery: Delivery) -> None:
        seen.put_nowait(whose.get())

    await broker.consume(queue, handle, prefetch=1)
    whose.set("the publisher's")
    await send(broker, queue, b"x")
    async with asyncio.timeout(PATIENCE):
        assert await seen.get() == "nobody's"


async def test_a_cancelled_consumer_keeps_what_it_holds(wire: Wire, broker: Broker, queue: str):
    inbox = await Inbox.open(broker, queue, prefetch=3)
    await send(broker, queue, b"a", b"b", b"c", b"d")
    first, second, third = [await inbox.next() for _ in range(3)]
    for _ in range(2):  # the second time, there is nothing to do
        await inbox.consumer.cancel()
    assert not inbox.consumer.active
    await first.ack()
    await second.requeue()
    await has_depth(broker, queue, ready=2)
    assert inbox.is_empty
    assert not first.lost.done()
    assert await take_all(broker, queue, 2) == [b"b", b"d"]
    await wire.cut()
    await until(third.lost.done)
    assert await take_all(await wire.connect(), queue, 1) == [b"c"]


async def test_a_consumer_continues_after_its_queue_was_recreated(wire: Wire, broker: Broker):
    queue = wire.queue()
    await broker.declare(Topology(queues=(queue,)))
    # On a connection of its own: RabbitMQ closes that of who consumes from a quorum queue in the
    # moment in which it is made.
    inbox = await Inbox.open(await wire.connect(), queue.name)
    await broker.delete(queue.name)
    await until(lambda: not inbox.consumer.active)
    await broker.declare(Topology(queues=(queue,)))
    await send(broker, queue.name, b"x")
    assert await inbox.bodies(1) == [b"x"]
    assert inbox.consumer.active


async def test_a_quorum_queue_stops_redelivering_after_its_limit(wire: Wire, broker: Broker):
    if wire.queue_type == "classic":
        pytest.skip("only quorum queues count deliveries")
    failed = await wire.declare_queue()
    queue = await wire.declare_queue(
        {"x-delivery-limit": 2, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": failed}
    )
    await send(broker, queue, b"poison")
    for _ in range(3):
        inbox = await Inbox.open(await wire.connect(), queue)
        await inbox.next()
        # A lost connection counts everywhere; a requeue does not, from RabbitMQ 4.3 on.
        await inbox.consumer.cancel()
        await wire.cut()
    dead = await take(await wire.connect(), failed)
    assert dead.message.body == b"poison"
    assert dead.message.headers["x-first-death-reason"] == "delivery_limit"


async def test_a_leaving_consumer_requeues_its_messages(broker: Broker, queue: str) -> None:
    inbox = await Inbox.open(broker, queue, prefetch=2)
    await send(broker, queue, b"a", b"b", b"c")
    first, _ = await inbox.next(), await inbox.next()
    await inbox.consumer.leave()
    assert not inbox.consumer.active
    assert first.lost.done()
    with pytest.raises(DeliveryLost):
        await first.ack()
    await has_depth(broker, queue, ready=3)
    assert await take_all(broker, queue, 3) == [b"a", b"b", b"c"]
    assert inbox.is_empty


async def test_acking_neighbours_leaves_an_unacked_message(broker: Broker, queue: str) -> None:
    inbox = await Inbox.open(broker, queue)
    await send(broker, queue, b"a", b"b", b"c", b"d", b"e", b"f")
    came = [await inbox.next() for _ in range(6)]
    for number in (1, 0, 3, 5):
        await came[number].ack()
    await inbox.consumer.leave()
    await has_depth(broker, queue, ready=2)
    assert await take_all(broker, queue, 2) == [b"c", b"e"]


async def test_messages_of_a_single_active_consumer_come_first_to_the_next(
    wire: Wire, broker: Broker
) -> None:
    queue = await wire.declare_queue({"x-single-active-consumer": True})
    inboxes = [await Inbox.open(await wire.connect(), queue, prefetch=1) for _ in range(2)]
    await send(broker, queue, b"a", b"b", b"c")
    await (await inboxes[0].next()).ack()
    held = await inboxes[0].next()
    assert held.message.body == b"b"
    await inboxes[0].consumer.leave()
    again = await inboxes[1].next()
    assert (again.message.body, again.redelivered) == (b"b", True)
    await again.ack()
    last = await inboxes[1].next()
    assert (last.message.body, last.redelivered) == (b"c", False)
    assert inboxes[0].is_empty


async def test_a_message_requeued_to_a_full_queue_is_dropped(wire: Wire, broker: Broker) -> None:
    queue = await wire.declare_queue({"x-max-length": 1, "x-overflow": "drop-head"})
    await send(broker, queue, b"earlier")
    earlier = await take(broker, queue)
    await send(broker, queue, b"later")
    await earlier.requeue()
    for _ in range(20):  # a broker does not say when a requeue is done
        delivery = await take(broker, queue)
        assert delivery.message.body == b"later"
        await delivery.requeue()
    assert await take_all(broker, queue, 1) == [b"later"]
