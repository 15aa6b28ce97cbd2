import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from scheduler.brokers.contract import Delivery
from scheduler.brokers.memory.broker import MemoryBroker
from scheduler.errors import NotAllSeen, QueueNotFound, TooLarge, UsageError
from scheduler.protocol.hatchery import NO_WAIT
from scheduler.protocol.messages import LINE_LENGTH, REPLAYED_AT, Message, own_headers
from scheduler.protocol.tokens import TOKEN_TYPE, LoopId, encode, token_key
from scheduler.protocol.topology import Names, topology
from scheduler.queues.failed import (
    EVERYTHING,
    ROUND,
    TRACEBACK_LENGTH,
    FailedQueues,
    ParkedMessage,
    Reason,
    Selection,
    lightened,
    parked,
    read_parked,
)
from scheduler.timing.moments import milliseconds_since_epoch
from scheduler.timing.pacing import parse_rate
from tests.faulty import Call, FaultyBroker
from tests.stage import START, Stage, failed_of, looping

NAMES = Names("shop")
AT = datetime(2026, 6, 1, 9, 0, 0, 250_000, tzinfo=UTC)
AT_MS = 1_780_304_400_250
QUEUE = "shop.v1.failed.report"
REPORT = token_key(LoopId("report"), NO_WAIT.key)
BERLIN = token_key(LoopId("report", "berlin"), NO_WAIT.key)

FROM_BROKERS = {
    "x-death": [{"count": 1, "reason": "expired"}],
    "x-first-death-exchange": "shop.v1.scheduler",
    "x-first-death-queue": "shop.v1.hatchery.1m",
    "x-first-death-reason": "expired",
    "x-last-death-exchange": "shop.v1.processor",
    "x-last-death-queue": "shop.v1.processor.report",
    "x-last-death-reason": "delivery_limit",
    "x-delivery-count": 6,
    "x-acquired-count": 7,
}
OWN = {"scheduler-seq": 3, "tracing": "abc", "x-priority-of-ours": 1}


def failure() -> Exception:
    """A failure with a traceback."""
    try:
        raise ValueError("no\nway")
    except ValueError as error:
        return error


def test_a_parked_message_is_as_it_was_with_the_reason_added():
    message = Message(
        body=b"\xff\x00",
        headers=OWN | FROM_BROKERS,
        content_type="text/plain",
        message_id="id",
        type="order",
        priority=3,
        expiration=timedelta(seconds=5),
    )
    put = parked(message, REPORT, Reason.EXHAUSTED, failure(), AT)
    traceback = put.headers["scheduler-parked-traceback"]
    assert traceback.startswith("Traceback")
    assert traceback.rstrip().endswith("ValueError: no\nway")
    added = {
        "scheduler-parked-loop": "report",
        "scheduler-parked-reason": "exhausted",
        "scheduler-parked-error": "ValueError: no way",
        "scheduler-parked-traceback": traceback,
        "scheduler-parked-at-ms": AT_MS,
    }
    # It waits until somebody decides.
    assert put == replace(message, headers=OWN | added, expiration=None)


def test_a_long_error_keeps_its_beginning_and_the_end_of_its_traceback():
    try:
        raise ValueError("x" * 100_000 + "the end")
    except ValueError as error:
        put = parked(Message(), REPORT, Reason.EXHAUSTED, error, AT)
    assert len(put.headers["scheduler-parked-error"]) == LINE_LENGTH
    traceback = put.headers["scheduler-parked-traceback"]
    assert len(traceback) <= TRACEBACK_LENGTH
    assert 'raise ValueError("x" * 100_000' in traceback
    assert "ValueError: xxx" in traceback
    assert traceback.endswith("the end\n")


SIZES = {"small": "x", "large": "x" * 500, "table": {"a": ["x" * 200]}, "scheduler-key": "x" * 900}


@pytest.mark.parametrize(
    ("excess", "left_out"),
    [
        (500, ["large"]),
        (9999, ["large", "table", "small", "scheduler-key"]),
    ],
)
def test_the_largest_headers_are_left_out_and_named(excess: int, left_out: list[str]):
    light = lightened(Message(b"b", SIZES, message_id="id"), excess)
    kept = {name: value for name, value in SIZES.items() if name not in left_out}
    left = {"scheduler-left-out": ", ".join(left_out)}
    assert light == Message(b"b", kept | left, message_id="id")


