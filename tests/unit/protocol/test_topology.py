import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta

import pytest

from scheduler.brokers.memory.broker import MemoryBroker
from scheduler.brokers.memory.server import MemoryServer
from scheduler.errors import SettingsError
from scheduler.protocol.messages import Message
from scheduler.protocol.tokens import LoopId
from scheduler.protocol.topology import (
    DELIVERY_BACKSTOP,
    UNREACHABLE_DELIVERY_LIMIT,
    UNROUTED_FOR,
    Binding,
    Exchange,
    Names,
    Queue,
    QueueType,
    Subscription,
    Topology,
    definitions,
    routing_key,
    topology,
)
from scheduler.settings import Settings
from scheduler.timing.clock import LoopClock

NAMES = Names("shop")
BERLIN = LoopId("report", "berlin")
NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)

EXCHANGES = (
    Exchange("shop.v1.unmatched", "fanout"),
    Exchange("shop.v1.failed", "topic", {"alternate-exchange": "shop.v1.unmatched"}),
    Exchange("shop.v1.rerouted", "topic", {"alternate-exchange": "shop.v1.failed"}),
    Exchange("shop.v1.unrouted", "fanout"),
    Exchange("shop.v1.processor", "topic", {"alternate-exchange": "shop.v1.unrouted"}),
    Exchange("shop.v1.delayed", "topic", {"alternate-exchange": "shop.v1.unrouted"}),
    Exchange("shop.v1.calls", "topic"),
    Exchange("shop.v1.later", "topic"),
    Exchange("shop.v1.scheduler", "topic"),
    Exchange("shop.v1.control", "direct"),
)
STREAMS = (
    Queue(
        "shop.v1.journal",
        {
            "x-queue-type": "stream",
            "x-max-age": "604800s",
            "x-max-length-bytes": 1_000_000_000,
            "x-stream-max-segment-size-bytes": 20_000_000,
        },
    ),
    Queue(
        "shop.v1.roster",
        {
            "x-queue-type": "stream",
            "x-max-length-bytes": 1_000_000_000,
            "x-stream-max-segment-size-bytes": 50_000_000,
        },
    ),
    Queue(
        "shop.v1.snapshots",
        {
            "x-queue-type": "stream",
            "x-max-length-bytes": 20_000_000,
            "x-stream-max-segment-size-bytes": 10_000_000,
        },
    ),
    Queue(
        "shop.v1.rollcall",
        {
            "x-queue-type": "stream",
            "x-max-length-bytes": 10_000_000,
            "x-stream-max-segment-size-bytes": 1_000_000,
        },
    ),
)
# Nobody would know of a message that a classic timer queue lost, so it is never one.
ASTRAY = Queue(
    "shop.v1.unrouted",
    {
        "x-queue-type": "quorum",
        "x-dead-letter-exchange": "shop.v1.rerouted",
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
        "x-message-ttl": 5000,
    },
)
IMPRINT = Queue(
    "shop.v1.imprint",
    {
        "x-queue-type": "quorum",
        "x-delivery-limit": 2_000_000_000,
        "x-max-length": 1,
        "x-overflow": "drop-head",
    },
)
QUORUM = (
    Queue("shop.v1.failed", {"x-queue-type": "quorum", "x-delivery-limit": 2_000_000_000}),
    ASTRAY,
    *STREAMS,
    Queue("shop.v1.presence", {"x-queue-type": "quorum"}),
    IMPRINT,
    Queue(
        "shop.v1.processor.report",
        {
            "x-queue-type": "quorum",
            "x-dead-letter-exchange": "shop.v1.failed",
            "x-dead-letter-strategy": "at-least-once",
            "x-overflow": "reject-publish",
            "x-delivery-limit": 100,
        },
    ),
    Queue("shop.v1.failed.report", {"x-queue-type": "quorum", "x-delivery-limit": 2_000_000_000}),
    Queue(
        "shop.v1.hatchery.report.berlin",
        {
            "x-queue-type": "quorum",
            "x-dead-letter-exchange": "shop.v1.processor",
            "x-dead-letter-strategy": "at-least-once",
            "x-delivery-limit": 2_000_000_000,
            # One slot: a quorum queue takes one more than its limit.
            "x-max-length": 0,
            "x-overflow": "reject-publish",
        },
    ),
)
CLASSIC = (
    QUORUM[0],  # nor of one that waits for people
    ASTRAY,
    *STREAMS,
    Queue("shop.v1.presence", {"x-queue-type": "classic"}),
    IMPRINT,
    Queue(
        "shop.v1.processor.report",
        {"x-queue-type": "classic", "x-dead-letter-exchange": "shop.v1.failed"},
    ),
    QUORUM[9],
    Queue(
        "shop.v1.hatchery.report.berlin",
        {
            "x-queue-type": "classic",
            "x-dead-letter-exchange": "shop.v1.processor",
            "x-max-length": 1,
            "x-overflow": "reject-publish",
        },
    ),
)
BINDINGS = (
    Binding("shop.v1.unmatched", "shop.v1.failed", ""),
    Binding("shop.v1.unrouted", "shop.v1.unrouted", ""),
    Binding("shop.v1.scheduler", "shop.v1.journal", "#"),
    Binding("shop.v1.control", "shop.v1.roster", "shop.v1.roster"),
    Binding("shop.v1.control", "shop.v1.snapshots", "shop.v1.snapshots"),
    Binding("shop.v1.control", "shop.v1.rollcall", "shop.v1.rollcall"),
    Binding("shop.v1.control", "shop.v1.imprint", "shop.v1.imprint"),
    Binding("shop.v1.processor", "shop.v1.processor.report", "loop.report.#"),
    Binding("shop.v1.delayed", "shop.v1.processor.report", "#.task.report"),
    Binding("shop.v1.rerouted", "shop.v1.processor.report", "loop.report.#"),
    Binding("shop.v1.rerouted", "shop.v1.processor.report", "#.task.report"),
    Binding("shop.v1.failed", "shop.v1.failed.report", "loop.report.#"),
    Binding("shop.v1.failed", "shop.v1.failed.report", "#.task.report"),
    Binding("shop.v1.scheduler", "shop.v1.hatchery.report.berlin", "loop.report.berlin"),
)


