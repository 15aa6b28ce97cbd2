"""Statements 4 and 5: what a lost connection takes with it, and what it does not."""

import asyncio
from contextlib import suppress

import pytest

from scheduler.brokers.contract import Broker, Delivery
from scheduler.errors import BrokerUnavailable, DeliveryLost
from tests.contract.wire import PATIENCE, Inbox, Wire, eventually, send, take, take_all


async def send_through(broker: Broker, queue: str, body: bytes) -> None:
    """Publish as somebody does who does not give up: the connection may still be broken."""

    async def confirmed() -> bool:
        try:
            await send(broker, queue, body)
        except BrokerUnavailable:
            return False
        return True

    await eventually(confirmed)


async def test_a_cut_requeues_unacked_messages_and_keeps_the_prefetch(wire: Wire, broker: Broker):
    queue, other = await wire.declare_queue(), await wire.declare_queue()
    inbox = await Inbox.open(broker, queue, prefetch=2)
    await send(broker, queue, b"a", b"b", b"c")
    await send(broker, other, b"x")
    first, second, got = await inbox.next(), await inbox.next(), await take(broker, other)
    await wire.cut()
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(first.lost, second.lost, got.lost)
    for settling in first.ack, second.requeue, got.ack:
        with pytest.raises(DeliveryLost):
            await settling()
    again = [await inbox.next(), await inbox.next(), await take(broker, other)]
    assert [delivery.message.body for delivery in again] == [b"a", b"b", b"x"]
    assert all(delivery.redelivered for delivery in again)
    assert not any(delivery.lost.done() for delivery in again)
    assert inbox.is_empty
    await again[0].ack()
    assert (await inbox.next()).message.body == b"c"


async def test_messages_acked_before_a_cut_are_not_redelivered(
    wire: Wire, broker: Broker, queue: str
) -> None:
    inbox = await Inbox.open(broker, queue)
    await send(broker, queue, b"a", b"b")
    first, second = await inbox.next(), await inbox.next()
    await first.ack()
    # Its round trip says that the ack, sent before it, has arrived.
    await send(broker, queue, b"c")
    await inbox.next()
    await wire.cut()
    async with asyncio.timeout(PATIENCE):
        await second.lost
    assert await inbox.bodies(2) == [b"b", b"c"]


async def test_publishing_continues_after_a_cut(wire: Wire, broker: Broker, queue: str) -> None:
    for body in b"a", b"b", b"c":
        await send_through(broker, queue, body)
        await wire.cut()
    # An unconfirmed one may have arrived all the same: at least once, then, and in order.
    other, seen = await wire.connect(), list[bytes]()
    while delivery := await other.get(queue):
        seen.append(delivery.message.body)
        await delivery.ack()
    assert list(dict.fromkeys(seen)) == [b"a", b"b", b"c"]
    assert await broker.depth(queue) is not None
    assert broker.connected


async def test_a_consumer_continues_after_every_cut(wire: Wire, broker: Broker, queue: str) -> None:
    inbox = await Inbox.open(broker, queue, prefetch=1)
    publisher = await wire.connect()
    for body in b"a", b"b", b"c":
        await wire.cut()
        await send_through(publisher, queue, body)
        while (delivery := await inbox.next()).message.body != body:
            await ack_if_still_ours(delivery)
        assert inbox.consumer.active
        await ack_if_still_ours(delivery)


async def ack_if_still_ours(delivery: Delivery) -> None:
    with suppress(DeliveryLost):
        await delivery.ack()


async def test_a_closed_connection_requeues_its_deliveries(wire: Wire, broker: Broker, queue: str):
    await send(broker, queue, b"a", b"b")
    other = wire.make_broker()
    async with other:
        got, inbox = await take(other, queue), await Inbox.open(other, queue)
        consumed = await inbox.next()
    for delivery in got, consumed:
        assert delivery.lost.done()
        with pytest.raises(DeliveryLost):
            await delivery.ack()
    assert not inbox.consumer.active
    assert not other.connected
    assert sorted(await take_all(broker, queue, 2)) == [b"a", b"b"]


@pytest.mark.parametrize("operation", ["depth", "get"])
async def test_a_cancelled_operation_does_no_harm(wire: Wire, broker: Broker, operation: str):
    held_queue, queue = await wire.declare_queue(), await wire.declare_queue()
    await send(broker, held_queue, b"x")
    held = await take(broker, held_queue)
    for step in range(100):
        task = asyncio.create_task(getattr(broker, operation)(queue))
        await asyncio.sleep(step / 20_000)  # at every stage of what goes to and fro
        task.cancel()
        await asyncio.wait([task], timeout=PATIENCE)
        assert task.done()
    assert await broker.depth(queue)
    assert not held.lost.done()
    await held.ack()


async def test_a_connection_names_its_address_and_broker(wire: Wire, broker: Broker) -> None:
    assert broker.connected
    assert "guest:guest" not in broker.address
    assert broker.info.product
    assert broker.info.version[0].isdigit()