@pytest.mark.parametrize(
    ("first", "deaths", "reason", "error"),
    [
        ("delivery_limit", [], "delivery-limit", "it was delivered too often without an ack: it "),
        ("maxlen", [], "maxlen", "the broker parked it: maxlen"),
        ("", [], "unknown-task", "no queue of a task is bound for its routing key"),
        # A delay that ended where nobody is bound.
        ("expired", [{"reason": "expired", "queue": "shop.v1.later.5s"}], "unknown-task", ""),
        ("expired", [{"reason": "expired", "queue": "shop.v1.processor.mail"}], "expired", ""),
        ("expired", [{"reason": "delivery_limit"}, {"reason": "expired"}], "delivery-limit", ""),
        ("expired", [5], "unknown-task", ""),
    ],
)
def test_the_broker_parks_for_the_last_death(first: str, deaths: Any, reason: str, error: str):
    headers = {
        name: of for name, of in (("x-first-death-reason", first), ("x-death", deaths)) if of
    }
    told = read_parked(Message(b"b", headers, message_id="id"), QUEUE, "task.gone")
    assert (told.id, told.reason, told.parked_at) == ("id", reason, None)
    assert told.error.startswith(error)


@pytest.mark.parametrize(
    "value", [None, "\x1b[2J\n\n", b"\xff", -1, 10**400, float("nan"), AT, [[1]], {"a": [None]}]
)
@pytest.mark.parametrize(
    "header",
    [
        "scheduler-parked-reason",
        "scheduler-parked-error",
        "scheduler-parked-traceback",
        "scheduler-parked-at-ms",
        "x-first-death-reason",
        "x-death",
    ],
)
def test_a_parked_message_is_read_whatever_its_headers_hold(header: str, value: Any):
    told = read_parked(Message(b"\xff", {header: value}), QUEUE, "")
    texts = [told.id, told.loop, told.reason, told.error, told.traceback]
    assert all(isinstance(text, str) for text in texts)
    assert told.id.startswith("no-id")
    assert told.reason
    assert told.error


TASKS = ("report", "mail")


@pytest.fixture
async def empty(stage: Stage) -> FailedQueues:
    await stage.broker.declare(topology("shop", TASKS))
    return failed_of(NAMES, stage.broker, stage.clock)


@pytest.fixture
async def failed(empty: FailedQueues) -> FailedQueues:
    """Two messages of a task, one of another, one of none."""
    for name, key in [("1", "report"), ("2", "report"), ("3", "mail"), ("4", "gone")]:
        message = Message(b"{}", OWN | FROM_BROKERS, message_id=name)
        way = token_key(LoopId(key), NO_WAIT.key)
        await empty.park(message, way, Reason.EXHAUSTED, ValueError(name))
    return empty


async def got(broker: MemoryBroker, queue: str = "shop.v1.processor.report") -> Delivery:
    """The first message of a queue, which has one; who takes it acks it."""
    delivery = await broker.get(queue)
    assert delivery is not None
    await delivery.ack()
    return delivery


async def test_a_message_is_replayed_as_it_was(stage: Stage, failed: FailedQueues):
    with pytest.raises(QueueNotFound, match="scheduler seed"):
        await failed.browse(["gone"])
    _, second, mail, gone = await failed.browse(TASKS)
    queues = [QUEUE, "shop.v1.failed.mail", "shop.v1.failed"]
    assert [each.queue for each in (second, mail, gone)] == queues
    assert await failed.replay(TASKS, Selection(ids=frozenset([second.id]))) == 1
    delivery = await got(stage.broker)
    assert delivery.routing_key == REPORT
    headers = own_headers(OWN) | {REPLAYED_AT: milliseconds_since_epoch(START)}
    assert delivery.message == Message(b"{}", headers, message_id="2")
    assert await stage.broker.get(NAMES.processor_queue("report")) is None
    assert len(await failed.browse(TASKS)) == 3