@pytest.mark.parametrize(("of_type", "queues"), [("quorum", QUORUM), ("classic", CLASSIC)])
def test_one_task_with_one_loop_needs_exactly_this(of_type: QueueType, queues: tuple[Queue, ...]):
    assert topology("shop", ["report"], [BERLIN], queue_type=of_type) == Topology(
        EXCHANGES, queues, BINDINGS
    )


def test_queues_are_quorum_queues_unless_told_otherwise():
    assert topology("shop", ["report"], [BERLIN]).queues == QUORUM


def test_a_namespace_without_tasks_can_still_park():
    assert topology("shop", [], []) == Topology(EXCHANGES, QUORUM[:8], BINDINGS[:7])


def test_no_message_of_others_comes_to_a_stream():
    wanted = topology("shop", ["report"], [BERLIN], called=["report"])
    heard = {
        each.source
        for each in wanted.bindings
        if each.destination in {queue.name for queue in STREAMS}
    }
    assert heard == {NAMES.scheduler, NAMES.control}
    assert not {each.destination for each in wanted.bindings if each.to == "exchange"} & heard


def test_a_processor_counts_deliveries_before_the_broker_does():
    with pytest.raises(SettingsError):
        Settings(delivery_limit=DELIVERY_BACKSTOP)
    assert Settings(delivery_limit=DELIVERY_BACKSTOP - 1)


