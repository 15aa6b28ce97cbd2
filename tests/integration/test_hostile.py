"""What somebody else may publish: it costs nobody a connection, a run, or another message."""

import pytest

from scheduler.brokers.amqp.broker import AmqpBroker
from scheduler.brokers.properties import encoded
from scheduler.events import ConnectionLost, MessageParked, RunSettled, RunStarted
from scheduler.queues.failed import EVERYTHING
from tests.foreign import Foreigner, foreigner, headers, short, sized
from tests.integration.shop import Shop
from tests.stage import of

MESSAGE_ID, TIMESTAMP = b"\x00\x80", b"\x00\x40"


def nested(levels: int) -> bytes:
    table = b"V"
    for _ in range(levels):
        table = b"F" + sized(b"\1a" + table)
    return table


DECIMAL = headers(b"\6amountD\2\0\0\3\xe7")
STRANGE = {
    "a decimal": DECIMAL,
    "a name that is no UTF-8": headers(b"\4caf\xe9t\1"),
    "a text that is no UTF-8": headers(b"\1aS" + sized(b"caf\xe9")),
    "tables nested 1,500 deep": headers(b"\1a" + nested(1500)),
    "an id that is no UTF-8": MESSAGE_ID + short(b"caf\xe9"),
    "an id with an escape and a new line": MESSAGE_ID + short(b"\x1b[31mm\n"),
    "a time that no calendar has": TIMESTAMP + b"\xff" * 8,
    "a time in a header that no calendar has": headers(b"\1aT" + b"\xff" * 8),
    "other keys to be routed by": headers(b"\2CCA" + sized(b"S" + sized(b"order.shipped"))),
}
KEYS = {"a key": b"order.paid", "a key that is no UTF-8": b"order.\xff"}


async def published(one: Foreigner, exchange: str, key: bytes) -> None:
    """All that is strange, published."""
    for name, properties in STRANGE.items():
        await one.publish(properties, name.encode(), exchange=exchange, routing_key=key)


@pytest.mark.parametrize("key", KEYS.values(), ids=list(KEYS))
async def test_a_strange_message_is_run_and_keeps_its_headers_through_retries(
    shop: Shop, key: bytes
) -> None:
    async with shop.working("bill") as broker, foreigner(shop.url) as one:
        await published(one, shop.orders, key)
        await shop.until(lambda: shop.count(RunSettled) == 3 * len(STRANGE))
        assert shop.count(ConnectionLost) == 0
        assert not await shop.parked(broker)
    for name, properties in STRANGE.items():
        runs = [run for run in shop.runs if run.value == name.encode()]
        assert [run.attempt for run in runs] == [1, 2, 3]
        own = [{n: v for n, v in run.message.headers.items() if n != "x-death"} for run in runs]
        last = {n: v for n, v in own[2].items() if not n.startswith("scheduler-")}
        assert last == {n: v for n, v in own[0].items() if not n.startswith("scheduler-")}
        if properties.startswith(b"\x20\0") and name != "other keys to be routed by":
            (entry,) = [properties[6:]]
            assert entry in encoded(runs[2].message)


@pytest.mark.parametrize("header", [b"CC", b"BCC"])
async def test_cc_and_bcc_route_a_message_once_and_not_its_retries(shop: Shop, header: bytes):
    """Not again with a retry: neither at once, nor to another task, nor at another time."""
    here, ours = (
        (b"order.shipped",),
        (b"task.ship", b"loop.ship", b"0.0.0.0.0.0.0.0.0.1.0.task.bill"),
    )
    listed = b"".join(b"S" + sized(key) for key in here + ours)
    copied = headers(short(header) + b"A" + sized(listed))
    async with shop.working("bill", "ship", "work") as broker, foreigner(shop.url) as one:
        await one.publish(copied, b"paid", exchange=shop.orders, routing_key=b"order.paid")
        await shop.until(lambda: shop.count(RunSettled) == 4)
        await shop.work.send_later("1.5s", 1)
        await shop.until(lambda: shop.count(RunSettled) == 5)
        assert not await shop.parked(broker)
    assert of(RunStarted, shop.events)[-1].hatch_delay is not None  # which the broker tells
    assert sorted((run.task, run.attempt) for run in shop.runs) == [
        ("bill", 1),
        ("bill", 2),
        ("bill", 3),
        ("ship", 1),
        ("work", 1),
    ]


async def test_an_undecodable_call_is_parked_whole_and_can_be_purged(shop: Shop) -> None:
    async with shop.working("work") as broker, foreigner(shop.url) as one:
        await published(one, shop.app.names.calls, b"task.work")
        await shop.until(lambda: shop.count(MessageParked) == len(STRANGE))
        assert shop.count(ConnectionLost) == 0
        parked = await shop.parked(broker)
        assert {each.message.body.decode() for each in parked} == STRANGE.keys()
        assert {(each.reason, each.task) for each in parked} == {("undecodable", "work")}
        for each in parked:
            properties = STRANGE[each.message.body.decode()]
            if properties.startswith(b"\x20\0") and b"CC" not in properties:
                assert properties[6:] in encoded(each.message)
        assert await shop.failed(broker).replay(["work"], EVERYTHING) == len(STRANGE)
        await shop.until(lambda: shop.count(MessageParked) == 2 * len(STRANGE))
        assert await shop.failed(broker).purge(["work"], EVERYTHING) == len(STRANGE)
        assert not await shop.parked(broker)


async def test_messages_for_a_missing_task_are_parked_and_delay_no_others(shop: Shop) -> None:
    """The broker parks it itself; its dead-lettering goes on for everybody."""
    async with shop.working("work") as broker, foreigner(shop.url) as one:
        for _ in range(3):
            await published(one, shop.app.names.delayed, b"task.nobody.\xe9")
        await shop.work.send_later("100ms", 1)
        await shop.until(lambda: len(shop.runs) == 1)
        await shop.until_parked(broker, 3 * len(STRANGE))
        await shop.work.send_later("100ms", 2)
        await shop.until(lambda: len(shop.runs) == 2)
        parked = await shop.parked(broker)
        assert {each.reason for each in parked} == {"unknown-task"}
        assert {each.message.body.decode() for each in parked} == STRANGE.keys()
    async with AmqpBroker(shop.url) as broker:
        assert await shop.failed(broker).purge([], EVERYTHING)