@pytest.mark.parametrize(
    ("sent", "parked_at", "shown"),
    [
        ("m", "\x1b[31m\ntoday \udce9", r"m@\x1b[31m today \udce9"),
        ("-1", 5, "id-1@5"),  # it is no option
    ],
)
def test_ids_can_be_typed_despite_foreign_headers(sent: str, parked_at: object, shown: str):
    forged = Message(message_id=sent, headers={"scheduler-parked-at-ms": parked_at})
    assert read_parked(forged, QUEUE, "").id == shown


async def test_a_message_that_the_broker_parked_is_replayed_as_a_call(stage: Stage):
    await stage.seed(looping("report"))
    token = await stage.token(LoopId("report"))
    claims = {
        "scheduler-parked-reason": "exhausted",
        "scheduler-parked-at-ms": 5,
        "scheduler-attempt": 3,
        "x-death": [{"reason": "delivery_limit", "queue": "shop.v1.processor.report"}],
    }
    message = encode(token, stage.app.namespace)
    message = replace(message, headers={**message.headers, **claims})
    stage.server.publish(message, stage.app.names.failed, REPORT)
    (parked,) = await stage.parked()
    assert (parked.reason, parked.parked_at) == ("delivery-limit", None)
    assert await stage.failed.replay(["report"], EVERYTHING) == 1
    delivery = await got(stage.broker, stage.app.names.processor_queue("report"))
    assert (delivery.exchange, delivery.routing_key) == (stage.app.names.delayed, "retry.report")
    assert "scheduler-attempt" not in delivery.message.headers


async def test_a_message_with_a_routing_key_of_bytes_is_replayed_and_delays_no_other(stage: Stage):
    await stage.seed(looping("report"))
    for key in ("\udce9.task.report", "\udcff" * 255, "task.report"):
        stage.server.publish(Message(b"{}"), stage.app.names.failed, key)
    assert await stage.failed.replay(["report"], EVERYTHING) == 3
    assert await stage.ready_for("report") == 1
    assert await stage.ready(stage.app.names.later_unrouted) == 2


ROOM = 6000


def excess(message: Message) -> int:
    return sum(len(name) + len(str(value)) for name, value in message.headers.items()) - ROOM


@pytest.fixture
async def narrow() -> AsyncIterator[FaultyBroker]:
    """A broker that takes so many characters of headers, and says so as RabbitMQ's does."""

    async def refuse(call: Call) -> None:
        raise TooLarge(excess=excess(call.message))

    async with FaultyBroker() as broker:
        await broker.declare(topology("shop", ["report"]))
        broker.on("publish", where=lambda call: excess(call.message) > 0).first(refuse)
        yield broker


async def test_a_message_with_too_large_headers_is_parked_without_the_largest(narrow: FaultyBroker):
    full = Message(b"b", OWN | {"blob": "x" * 5000, "list": ["x" * 800]}, message_id="1")
    failed = failed_of(NAMES, narrow)
    await failed.park(full, "task.report", Reason.BROKEN, failure())
    (parked,) = await failed.browse(["report"])
    assert (parked.reason, parked.error) == ("broken", "ValueError: no way")
    assert "in failure" in parked.traceback
    assert parked.headers == OWN | {"list": ["x" * 800], "scheduler-left-out": "blob"}
    assert parked.message.body == b"b"


async def test_a_message_is_replayed_without_its_largest_header(narrow: FaultyBroker):
    died = [{"reason": "delivery_limit", "exchange": "orders", "routing-keys": ["order.paid"]}]
    full = {"blob": "x" * 5000, "more": "y" * 900}
    await MemoryBroker.publish(
        narrow,
        Message(b"b", full | {"x-death": died, "tail": "z" * 80}),
        exchange=NAMES.failed,
        routing_key="task.report",
    )
    await failed_of(NAMES, narrow).replay(["report"], EVERYTHING)
    headers = dict((await got(narrow)).message.headers)
    assert headers.pop("scheduler-replayed-at-ms") > AT_MS
    assert headers == {
        "more": "y" * 900,
        "tail": "z" * 80,
        "scheduler-exchange": "orders",
        "scheduler-key": "order.paid",
        "scheduler-left-out": "blob",
    }