def test_the_delivery_limit_is_for_processor_queues_only():
    wanted = topology("shop", ["report"], [BERLIN])
    limits = {
        queue.name: queue.arguments["x-delivery-limit"]
        for queue in wanted.queues
        if queue not in STREAMS and queue.name not in (NAMES.unrouted, NAMES.presence)
    }
    assert limits.pop("shop.v1.processor.report") == DELIVERY_BACKSTOP
    assert set(limits.values()) == {UNREACHABLE_DELIVERY_LIMIT}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (NAMES.prefix, "shop.v1"),
        (NAMES.scheduler, "shop.v1.scheduler"),
        (NAMES.processor, "shop.v1.processor"),
        (NAMES.calls, "shop.v1.calls"),
        (NAMES.later, "shop.v1.later"),
        (NAMES.delayed, "shop.v1.delayed"),
        (NAMES.unrouted, "shop.v1.unrouted"),
        (NAMES.rerouted, "shop.v1.rerouted"),
        (NAMES.failed, "shop.v1.failed"),
        (NAMES.unmatched, "shop.v1.unmatched"),
        (NAMES.journal, "shop.v1.journal"),
        (NAMES.control, "shop.v1.control"),
        (NAMES.roster, "shop.v1.roster"),
        (NAMES.snapshots, "shop.v1.snapshots"),
        (NAMES.roll_call, "shop.v1.rollcall"),
        (NAMES.presence, "shop.v1.presence"),
        (NAMES.lock, "shop.v1.lock"),
        (NAMES.hatchery(LoopId("report")), "shop.v1.hatchery.report"),
        (NAMES.hatchery(BERLIN), "shop.v1.hatchery.report.berlin"),
        (NAMES.processor_queue("report"), "shop.v1.processor.report"),
        (NAMES.failed_queue("report"), "shop.v1.failed.report"),
        (routing_key(LoopId("report")), "loop.report"),
        (routing_key(BERLIN), "loop.report.berlin"),
    ],
)
def test_everything_is_called_by_its_namespace_and_version(name: str, expected: str):
    assert name == expected


TASKS = ("a", "b", "a-b", "failed", "processor", "hatchery", "journal")
TO = ("queue", "exchange")
MANY = topology("shop", TASKS, [LoopId("a"), LoopId("a", "k"), *map(LoopId, TASKS[1:])])


@pytest.mark.parametrize("called", [(), TASKS])
def test_nothing_is_there_twice_even_if_tasks_are_called_like_parts_of_the_topology(
    called: Sequence[str],
):
    wanted = topology("shop", TASKS, [LoopId("a"), LoopId("a", "k")], called=called)
    for kind in (wanted.exchanges, wanted.queues):
        names = [each.name for each in kind]
        assert len(names) == len(set(names))
    assert len(wanted.bindings) == len(set(wanted.bindings))


def test_all_that_is_named_exists():
    exchanges = {exchange.name for exchange in MANY.exchanges}
    queues = {queue.name for queue in MANY.queues}
    assert {binding.source for binding in MANY.bindings} <= exchanges
    bound = {kind: {b.destination for b in MANY.bindings if b.to == kind} for kind in TO}
    assert bound["queue"] == queues - {NAMES.presence}  # nothing is ever put there
    assert bound["exchange"] <= exchanges
    arguments = [each.arguments for each in (*MANY.exchanges, *MANY.queues)]
    for argument in ("alternate-exchange", "x-dead-letter-exchange"):
        named = {each[argument] for each in arguments if argument in each}
        assert named
        assert named <= exchanges


def test_the_part_that_some_queues_need_is_them_their_bindings_and_all_exchanges():
    wanted = topology("shop", ["a", "b"], [LoopId("a"), LoopId("b")], called=["a"])
    some = {NAMES.processor_queue("a"), NAMES.hatchery(LoopId("a")), "another"}
    part = wanted.only(some)
    assert part.exchanges == wanted.exchanges
    assert {queue.name for queue in part.queues} == some - {"another"}
    assert [each for each in part.bindings if each.to == "queue"] == [
        each for each in wanted.bindings if each.destination in some
    ]
    between = [each for each in wanted.bindings if each.to == "exchange"]
    assert between
    assert [each for each in part.bindings if each.to == "exchange"] == between


def test_a_binding_to_an_exchange_that_is_not_there_is_no_part():
    elsewhere = Binding("ours", "theirs", "#", "exchange")
    wanted = Topology(exchanges=(Exchange("ours", "topic"),), bindings=(elsewhere,))
    assert wanted.only([]) == Topology(exchanges=wanted.exchanges)


