"""Statement 2: how long a message waits in its queue, and where it goes then."""

import asyncio
from datetime import timedelta

import pytest

from scheduler.brokers.contract import Broker
from scheduler.errors import Rejected
from scheduler.protocol.messages import Message
from scheduler.protocol.topology import Binding, Exchange, Topology
from tests.contract.wire import Arguments, Inbox, Wire, eventually, has_depth, send, take, take_all

SHORT = 150  # milliseconds, while which nothing has to happen
BRIEF = 1_000  # long enough to do something before, even on a slow machine
LONG = 60_000
YEARS = 3 * 365 * 86_400_000


def into(target: str) -> Arguments:
    """Have a queue dead-letter straight into the target queue."""
    return {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": target}


async def test_an_expired_message_leaves_with_its_key_and_without_its_expiration(
    wire: Wire, broker: Broker
) -> None:
    target = await wire.declare_queue()
    exchange = await wire.declare_exchange("topic", {"loop.#": target})
    queue = await wire.declare_queue({"x-dead-letter-exchange": exchange})
    entrance = await wire.declare_exchange("topic", {"#": queue})
    message = Message(b"x", {"seq": 1}, expiration=timedelta(milliseconds=SHORT))
    inbox = await Inbox.open(broker, target)
    started = asyncio.get_running_loop().time()
    await broker.publish(message, exchange=entrance, routing_key="loop.a.b")
    arrived = await inbox.next()
    # Brokers count in whole milliseconds.
    assert asyncio.get_running_loop().time() - started > (SHORT - 2) / 1000
    assert (arrived.queue, arrived.exchange) == (target, exchange)
    assert arrived.routing_key == "loop.a.b"
    assert (arrived.message.body, arrived.message.headers["seq"]) == (b"x", 1)
    assert arrived.message.expiration is None
    assert not arrived.redelivered


async def test_a_dead_letter_lists_its_deaths_latest_first(wire: Wire, broker: Broker) -> None:
    target = await wire.declare_queue()
    second = await wire.declare_queue({**into(target), "x-message-ttl": SHORT})
    first = await wire.declare_queue(into(second))
    exchange = await wire.declare_exchange("topic", {"a.b": first})
    message = Message(b"x", expiration=timedelta(0))
    await broker.publish(message, exchange=exchange, routing_key="a.b")
    headers = (await take(broker, target)).message.headers
    assert headers["x-first-death-queue"] == first
    assert headers["x-first-death-reason"] == "expired"
    assert headers["x-first-death-exchange"] == exchange
    last, death = headers["x-death"]
    assert last["queue"] == second
    known = {"queue", "reason", "exchange", "routing-keys", "count"}
    assert {key: death[key] for key in known} == {
        "queue": first,
        "reason": "expired",
        "exchange": exchange,
        "routing-keys": ["a.b"],
        "count": 1,
    }


async def test_a_message_expires_only_at_the_head(wire: Wire, broker: Broker) -> None:
    target = await wire.declare_queue()
    queue = await wire.declare_queue(into(target))
    inbox = await Inbox.open(broker, target)
    await send(broker, queue, b"lasting")
    await send(broker, queue, b"brief", expires_in_ms=SHORT)
    await asyncio.sleep(2 * SHORT / 1000)
    assert inbox.is_empty
    holder = await Inbox.open(broker, queue)
    assert (await holder.next()).message.body == b"lasting"
    assert await inbox.bodies(1) == [b"brief"]
    assert holder.is_empty


async def test_the_shorter_of_queue_and_message_ttl_applies(wire: Wire, broker: Broker) -> None:
    target = await wire.declare_queue()
    queue = await wire.declare_queue({**into(target), "x-message-ttl": SHORT})
    patient = await wire.declare_queue({**into(target), "x-message-ttl": LONG})
    inbox = await Inbox.open(broker, target)
    await send(broker, queue, b"without")
    await send(broker, queue, b"longer", expires_in_ms=YEARS)
    assert await inbox.bodies(2) == [b"without", b"longer"]
    await send(broker, patient, b"shorter", expires_in_ms=SHORT)
    assert await inbox.bodies(1) == [b"shorter"]


async def test_a_requeued_message_keeps_its_expiry(wire: Wire, broker: Broker) -> None:
    target = await wire.declare_queue()
    queue = await wire.declare_queue(into(target))
    clock = await wire.declare_queue(into(target))
    holder = await Inbox.open(broker, queue)
    await send(broker, queue, b"first", expires_in_ms=BRIEF)
    await send(broker, clock, b"second", expires_in_ms=BRIEF + SHORT)
    held = await holder.next()
    await holder.consumer.cancel()
    await asyncio.sleep(BRIEF / 2000)
    await held.requeue()
    # Had its wait begun anew, it would be the second.
    assert await (await Inbox.open(broker, target)).bodies(2) == [b"first", b"second"]


async def test_an_unacked_message_expires_when_it_is_requeued(wire: Wire, broker: Broker) -> None:
    target = await wire.declare_queue()
    queue = await wire.declare_queue(into(target))
    nowhere = await wire.declare_queue()
    holder = await Inbox.open(broker, queue, prefetch=2)
    for each in queue, queue, nowhere:
        await send(broker, each, b"x", expires_in_ms=SHORT)
    acked, held = await holder.next(), await holder.next()
    await asyncio.sleep(2 * SHORT / 1000)
    await acked.ack()
    assert await broker.get(target) is None
    await held.requeue()
    assert await take_all(broker, target, 1) == [b"x"]
    assert holder.is_empty
    await has_depth(broker, nowhere, ready=0)


@pytest.mark.parametrize(("key", "come"), [(None, {"key", "cc", "bcc"}), ("other", {"other"})])
async def test_cc_keys_route_until_a_queue_replaces_them(
    wire: Wire, broker: Broker, key: str | None, come: set[str]
) -> None:
    ends = {name: await wire.declare_queue() for name in ("key", "cc", "bcc", "other")}
    then = await wire.declare_exchange("direct", ends)
    waits = {"x-message-ttl": 10, "x-dead-letter-exchange": then}
    given = {} if key is None else {"x-dead-letter-routing-key": key}
    timers = [await wire.declare_queue({**waits, **given}), await wire.declare_queue()]
    entry = await wire.declare_exchange("direct", dict(zip(("key", "cc"), timers, strict=True)))
    copied = Message(b"m", {"CC": ["cc"], "BCC": ["bcc"]})
    await wire.publish_as_others_do(copied, entry, "key")
    at_once = (await take(broker, timers[1])).message
    assert (at_once.headers.get("CC"), "BCC" in at_once.headers) == (["cc"], False)
    for name in come:
        delivery = await take(broker, ends.pop(name))
        assert (delivery.exchange, delivery.routing_key) == (then, key or "key")
        assert "BCC" not in delivery.message.headers
    await asyncio.sleep(0.1)
    assert [await broker.get(queue) for queue in ends.values()] == [None] * len(ends)


async def test_a_headers_exchange_routes_by_header_whatever_the_keys(wire: Wire, broker: Broker):
    one, two, none = [wire.queue() for _ in range(3)]
    otherwise = Exchange(wire.name("otherwise"), "fanout")
    alternate = {"alternate-exchange": otherwise.name}
    entry = Exchange(wire.name("entry"), "headers", alternate)
    bound = [
        Binding(entry.name, queue.name, "", arguments={"x-match": "all", "at": value})
        for queue, value in ((one, "1"), (two, "2"))
    ]
    await wire.declare_all(
        Topology(
            (otherwise, entry), (one, two, none), (*bound, Binding(otherwise.name, none.name, ""))
        )
    )
    for headers in ({"at": "1", "CC": ["2"]}, {"at": "2"}, {"at": 1}, {"on": "1"}):
        await wire.publish_as_others_do(Message(b"m", headers), entry.name, "1")
    for queue, count in ((one, 1), (two, 1), (none, 2)):
        assert len(await take_all(broker, queue.name, count)) == count


async def test_a_full_queue_dead_letters_its_oldest_message(wire: Wire, broker: Broker) -> None:
    target = await wire.declare_queue()
    queue = await wire.declare_queue({**into(target), "x-max-length": 1})
    await send(broker, queue, b"old", b"new")
    dead = await take(broker, target)
    assert dead.message.body == b"old"
    assert dead.message.headers["x-first-death-reason"] == "maxlen"
    assert await take_all(broker, queue, 1) == [b"new"]


async def test_an_unroutable_dead_letter_goes_to_the_alternate_exchange(wire: Wire, broker: Broker):
    parked = await wire.declare_queue()
    alternate = await wire.declare_exchange("topic", {"#": parked})
    exchange = await wire.declare_exchange("topic", {}, {"alternate-exchange": alternate})
    # A queue that rejects a second message, and dead-letters at least once if it can.
    arguments = {"x-dead-letter-exchange": exchange, "x-overflow": "reject-publish"}
    if wire.queue_type == "quorum":
        arguments |= {"x-max-length": 0, "x-dead-letter-strategy": "at-least-once"}
    else:
        arguments |= {"x-max-length": 1}
    queue = await wire.declare_queue(arguments)
    await send(broker, queue, b"x", expires_in_ms=0)
    assert (await take(broker, parked)).message.body == b"x"

    async def is_free() -> bool:
        try:
            await send(broker, queue, b"the next")
        except Rejected:
            return False
        return True

    await eventually(is_free)