@pytest.mark.parametrize(
    ("selection", "chosen"),
    [
        (Selection(), "1234"),
        (Selection(task="report"), "12"),
        (Selection(task="gone"), "4"),
        (Selection(task="mail", reason="rejected"), ""),
    ],
)
async def test_parked_messages_are_selected(
    failed: FailedQueues, selection: Selection, chosen: str
):
    before = {each.id: each for each in await failed.browse(TASKS)}
    found = await failed.browse(TASKS, selection)
    assert [each.message.message_id for each in found] == list(chosen)
    assert [each.id for each in await failed.browse(TASKS, selection, limit=1)] == [
        each.id for each in found[:1]
    ]
    purged: list[ParkedMessage] = []
    assert await failed.purge(TASKS, selection, on_each=purged.append) == len(chosen)
    assert {each.id for each in purged} == {each.id for each in found}
    assert len(await failed.browse(TASKS)) == 4 - len(chosen)
    # The trash has them, and they are restored as they were.
    assert {each.id for each in await failed.browse(None)} == {each.id for each in found}
    assert await failed.restore(selection) == len(chosen)
    after = {each.id: each for each in await failed.browse(TASKS)}
    assert {id: own(each) for id, each in after.items()} == {
        id: own(each) for id, each in before.items()
    }
    assert await failed.count(None) == 0


def own(parked: ParkedMessage) -> ParkedMessage:
    """What a program knows of it: brokers count deliveries."""
    message = replace(parked.message, headers=own_headers(parked.message.headers))
    return replace(parked, message=message)


async def test_a_deletion_is_undone_alone_and_only_for_a_day(stage: Stage, failed: FailedQueues):
    report, mail = Selection(task="report"), Selection(task="mail")
    assert await failed.purge(TASKS, report, deletion="first") == 2
    assert await failed.purge(TASKS, mail, deletion="second") == 1
    assert await failed.restore(Selection(deletion="second")) == 1
    assert [each.task for each in await failed.browse(["mail"], mail)] == ["mail"]
    await asyncio.sleep(timedelta(days=1).total_seconds() + 1)
    assert await failed.restore(Selection(deletion="first")) == 0


async def test_a_message_that_claims_to_be_a_tick_is_restored(stage: Stage, failed: FailedQueues):
    claims = {**FROM_BROKERS, **OWN, "scheduler-parked-reason": "rejected"}
    stage.server.publish(Message(b"{}", claims, message_id="dead"), NAMES.failed, BERLIN)
    dead = Selection(ids=frozenset(["dead"]))
    (before,) = await failed.browse(TASKS, dead)
    assert await failed.purge(TASKS, dead) == 1
    assert await failed.restore(dead) == 1
    (after,) = await failed.browse(TASKS, dead)
    assert not after.came_as_token
    assert (after.reason, after.error, after.task) == (before.reason, before.error, "report")


async def test_no_more_are_replayed_than_the_rate_allows(stage: Stage, failed: FailedQueues):
    began = stage.clock.now()
    assert await failed.replay(TASKS, EVERYTHING, rate=parse_rate("10/m")) == 4
    assert stage.clock.now() - began >= timedelta(seconds=18)


@pytest.mark.parametrize("rate", ["1/h", "1/m"])
async def test_a_slow_replay_holds_no_message_for_long(
    stage: Stage, failed: FailedQueues, rate: str
):
    queue = NAMES.failed_queue("report")
    await stage.broker.publish(Message(), exchange=NAMES.failed, routing_key=REPORT)
    for name in "56789":
        message = Message(b"{}", OWN, message_id=name)
        await failed.park(message, REPORT, Reason.EXHAUSTED, ValueError(name))
    replaying = asyncio.create_task(
        failed.replay(["report"], Selection(reason="exhausted"), rate=parse_rate(rate))
    )
    held = longest = 0
    while not replaying.done():
        await asyncio.sleep(1)
        # A getter is who has a message in hand.
        depth = await stage.broker.depth(queue)
        held = held + 1 if depth and depth.consumers else 0
        longest = max(longest, held)
    assert await replaying == 8
    assert longest <= ROUND.total_seconds()
    assert [each.reason for each in await failed.browse(["report"])] == ["unknown-task"]


async def test_a_message_that_fails_again_is_replayed_once(stage: Stage, failed: FailedQueues):
    """Each of them is parked again at once."""
    again: list[ParkedMessage] = []

    def fail(parked: ParkedMessage) -> None:
        again.append(parked)
        stage.server.publish(parked.message, NAMES.failed, parked.routing_key)

    assert await failed.replay(TASKS, EVERYTHING, rate=parse_rate("10/h"), on_each=fail) == 4
    assert len(again) == 4
    assert len(await failed.browse(TASKS)) == 4