@pytest.mark.parametrize("argument", ["x-expires", "x-message-ttl"])
def test_no_queue_loses_what_waits_in_it(argument: str):
    holding = [queue for queue in MANY.queues if queue.name != NAMES.unrouted]
    assert not any(argument in queue.arguments for queue in holding)


def test_namespaces_share_nothing():
    other = topology("bank", TASKS, map(LoopId, TASKS))
    names = [{each.name for each in (*t.exchanges, *t.queues)} for t in (MANY, other)]
    assert not names[0] & names[1]


def test_a_period_is_no_part_of_the_topology_so_it_can_be_changed():
    hatcheries = [queue for queue in MANY.queues if ".hatchery." in queue.name]
    assert hatcheries
    assert "ttl" not in json.dumps([asdict(queue) for queue in hatcheries])


def test_definitions_are_what_rabbitmq_imports():
    wanted = definitions(topology("shop", ["report"], [BERLIN]), vhost="prod")
    assert set(wanted) == {"exchanges", "queues", "bindings"}
    assert wanted["exchanges"][1] == {
        "name": "shop.v1.failed",
        "vhost": "prod",
        "type": "topic",
        "durable": True,
        "auto_delete": False,
        "internal": False,
        "arguments": {"alternate-exchange": "shop.v1.unmatched"},
    }
    assert wanted["queues"][0] == {
        "name": "shop.v1.failed",
        "vhost": "prod",
        "durable": True,
        "auto_delete": False,
        "arguments": {"x-queue-type": "quorum", "x-delivery-limit": 2_000_000_000},
    }
    assert wanted["bindings"][-1] == {
        "source": "shop.v1.scheduler",
        "vhost": "prod",
        "destination": "shop.v1.hatchery.report.berlin",
        "destination_type": "queue",
        "routing_key": "loop.report.berlin",
        "arguments": {},
    }
    counts = {kind: len(entries) for kind, entries in wanted.items()}
    assert counts == {"exchanges": 10, "queues": 11, "bindings": 14}
    assert json.loads(json.dumps(wanted)) == wanted


async def arrivals(wanted: Topology, exchange: str, key: str) -> set[str]:
    """The queues that a message goes to."""
    async with MemoryBroker() as broker:
        await broker.declare(wanted)
        await broker.publish(Message(b"m"), exchange=exchange, routing_key=key)
        depths = {each.name: await broker.depth(each.name) for each in wanted.queues}
        return {name for name, depth in depths.items() if depth and depth.ready}


@pytest.mark.parametrize(
    ("exchange", "key", "queue"),
    [
        (NAMES.processor, "loop.a", "shop.v1.processor.a"),
        (NAMES.processor, "loop.a.k", "shop.v1.processor.a"),
        (NAMES.processor, "loop.a.k.more", "shop.v1.processor.a"),
        (NAMES.processor, "loop.a-b", "shop.v1.processor.a-b"),
        (NAMES.delayed, "0.0.0.0.0.0.0.5.0.0.0.task.a", "shop.v1.processor.a"),
        (NAMES.delayed, "task.a", "shop.v1.processor.a"),
        (NAMES.control, "shop.v1.roster", "shop.v1.roster"),
        (NAMES.control, "shop.v1.snapshots", "shop.v1.snapshots"),
        (NAMES.control, "shop.v1.rollcall", "shop.v1.rollcall"),
        (NAMES.scheduler, "loop.gone", "shop.v1.journal"),
        (NAMES.rerouted, "loop.a.k", "shop.v1.processor.a"),
        (NAMES.rerouted, "task.a", "shop.v1.processor.a"),
        # What no task takes is given time.
        (NAMES.processor, "loop.gone", "shop.v1.unrouted"),
        (NAMES.processor, "loop.gone.k", "shop.v1.unrouted"),
        (NAMES.processor, "", "shop.v1.unrouted"),
        (NAMES.processor, "order.paid", "shop.v1.unrouted"),
        (NAMES.processor, "task.a", "shop.v1.unrouted"),
        (NAMES.delayed, "loop.a", "shop.v1.unrouted"),
        (NAMES.delayed, "0.0.0.0.0.0.0.5.0.0.0.task.gone", "shop.v1.unrouted"),
    ],
)
async def test_a_message_goes_to_this_one_queue(
    exchange: str, key: str, queue: str, queue_type: QueueType
):
    wanted = topology("shop", TASKS, [LoopId("a"), LoopId("a", "k")], queue_type=queue_type)
    assert await arrivals(wanted, exchange, key) == {queue}


