"""The queue that holds one token: a register with a timer."""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import timedelta

import pytest

from scheduler.brokers.contract import Broker
from scheduler.errors import Rejected
from scheduler.protocol.messages import Message
from scheduler.protocol.topology import Binding, Topology
from tests.contract.wire import (
    Inbox,
    Wire,
    eventually,
    has_depth,
    is_rejected,
    send,
    take,
    take_all,
)

KEY = "loop.poll.eu"
SHORT = timedelta(milliseconds=150)  # while which nothing has to happen
BRIEF = timedelta(seconds=1)  # long enough to do something before, even on a slow machine
LONG = timedelta(hours=1)


@dataclass
class Slot:
    """A slot, the exchange that tokens are put through, and the queue that they hatch into."""

    queue: str
    entrance: str
    exit: str
    processor: str

    async def put(self, broker: Broker, body: bytes, delay: timedelta | None = LONG) -> None:
        message = Message(body, expiration=delay)
        await broker.publish(message, exchange=self.entrance, routing_key=KEY)


async def accepted(publishing: Awaitable[None]) -> bool:
    try:
        await publishing
    except Rejected:
        return False
    return True


@pytest.fixture
async def slot(wire: Wire) -> Slot:
    processor = await wire.declare_queue()
    leaving = await wire.declare_exchange("topic", {"loop.poll.#": processor})
    queue = await wire.declare_slot(leaving)
    entrance = await wire.declare_exchange("topic", {KEY: queue})
    return Slot(queue, entrance, leaving, processor)


async def test_a_slot_holds_exactly_one_token(broker: Broker, slot: Slot) -> None:
    await slot.put(broker, b"token")
    for _ in range(3):
        with pytest.raises(Rejected):
            await slot.put(broker, b"another")
    assert await take_all(broker, slot.queue, 1) == [b"token"]


async def test_a_slot_holds_exactly_one_token_of_several_connections(
    wire: Wire, broker: Broker, slot: Slot
) -> None:
    await slot.put(broker, b"token")
    for _ in range(3):
        with pytest.raises(Rejected):
            await slot.put(await wire.connect(), b"another")
    assert await take_all(broker, slot.queue, 1) == [b"token"]


async def test_a_full_slot_rejects_what_a_stream_beside_it_takes(
    wire: Wire, broker: Broker, slot: Slot
) -> None:
    stream = await wire.declare_stream()
    await broker.declare(Topology(bindings=(Binding(slot.entrance, stream, "#"),)))
    await slot.put(broker, b"token")
    for body in b"second", b"third":
        with pytest.raises(Rejected):
            await slot.put(broker, body)
    read = [message.body async for message in broker.read(stream)]
    assert read == [b"token", b"second", b"third"]
    assert await take_all(broker, slot.queue, 1) == [b"token"]


async def test_a_token_hatches_with_its_key_and_without_its_expiration(
    broker: Broker, slot: Slot
) -> None:
    inbox = await Inbox.open(broker, slot.processor)
    await slot.put(broker, b"token", SHORT)
    hatched = await inbox.next()
    assert (hatched.exchange, hatched.routing_key) == (slot.exit, KEY)
    assert hatched.message.body == b"token"
    assert hatched.message.expiration is None


async def test_the_next_token_is_taken_soon_after_the_last_one_hatched(
    broker: Broker, slot: Slot
) -> None:
    inbox = await Inbox.open(broker, slot.processor)
    await slot.put(broker, b"0", SHORT)
    for seq in range(1, 6):
        hatched = await inbox.next()
        # A quorum queue frees its slot when the processor queue has confirmed the token, which may
        # be after the processor got it.
        async with asyncio.timeout(5):
            await eventually(lambda: accepted(slot.put(broker, b"%d" % seq, SHORT)))  # noqa: B023
        await hatched.ack()
    assert (await inbox.next()).message.body == b"5"


async def test_looking_changes_nothing(broker: Broker, slot: Slot) -> None:
    await slot.put(broker, b"token")
    for _ in range(30):  # more often than a delivery limit would allow
        await (await take(broker, slot.queue)).requeue()
    await has_depth(broker, slot.queue, ready=1)
    assert await is_rejected(broker, slot.queue)
    assert await take_all(broker, slot.queue, 1) == [b"token"]