async def test_messages_that_another_reader_took_are_counted(stage: Stage, failed: FailedQueues):
    def take_the_last(_: ParkedMessage) -> None:
        stage.server.queue(NAMES.failed).take()

    with pytest.raises(NotAllSeen, match="^1 of the parked messages .* Another reader") as told:
        await failed.purge(TASKS, EVERYTHING, on_each=take_the_last)
    assert told.value.left == 1


async def test_messages_left_by_a_lost_connection_are_counted(stage: Stage, failed: FailedQueues):
    async def cut(call: Call) -> None:
        stage.server.disconnect_all()

    async with FaultyBroker(stage.server) as broker:
        broker.on("publish", where=lambda call: call.message.message_id == "2").then(cut)
        cut_off = failed_of(NAMES, broker, stage.clock)
        with pytest.raises(NotAllSeen, match="^3 of the .* Run the command again") as told:
            await cut_off.replay(TASKS, EVERYTHING)
    assert told.value.left == 3
    assert {each.message.message_id for each in await failed.browse(TASKS)} == set("234")


async def test_the_beginning_of_an_id_is_enough(stage: Stage, failed: FailedQueues):
    (first, second) = [each.id for each in await failed.browse(TASKS)][:2]
    named = await failed.named(TASKS, [first, second[:1], "nobody"])
    assert named == {first: first, second[:1]: second}
    stage.server.publish(Message(message_id=f"{second}0"), NAMES.failed, "task.gone")
    assert await failed.named(TASKS, [second]) == {second: second}
    with pytest.raises(UsageError, match=rf"matches {second}, {second}0; use a longer"):
        await failed.named(TASKS, [second[:1]])


async def test_the_beginning_of_an_id_is_refused_if_not_all_ids_were_read(
    stage: Stage, failed: FailedQueues, monkeypatch: pytest.MonkeyPatch
):
    first = (await failed.browse(TASKS))[0]

    async def half(_: object) -> AsyncIterator[ParkedMessage]:
        yield first
        raise NotAllSeen(left=3)

    monkeypatch.setattr(failed, "look", half)
    assert await failed.named(TASKS, [first.id, "nobody"]) == {first.id: first.id}
    with pytest.raises(NotAllSeen):
        await failed.named(TASKS, [first.id[:1]])


@pytest.mark.parametrize(
    ("body", "counts"),
    [
        (b'{"seq":3,"attempt":2}', {"scheduler-parked-seq": 3, "scheduler-attempt": 2}),
        (b'{"seq":%d,"attempt":-1}' % 10**400, {}),
        (b"[3]", {}),
    ],
)
async def test_the_record_of_a_parked_tick_has_its_counts_if_they_are_possible(
    stage: Stage, empty: FailedQueues, body: bytes, counts: dict[str, int]
):
    claimed = Message(body, type=TOKEN_TYPE)
    await empty.park(claimed, REPORT, Reason.UNDECODABLE, ValueError("no"))
    (record,) = [each async for each in stage.broker.read(NAMES.journal)]
    names = ("scheduler-parked-seq", "scheduler-attempt")
    assert {n: record.headers[n] for n in names if n in record.headers} == counts
    (shown,) = await empty.browse(TASKS)
    assert shown.attempts == counts.get("scheduler-attempt", 0)


@pytest.mark.parametrize(
    ("type", "key", "edited"),
    [
        (TOKEN_TYPE, REPORT, True),
        (TOKEN_TYPE, "task.report", False),
        ("invoice", REPORT, False),
    ],
)
async def test_only_a_message_that_came_as_a_token_is_replayed_as_one(
    stage: Stage, empty: FailedQueues, type: str, key: str, edited: bool
):
    message = Message(b'{"state": "armed"}', type=type)
    await empty.park(message, key, Reason.BROKEN, ValueError("no"))
    assert await empty.replay(TASKS, EVERYTHING) == 1
    delivery = await got(stage.broker)
    assert (json.loads(delivery.message.body)["state"] == "replay") is edited
    assert edited or delivery.message.body == message.body