@pytest.mark.parametrize(
    ("exchange", "key", "queue"),
    [
        # What no task takes is parked, in the queue of the namespace.
        (NAMES.rerouted, "loop.gone", "shop.v1.failed"),
        (NAMES.rerouted, "loop.gone.k", "shop.v1.failed"),
        (NAMES.rerouted, "", "shop.v1.failed"),
        (NAMES.rerouted, "order.paid", "shop.v1.failed"),
        (NAMES.failed, "loop.a", "shop.v1.failed.a"),
        (NAMES.failed, "loop.a.k", "shop.v1.failed.a"),
        (NAMES.failed, "0.5.task.b", "shop.v1.failed.b"),
        (NAMES.failed, "loop.gone", "shop.v1.failed"),
    ],
)
async def test_what_is_parked_goes_to_this_one_queue(
    exchange: str, key: str, queue: str, queue_type: QueueType
):
    wanted = topology("shop", TASKS, [LoopId("a"), LoopId("a", "k")], queue_type=queue_type)
    assert await arrivals(wanted, exchange, key) == {queue}


@pytest.mark.parametrize("loop", ["a", "a.k"])
async def test_what_is_settled_goes_into_its_slot_and_into_the_journal(
    loop: str, queue_type: QueueType
):
    wanted = topology("shop", TASKS, [LoopId("a"), LoopId("a", "k")], queue_type=queue_type)
    found = await arrivals(wanted, NAMES.scheduler, f"loop.{loop}")
    assert found == {f"shop.v1.hatchery.{loop}", "shop.v1.journal"}


async def test_a_token_that_hatches_reaches_its_task(queue_type: QueueType):
    loop = LoopId("a", "k")
    wanted = topology("shop", ["a"], [loop], queue_type=queue_type)
    token = Message(b"token", expiration=timedelta(0))
    async with MemoryBroker() as broker:
        await broker.declare(wanted)
        await broker.publish(token, exchange=NAMES.scheduler, routing_key=routing_key(loop))
        assert await broker.get(NAMES.hatchery(loop)) is None
        hatched = await broker.get("shop.v1.processor.a")
        assert hatched is not None
        assert (hatched.message.body, hatched.routing_key) == (b"token", "loop.a.k")


@pytest.mark.parametrize(
    ("key", "queue"), [("loop.a.k", "shop.v1.processor.a"), ("loop.gone", "shop.v1.failed")]
)
async def test_what_found_no_queue_is_tried_once_more_and_then_parked(
    clock: LoopClock, key: str, queue: str, queue_type: QueueType
):
    before, wanted = (
        topology("shop", tasks, [LoopId("a")], queue_type=queue_type) for tasks in ([], ["a"])
    )

    async with MemoryBroker(MemoryServer(clock)) as broker:
        await broker.declare(before)
        await broker.publish(Message(b"token"), exchange=NAMES.processor, routing_key=key)
        await broker.declare(wanted)
        await asyncio.sleep(UNROUTED_FOR.total_seconds() - 0.1)
        assert await broker.get(queue) is None
        await asyncio.sleep(0.2)
        found = await broker.get(queue)
        assert found is not None
        assert (found.message.body, found.routing_key) == (b"token", key)


# One-off messages

CALLED = topology("shop", ["a", "b"], [], called=["a"])
UNITS = "192d", "32d", "7d", "d", "6h", "h", "15m", "m", "15s", "s", "100ms"
LADDER = [f"delay.{unit}" for unit in UNITS]


def queue_of(wanted: Topology, name: str) -> Queue:
    (found,) = [queue for queue in wanted.queues if queue.name == name]
    return found