async def test_looking_does_not_delay_the_token(wire: Wire, broker: Broker, slot: Slot) -> None:
    inbox = await Inbox.open(broker, slot.processor)
    clock = await wire.declare_slot(slot.exit)
    await broker.declare(Topology(bindings=(Binding(slot.entrance, clock, "loop.poll.us"),)))
    await slot.put(broker, b"looked at", BRIEF)
    later = Message(b"clock", expiration=BRIEF + SHORT)
    await broker.publish(later, exchange=slot.entrance, routing_key="loop.poll.us")
    await asyncio.sleep(BRIEF.total_seconds() / 2)
    await (await take(broker, slot.queue)).requeue()
    assert await inbox.bodies(2) == [b"looked at", b"clock"]


async def test_a_token_in_hand_leaves_the_slot_free(broker: Broker, slot: Slot) -> None:
    await slot.put(broker, b"old")
    old = await take(broker, slot.queue)
    await slot.put(broker, b"new")
    await old.ack()
    assert await is_rejected(broker, slot.queue)
    assert await take_all(broker, slot.queue, 1) == [b"new"]


async def test_a_slot_that_was_cleared_takes_a_token_at_the_first_try(
    broker: Broker, slot: Slot
) -> None:
    await slot.put(broker, b"0")
    for seq in range(1, 21):
        assert await is_rejected(broker, slot.queue)
        await (await take(broker, slot.queue)).ack()
        assert await broker.get(slot.queue) is None
        assert await accepted(slot.put(broker, b"%d" % seq))
    assert await take_all(broker, slot.queue, 1) == [b"20"]


async def test_a_token_that_returns_to_a_taken_slot_makes_two(broker: Broker, slot: Slot) -> None:
    await slot.put(broker, b"old")
    old = await take(broker, slot.queue)
    await slot.put(broker, b"new")
    await old.requeue()
    await has_depth(broker, slot.queue, ready=2)
    assert await is_rejected(broker, slot.queue)
    assert await take_all(broker, slot.queue, 2) == [b"old", b"new"]


async def test_the_delay_is_changed_by_replacing_the_token(broker: Broker, slot: Slot) -> None:
    inbox = await Inbox.open(broker, slot.processor)
    await slot.put(broker, b"in an hour", LONG)
    old = await take(broker, slot.queue)
    await slot.put(broker, b"soon", SHORT)
    await old.ack()
    assert await inbox.bodies(1) == [b"soon"]


async def test_a_delay_of_nothing_hatches_at_once(broker: Broker, slot: Slot) -> None:
    await slot.put(broker, b"token", timedelta(0))
    assert await take_all(broker, slot.processor, 1) == [b"token"]


async def test_a_token_without_expiration_never_hatches(broker: Broker, slot: Slot) -> None:
    await slot.put(broker, b"paused", None)
    await asyncio.sleep(2 * SHORT.total_seconds())
    assert await broker.get(slot.processor) is None
    assert await is_rejected(broker, slot.queue)
    assert await take_all(broker, slot.queue, 1) == [b"paused"]


async def test_a_token_that_no_queue_takes_goes_to_the_alternate_exchange(
    wire: Wire, broker: Broker
) -> None:
    parked = await wire.declare_queue()
    failed = await wire.declare_exchange("topic", {"#": parked})
    leaving = await wire.declare_exchange("topic", {}, {"alternate-exchange": failed})
    slot = await wire.declare_slot(leaving)
    await send(broker, slot, b"token", expires_in_ms=0)
    assert (await take(broker, parked)).message.body == b"token"
    await eventually(lambda: accepted(send(broker, slot, b"next")))  # its slot is free again


async def test_a_token_that_nothing_takes_is_kept_by_a_quorum_queue_only(
    wire: Wire, broker: Broker
) -> None:
    nowhere = await wire.declare_exchange()
    slot = await wire.declare_slot(nowhere)
    await send(broker, slot, b"token", expires_in_ms=0)
    await has_depth(broker, slot, ready=0)
    assert await is_rejected(broker, slot) is (wire.queue_type == "quorum")


async def test_a_token_that_is_looked_for_as_it_hatches_is_not_stranded(
    wire: Wire, broker: Broker, slot: Slot
) -> None:
    inbox = await Inbox.open(broker, slot.processor)
    loop = asyncio.get_running_loop()
    for _ in range(25):
        # A slot whose token has just left may reject for some milliseconds.
        await eventually(lambda: accepted(slot.put(broker, b"token", timedelta(milliseconds=50))))
        end = loop.time() + 0.07
        while loop.time() < end:
            if (delivery := await broker.get(slot.queue)) is not None:
                await delivery.requeue()
            await wire.pass_time()
        await broker.wake(slot.queue)
        await (await inbox.next()).ack()
