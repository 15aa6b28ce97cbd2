"""Statement 1: published is confirmed, in every queue that the message was routed to."""

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal

import pytest

from scheduler.brokers.contract import Broker
from scheduler.errors import Rejected, TooLarge, Unencodable, Unroutable
from scheduler.protocol.messages import Message
from scheduler.protocol.topology import Binding, Topology
from tests.contract.wire import Wire, send, take, take_all


@pytest.mark.parametrize("in_order", [True, False])
async def test_concurrent_publishes_are_confirmed_and_in_order_if_asked(
    wire: Wire, broker: Broker, queue: str, in_order: bool
) -> None:
    exchange = await wire.declare_exchange("topic", {"#": queue})
    bodies = [b"%d" % n for n in range(300)]
    await asyncio.gather(
        *(
            broker.publish(Message(body), exchange=exchange, routing_key="k", in_order=in_order)
            for body in bodies
        )
    )
    arrived = await take_all(broker, queue, len(bodies))
    assert (arrived if in_order else sorted(arrived)) == (bodies if in_order else sorted(bodies))


@pytest.mark.parametrize(
    ("kind", "pattern", "matching", "others"),
    [
        ("topic", "loop.*.b", ["loop.a.b"], ["loop.b", "loop.a.c"]),
        ("topic", "loop.#", ["loop", "loop.a.b"], ["a.loop"]),
        ("topic", "#.a.#", ["x.a.y.a.z"], ["b"]),
        ("topic", "*.#", ["a"], [""]),
        ("fanout", "", ["whatever"], []),
        ("direct", "a.#", ["a.#"], ["a.b"]),
    ],
)
async def test_an_exchange_matches_keys(
    wire: Wire,
    broker: Broker,
    queue: str,
    kind: Literal["topic", "fanout", "direct"],
    pattern: str,
    matching: list[str],
    others: list[str],
) -> None:
    exchange = await wire.declare_exchange(kind, {pattern: queue})
    for key in others:
        with pytest.raises(Unroutable, match=f"'{key}'"):
            await broker.publish(Message(b"x"), exchange=exchange, routing_key=key)
    for key in matching:
        await broker.publish(Message(key.encode()), exchange=exchange, routing_key=key)
    assert await take_all(broker, queue, len(matching)) == [key.encode() for key in matching]


async def test_each_bound_queue_gets_a_message_once(wire: Wire, broker: Broker) -> None:
    first, second = await wire.declare_queue(), await wire.declare_queue()
    bindings = {"#": first, "a.*": first, "a.b": first, "*.b": second}
    exchange = await wire.declare_exchange("topic", bindings)
    await broker.publish(Message(b"x"), exchange=exchange, routing_key="a.b")
    assert await take_all(broker, first, 1) == [b"x"]
    assert await take_all(broker, second, 1) == [b"x"]


async def test_exchanges_are_bound_to_exchanges(wire: Wire, broker: Broker, queue: str) -> None:
    far = await wire.declare_exchange("topic", {"a.#": queue})
    near = await wire.declare_exchange("topic", {"a.b": queue})
    await broker.declare(Topology(bindings=(Binding(near, far, "#", to="exchange"),)))
    await broker.publish(Message(b"x"), exchange=near, routing_key="a.b")
    await broker.publish(Message(b"y"), exchange=near, routing_key="a.c")
    assert await take_all(broker, queue, 2) == [b"x", b"y"]


async def test_an_unroutable_message_is_found_among_those_with_its_id(
    wire: Wire, broker: Broker, queue: str
) -> None:
    exchange = await wire.declare_exchange("topic", {"to.us": queue})
    keys = "to.us", "to.nobody", "to.us", "to.nobody"
    done = await asyncio.gather(
        *(
            broker.publish(Message(message_id="same"), exchange=exchange, routing_key=k)
            for k in keys
        ),
        return_exceptions=True,
    )
    assert [type(each) for each in done] == [type(None), Unroutable, type(None), Unroutable]
    assert len(await take_all(broker, queue, 2)) == 2


async def test_a_return_without_a_waiting_caller_harms_no_other_publish(
    wire: Wire, broker: Broker, queue: str
) -> None:
    exchange = await wire.declare_exchange("topic", {"a": queue})
    await broker.publish(Message(b"x"), exchange=exchange, routing_key="a")
    forgotten, publishing = (
        asyncio.create_task(broker.publish(Message(b"y"), exchange=exchange, routing_key=key))
        for key in ("b", "a")
    )
    await asyncio.sleep(0)  # until they are sent
    forgotten.cancel()
    await publishing
    assert await take_all(broker, queue, 2) == [b"x", b"y"]