def test_a_task_that_is_called_brings_the_ladder():
    names = [exchange.name.removeprefix("shop.v1.") for exchange in CALLED.exchanges]
    others = {exchange.name.removeprefix("shop.v1.") for exchange in EXCHANGES}
    assert sorted(set(names) - others) == sorted(LADDER)
    timers = [queue for queue in CALLED.queues if ".delay." in queue.name]
    assert len(timers) == len({queue.name for queue in timers}) == 72
    assert not any(".delay." in queue.name for queue in MANY.queues)


@pytest.mark.parametrize(
    ("rung", "ttl", "exchange"),
    [
        ("6x192d", 6 * 192 * 86_400_000, "shop.v1.delay.32d"),
        ("6d", 6 * 86_400_000, "shop.v1.delay.6h"),
        ("5h", 5 * 3_600_000, "shop.v1.delay.15m"),
        ("5m", 300_000, "shop.v1.delay.15s"),
        ("14s", 14_000, "shop.v1.delay.100ms"),
        ("9x100ms", 900, "shop.v1.delayed"),
    ],
)
def test_a_rung_has_one_time_to_live_and_goes_on_to_the_next_unit(
    queue_type: QueueType, rung: str, ttl: int, exchange: str
):
    wanted = topology("shop", ["a"], [], called=["a"], queue_type=queue_type)
    assert queue_of(wanted, f"shop.v1.delay.{rung}").arguments == {
        "x-queue-type": "quorum",
        "x-dead-letter-exchange": exchange,
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
        "x-message-ttl": ttl,
    }


def test_a_zero_leads_straight_to_the_next_unit():
    steps = [b for b in CALLED.bindings if b.to == "exchange" and ".delay." in b.source]
    path = {step.source: step.destination for step in steps}
    at = "shop.v1.delay.192d"
    passed = [at]
    while at in path:
        passed.append(at := path[at])
    assert passed == [*(f"shop.v1.{name}" for name in LADDER), "shop.v1.delayed"]
    assert {step.routing_key for step in steps} == {"*." * n + "0.#" for n in range(11)}


def test_no_queue_can_keep_what_no_other_one_is_bound_for():
    caught = {
        exchange.name
        for exchange in CALLED.exchanges
        if "alternate-exchange" in exchange.arguments or exchange.type == "fanout"
    }
    keeping = [queue for queue in CALLED.queues if "x-dead-letter-strategy" in queue.arguments]
    exchanges = {queue.arguments["x-dead-letter-exchange"] for queue in keeping}
    assert exchanges <= caught | {"shop.v1.rerouted"}


def test_whatever_a_binding_or_a_queue_needs_is_declared_before_it():
    known: set[str] = set()
    for exchange in CALLED.exchanges:
        assert exchange.arguments.get("alternate-exchange", "shop.v1.failed") in known | {
            "shop.v1.failed"
        }
        known.add(exchange.name)
    for queue in CALLED.queues:
        assert queue.arguments.get("x-dead-letter-exchange", "shop.v1.failed") in known


@pytest.mark.parametrize(
    ("queue_type", "task", "priorities"),
    [("classic", "a", 5), ("classic", "b", None), ("quorum", "a", None), ("quorum", "b", None)],
)
def test_called_tasks_have_priorities_where_a_queue_must_ask_for_them(
    queue_type: QueueType, task: str, priorities: int | None
):
    wanted = topology("shop", ["a", "b"], [], called=["a"], queue_type=queue_type)
    queue = queue_of(wanted, f"shop.v1.processor.{task}")
    assert queue.arguments.get("x-max-priority") == priorities
    assert "x-max-priority" not in queue_of(wanted, f"shop.v1.failed.{task}").arguments


def test_an_ordered_task_has_one_consumer_and_no_limit_and_a_place_for_notes(
    queue_type: QueueType,
):
    wanted = topology(
        "shop", ["a", "b"], [], called=["a", "b"], ordered=["a"], queue_type=queue_type
    )
    ordered = queue_of(wanted, "shop.v1.processor.a").arguments
    other = queue_of(wanted, "shop.v1.processor.b").arguments
    assert ordered["x-single-active-consumer"] is True
    assert "x-max-priority" not in ordered  # it would change the order
    assert "x-single-active-consumer" not in other
    limits = [each.get("x-delivery-limit") for each in (ordered, other)]
    assert limits == ([2_000_000_000, 100] if queue_type == "quorum" else [None, None])
    head = "shop.v1.head.a"
    assert queue_of(wanted, head).arguments["x-max-length"] == 1
    assert Binding("shop.v1.control", head, head) in wanted.bindings
    assert "shop.v1.head.b" not in [queue.name for queue in wanted.queues]


def test_a_subscription_is_a_binding_to_an_exchange_of_somebody_else():
    wanted = topology(
        "shop",
        ["a", "b"],
        [],
        subscriptions=[
            Subscription("a", "orders", "order.paid"),
            Subscription("b", "events", "", "fanout"),
        ],
    )
    assert wanted.exchanges[-2:] == (
        Exchange("orders", "topic", passive=True),
        Exchange("events", "fanout"),
    )
    assert wanted.bindings[-2:] == (
        Binding("orders", "shop.v1.processor.a", "order.paid"),
        Binding("events", "shop.v1.processor.b", ""),
    )
    dead_letters = queue_of(wanted, "shop.v1.processor.a").arguments["x-dead-letter-routing-key"]
    assert dead_letters == "task.a"  # the failed exchange does not know "order.paid"
    exported = {exchange["name"] for exchange in definitions(wanted)["exchanges"]}
    assert "orders" not in exported  # it is not ours to make
    assert "events" in exported


SUBSCRIBED = topology(
    "shop",
    ["a", "b"],
    [],
    called=["a"],
    subscriptions=[Subscription("a", "orders", "order.*", "topic")],
)


@pytest.mark.parametrize(
    ("exchange", "key", "queue"),
    [
        ("orders", "order.paid", "shop.v1.processor.a"),
        ("shop.v1.calls", "task.a", "shop.v1.processor.a"),
        ("shop.v1.delayed", "task.a", "shop.v1.processor.a"),
        ("shop.v1.delay.s", "0.0.0.0.0.0.0.0.0.3.0.task.a", "shop.v1.delay.3s"),
        ("shop.v1.delay.s", "0.0.0.0.0.0.0.0.0.0.3.task.a", "shop.v1.delay.3x100ms"),
        ("shop.v1.delay.32d", "0.0.0.0.0.0.0.0.0.0.0.task.a", "shop.v1.processor.a"),
        ("shop.v1.delay.32d", "0.0.0.0.0.0.0.0.0.0.7.task.gone", "shop.v1.delay.7x100ms"),
        ("shop.v1.delay.32d", "0.0.0.0.0.0.0.0.0.0.0.task.gone", "shop.v1.unrouted"),
        ("shop.v1.processor", "order.paid", "shop.v1.unrouted"),
        ("shop.v1.later", "0.0.0.99.0.0.0.0.0.0.0.task.a", "shop.v1.unrouted"),
        ("shop.v1.delay.100ms", "0.0.0.0.0.0.0.0.0.1.task.a", "shop.v1.unrouted"),
        ("shop.v1.delay.100ms", "0.0.0.0.0.0.0.0.0.1.x.task.a", "shop.v1.unrouted"),
    ],
)
async def test_a_one_off_message_goes_to_this_one_queue(exchange: str, key: str, queue: str):
    assert await arrivals(SUBSCRIBED, exchange, key) == {queue}


@pytest.mark.parametrize(
    ("exchange", "key", "queue"),
    [
        ("shop.v1.rerouted", "order.paid", "shop.v1.failed"),
        ("shop.v1.rerouted", "0.0.0.0.0.0.0.0.0.0.0.task.gone", "shop.v1.failed"),
        ("shop.v1.failed", "task.a", "shop.v1.failed.a"),
    ],
)
async def test_a_parked_one_off_message_goes_to_this_one_queue(exchange: str, key: str, queue: str):
    assert await arrivals(SUBSCRIBED, exchange, key) == {queue}