async def test_a_refused_message_harms_no_other_publish(broker: Broker, queue: str) -> None:
    done = await asyncio.gather(
        send(broker, queue, b"one"),
        broker.publish(Message(b"x"), exchange="e" * 256, routing_key=queue),
        send(broker, queue, b"two"),
        return_exceptions=True,
    )
    assert isinstance(done[1], Unencodable | Unroutable)
    assert [done[0], done[2]] == [None, None]
    await send(broker, queue, b"three")
    assert await take_all(broker, queue, 3) == [b"one", b"two", b"three"]


async def test_a_missing_queue_or_exchange_is_unroutable(wire: Wire, broker: Broker) -> None:
    queue, missing = await wire.declare_queue(), wire.name("missing")
    with pytest.raises(Unroutable, match=missing):
        await broker.publish(Message(b"x"), exchange="", routing_key=missing)
    with pytest.raises(Unroutable, match=missing):
        await broker.publish(Message(b"x"), exchange=missing, routing_key=queue)
    await send(broker, queue, b"y")
    assert await take_all(broker, queue, 1) == [b"y"]


async def test_an_alternate_exchange_takes_unroutable_messages(wire: Wire, broker: Broker) -> None:
    queue, parked = await wire.declare_queue(), await wire.declare_queue()
    alternate = await wire.declare_exchange("topic", {"#": parked})
    exchange = await wire.declare_exchange("topic", {"a": queue}, {"alternate-exchange": alternate})
    await broker.publish(Message(b"x"), exchange=exchange, routing_key="a")
    await broker.publish(Message(b"y"), exchange=exchange, routing_key="b")
    assert await take_all(broker, queue, 1) == [b"x"]
    assert (await take(broker, parked)).routing_key == "b"


async def test_a_full_queue_rejects_and_other_queues_keep_the_message(wire: Wire, broker: Broker):
    limit = {"classic": 2, "quorum": 1}[wire.queue_type]
    full = await wire.declare_queue({"x-max-length": limit, "x-overflow": "reject-publish"})
    other, stream = await wire.declare_queue(), await wire.declare_stream()
    exchange = await wire.declare_exchange("fanout", {"1": full, "2": other, "3": stream})
    for body in b"a", b"b":
        await broker.publish(Message(body), exchange=exchange, routing_key="")
    with pytest.raises(Rejected):
        await broker.publish(Message(b"c"), exchange=exchange, routing_key="")
    assert await take_all(broker, full, 2) == [b"a", b"b"]
    assert await take_all(broker, other, 3) == [b"a", b"b", b"c"]
    assert [message.body async for message in broker.read(stream)] == [b"a", b"b", b"c"]


HEADERS: dict[str, Any] = {
    "text": "grüße, 世界 🐇",
    "ключ": "unicode in the name",
    "empty": "",
    "negative": -1,
    "largest": 2**63 - 1,
    "yes": True,
    "nothing": None,
    "table": {"inner": {"deep": "value", "count": 3}},
    "list": ["a", 1, {"b": 2}],
    "number": 0.1,
    "decimal": Decimal("9.99"),
    "moment": datetime(2026, 11, 21, 10, 30, 15, tzinfo=UTC),
    "bytes": b"\xff\0",
    "no UTF-8: \udce9": "caf\udce9",
    "n" * 255: "the longest name",
    "CC": ["key.of.another.queue"],
    "nested": json.loads("[" * 50 + "]" * 50),
}


def own_headers(message: Message) -> dict[str, Any]:
    """Without those that a broker adds: quorum queues count deliveries."""
    return {name: value for name, value in message.headers.items() if not name.startswith("x-")}


def types_of(headers: dict[str, Any]) -> dict[str, type]:
    return {name: type(value) for name, value in headers.items()}


@pytest.mark.parametrize(
    ("unfit", "why"),
    [
        ({"headers": {"a": {1}}}, "a value of type set"),
        ({"headers": {"n" * 256: 1}}, "256 bytes long"),
        ({"priority": 300}, "The priority 300"),
        ({"message_id": "m" * 256}, "message_id is 256 bytes long"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_an_unencodable_message_is_not_sent(
    broker: Broker, queue: str, unfit: dict[str, Any], why: str
) -> None:
    await send(broker, queue, b"before")
    held = await take(broker, queue)
    with pytest.raises(Unencodable, match=why):
        await broker.publish(Message(**unfit), exchange="", routing_key=queue)
    for key in "k" * 256, "\udce9":
        with pytest.raises(Unencodable, match="The routing key"):
            await broker.publish(Message(), exchange="", routing_key=key)
    assert not held.lost.done()  # it came over this connection
    assert await broker.get(queue) is None


async def test_a_message_is_routed_by_its_key_alone(wire: Wire, broker: Broker) -> None:
    meant, other = await wire.declare_queue(), await wire.declare_queue()
    exchange = await wire.declare_exchange("direct", {"meant": meant, "other": other})
    copied = Message(headers={"CC": ["other"], "BCC": ["other"]})
    await broker.publish(copied, exchange=exchange, routing_key="meant")
    received = (await take(broker, meant)).message
    assert own_headers(received) == copied.headers
    assert await broker.get(other) is None


async def test_receivers_cannot_change_a_message_for_each_other(wire: Wire, broker: Broker) -> None:
    queues = [await wire.declare_queue(), await wire.declare_queue()]
    exchange = await wire.declare_exchange("fanout", dict(zip("ab", queues, strict=True)))
    sent = {"list": [1]}
    await broker.publish(Message(headers=sent), exchange=exchange, routing_key="")
    sent["list"].append(2)
    first, second = [(await take(broker, queue)).message.headers for queue in queues]
    first["list"].append(3)
    assert second["list"] == [1]


async def test_properties_arrive_as_they_were_sent(broker: Broker, queue: str) -> None:
    sent = Message(
        body='{"grüße": "世界"}'.encode(),
        headers=HEADERS,
        content_type="application/json",
        message_id="billing/poll/17/0",
        correlation_id="c-1",
        type="scheduler.token",
        priority=3,
        timestamp=datetime(2026, 11, 21, 10, 30, 15, tzinfo=UTC),
        expiration=timedelta(hours=1, milliseconds=1),
        content_encoding="identity",
        reply_to="answers",
        app_id="billing",
    )
    await broker.publish(sent, exchange="", routing_key=queue)
    received = (await take(broker, queue)).message
    assert own_headers(received) == HEADERS
    assert types_of(own_headers(received)) == types_of(HEADERS)
    assert replace(received, headers=HEADERS) == sent


async def test_headers_larger_than_a_frame_are_refused(broker: Broker, queue: str) -> None:

    async def publish(text: str) -> None:
        await broker.publish(Message(b"x", {"text": text}), exchange="", routing_key=queue)

    await send(broker, queue, b"before")
    held = await take(broker, queue)
    text = "x" * 1_000_000
    with pytest.raises(TooLarge, match="It was not sent: put less into its headers") as refused:
        await publish(text)
    assert not held.lost.done()  # it came over this connection
    fits = text[refused.value.excess :]
    with pytest.raises(TooLarge) as by_one:
        await publish(fits + "x")
    assert by_one.value.excess == 1
    await publish(fits)
    received = await take(broker, queue)
    assert own_headers(received.message) == {"text": fits}
    await held.ack()


async def test_a_too_large_body_is_refused_to_its_publisher_alone(broker: Broker, queue: str):
    is_old = broker.info.version.startswith("3.")  # accepts 128 MiB
    large = Message(bytes((129 if is_old else 17) << 20))

    async def send_large() -> None:
        await broker.publish(large, exchange="", routing_key=queue)

    async def send_small() -> None:
        for n in range(50):
            await broker.publish(Message(b"%d" % n), exchange="", routing_key=queue)

    for _ in range(2):  # the second time the limit is known
        refused, *sent = await asyncio.gather(
            send_large(), *(send_small() for _ in range(4)), return_exceptions=True
        )
        assert isinstance(refused, TooLarge)
        assert "It was not sent" in str(refused)
        assert sent == [None] * 4
    body = bytes(range(256)) * 4096
    await send(broker, queue, body)
    bodies = [(await take(broker, queue)).message.body for _ in range(401)]
    assert bodies[-1] == body
    assert await broker.get(queue) is None
