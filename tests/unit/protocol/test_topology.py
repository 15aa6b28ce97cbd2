import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from hashlib import blake2b
from types import MappingProxyType
from typing import Any

import pytest

from scheduler.brokers.memory.broker import MemoryBroker
from scheduler.brokers.memory.server import MemoryServer
from scheduler.errors import SettingsError, Unroutable
from scheduler.protocol.hatchery import route, timers
from scheduler.protocol.messages import Message
from scheduler.protocol.tokens import SLICES, LoopId, loop_named_by, rest_key, slice_of, token_key
from scheduler.protocol.topology import (
    DELIVERY_BACKSTOP,
    Binding,
    Exchange,
    Names,
    Queue,
    QueueType,
    Subscription,
    Topology,
    definitions,
    topology,
)
from scheduler.settings import Settings
from scheduler.timing.durations import parse_duration
from scheduler.timing.moments import LoopClock

NAMES = Names("shop")
STREAMS = NAMES.journal, NAMES.roster, NAMES.snapshots, NAMES.roll_call
ZEROS = "0.0.0.0.0.0.0.0.0.0.0"

# Nobody would know of a message that a classic timer queue lost, so it is never one.


@pytest.mark.parametrize(
    ("queue_type", "fingerprint"), [("quorum", "5e7d960b4ab2f9eb"), ("classic", "1e6cedadbee80b58")]
)
def test_what_is_declared_does_not_change_by_chance(queue_type: QueueType, fingerprint: str):
    """Queues that exist cannot get other arguments: whatever changes here needs a migration."""
    wanted = topology("shop", ["a", "b"], called=["a"], ordered=["b"], queue_type=queue_type)
    declared = [each for kind in definitions(wanted, vhost="prod").values() for each in kind]
    told = "\n".join(sorted(json.dumps(each, sort_keys=True) for each in declared))
    assert blake2b(told.encode(), digest_size=8).hexdigest() == fingerprint


def test_no_message_of_others_comes_to_a_stream():
    wanted = topology("shop", ["report"], called=["report"])
    heard = {each.source for each in wanted.bindings if each.destination in STREAMS}
    assert heard == {NAMES.scheduler, NAMES.control}
    assert not {each.destination for each in wanted.bindings if each.to == "exchange"} & heard


def test_a_processor_counts_deliveries_before_the_broker_does():
    with pytest.raises(SettingsError):
        Settings(delivery_limit=DELIVERY_BACKSTOP)
    assert Settings(delivery_limit=DELIVERY_BACKSTOP - 1)


TASKS = ("a", "b", "a-b", "failed", "processor", "hatchery", "journal")
TO = ("queue", "exchange")
MANY = topology("shop", TASKS)


@pytest.mark.parametrize("called", [(), TASKS])
def test_nothing_is_there_twice_even_if_tasks_are_called_like_parts_of_the_topology(
    called: Sequence[str],
):
    wanted = topology("shop", TASKS, called=called)
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
    wanted = topology("shop", ["a", "b"], called=["a"])
    some = {NAMES.processor_queue("a"), NAMES.failed_queue("a"), "another"}
    part = wanted.only(some)
    assert part.exchanges == wanted.exchanges
    assert {queue.name for queue in part.queues} == some - {"another"}
    assert [each for each in part.bindings if each.to == "queue"] == [
        each for each in wanted.bindings if each.destination in some
    ]
    between = [each for each in wanted.bindings if each.to == "exchange"]
    assert between
    assert [each for each in part.bindings if each.to == "exchange"] == between


def test_namespaces_share_nothing():
    other = topology("bank", TASKS)
    names = [{each.name for each in (*t.exchanges, *t.queues)} for t in (MANY, other)]
    assert not names[0] & names[1]


async def arrivals(
    wanted: Topology, exchange: str, key: str, headers: Mapping[str, Any] = MappingProxyType({})
) -> set[str]:
    """The queues that a message of anybody goes to."""
    server = MemoryServer()
    async with MemoryBroker(server) as broker:
        await broker.declare(wanted)
        server.publish(Message(b"m", dict(headers)), exchange, key)
        depths = {each.name: await broker.depth(each.name) for each in wanted.queues}
        return {name for name, depth in depths.items() if depth and depth.ready}


@pytest.mark.parametrize(
    ("exchange", "key", "queue"),
    [
        (NAMES.processor, "loop.a", "shop.v1.processor.a"),
        (NAMES.processor, "loop.a.k", "shop.v1.processor.a"),
        (NAMES.processor, "loop.a.k.more", "shop.v1.processor.a"),
        (NAMES.processor, "loop.a-b", "shop.v1.processor.a-b"),
        (NAMES.delayed, "retry.a", "shop.v1.processor.a"),
        (NAMES.control, "shop.v1.roster", "shop.v1.roster"),
        (NAMES.control, "shop.v1.snapshots", "shop.v1.snapshots"),
        (NAMES.control, "shop.v1.rollcall", "shop.v1.rollcall"),
        (NAMES.scheduler, "loop.gone", "shop.v1.journal"),
        (NAMES.rerouted, "loop.a.k", "shop.v1.processor.a"),
        (NAMES.later_rerouted, "retry.a", "shop.v1.processor.a"),
        (NAMES.failed, "loop.a.k", "shop.v1.failed.a"),
        (NAMES.failed, "task.a", "shop.v1.failed.a"),
        # What still has no queue is parked by none of its keys, of which its sender may add some.
        (NAMES.rerouted, "task.a", "shop.v1.failed"),
        (NAMES.later_rerouted, "task.a", "shop.v1.failed"),
        # What no task takes is given time.
        (NAMES.processor, "loop.gone", "shop.v1.unrouted"),
        (NAMES.processor, "loop.gone.k", "shop.v1.unrouted"),
        (NAMES.processor, "", "shop.v1.unrouted"),
        (NAMES.processor, "order.paid", "shop.v1.unrouted"),
        (NAMES.processor, "task.a", "shop.v1.unrouted"),
        (NAMES.delayed, "loop.a", "shop.v1.later.unrouted"),
        (NAMES.delayed, "task.a", "shop.v1.later.unrouted"),  # it gets no calls
        (NAMES.delayed, "retry.gone", "shop.v1.later.unrouted"),
    ],
)
async def test_a_message_goes_to_this_one_queue(
    exchange: str, key: str, queue: str, queue_type: QueueType
):
    wanted = topology("shop", TASKS, queue_type=queue_type)
    assert await arrivals(wanted, exchange, key) == {queue}


# One-off messages

CALLED = topology("shop", ["a", "b"], called=["a"])
UNITS = "192d", "32d", "7d", "d", "6h", "h", "5m", "m", "5s", "s", "100ms"


def queue_of(wanted: Topology, name: str) -> Queue:
    (found,) = [queue for queue in wanted.queues if queue.name == name]
    return found


def test_a_task_that_is_called_brings_timers_of_calls():
    exchanges = {exchange.name for exchange in CALLED.exchanges}
    others = {exchange.name for exchange in MANY.exchanges}
    assert exchanges - others == {f"shop.v1.later.{unit}" for unit in UNITS}
    timers = {queue.name for queue in CALLED.queues if ".later." in queue.name}
    assert len(timers - {NAMES.later_unrouted}) == 68
    assert timers & {queue.name for queue in MANY.queues} == {NAMES.later_unrouted}


TIMERS = pytest.mark.parametrize(
    ("timer", "ttl", "unit"),
    [
        ("6x192d", 6 * 192 * 86_400_000 - 150, "32d"),
        ("6d", 6 * 86_400_000 - 150, "6h"),
        ("5h", 5 * 3_600_000 - 150, "5m"),
        ("2m", 120_000 - 150, "5s"),
        ("4s", 4_000 - 150, "100ms"),
        ("9x100ms", 900, None),
    ],
)


@TIMERS
def test_a_timer_of_calls_has_one_wait_and_goes_on_to_the_next_unit(
    queue_type: QueueType, timer: str, ttl: int, unit: str | None
):
    wanted = topology("shop", ["a"], called=["a"], queue_type=queue_type)
    assert queue_of(wanted, f"shop.v1.later.{timer}").arguments == {
        "x-queue-type": "quorum",
        "x-dead-letter-exchange": f"shop.v1.later.{unit}" if unit else NAMES.delayed,
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
        "x-message-ttl": ttl,
        "x-delivery-limit": 2_000_000_000,
    }


@TIMERS
def test_a_timer_of_tokens_never_waits_for_a_queue_that_refuses(
    queue_type: QueueType, timer: str, ttl: int, unit: str | None
):
    wanted = topology("shop", [], queue_type=queue_type)
    limit = {"x-delivery-limit": 2_000_000_000} if queue_type == "quorum" else {}
    assert queue_of(wanted, f"shop.v1.hatchery.{timer}").arguments == limit | {
        "x-queue-type": queue_type,
        "x-dead-letter-exchange": f"shop.v1.hatchery.{unit}" if unit else NAMES.processor,
        "x-message-ttl": ttl,
    }


@pytest.mark.parametrize("unit", range(len(UNITS)))
def test_each_exchange_leads_straight_to_all_later_timers_and_to_the_end(unit: int):
    def ends_of(exchange: str) -> list[str]:
        return [each.destination for each in CALLED.bindings if each.source == exchange]

    tokens, calls = NAMES.hatchery_exchange(unit), NAMES.later_exchange(unit)
    timed = timers(unit)
    after = {*map(NAMES.timer, timed), NAMES.processor}
    assert set(ends_of(tokens)) - {NAMES.journal} == after
    assert ends_of(calls) == list(map(NAMES.later_timer, timed))
    (otherwise,) = [each.arguments for each in CALLED.exchanges if each.name == calls]
    assert otherwise == {"alternate-exchange": NAMES.delayed}


def test_no_queue_can_keep_what_no_other_one_is_bound_for():
    caught = {
        exchange.name
        for exchange in CALLED.exchanges
        if "alternate-exchange" in exchange.arguments or exchange.type == "fanout"
    }
    keeping = [queue for queue in CALLED.queues if "x-dead-letter-strategy" in queue.arguments]
    assert {queue.arguments["x-dead-letter-exchange"] for queue in keeping} <= caught


@pytest.mark.parametrize(
    ("queue_type", "task", "priorities"),
    [("classic", "a", 5), ("classic", "b", None), ("quorum", "a", None), ("quorum", "b", None)],
)
def test_called_tasks_have_priorities_where_a_queue_must_ask_for_them(
    queue_type: QueueType, task: str, priorities: int | None
):
    wanted = topology("shop", ["a", "b"], called=["a"], queue_type=queue_type)
    queue = queue_of(wanted, f"shop.v1.processor.{task}")
    assert queue.arguments.get("x-max-priority") == priorities
    assert "x-max-priority" not in queue_of(wanted, f"shop.v1.failed.{task}").arguments


def test_an_ordered_task_has_one_consumer_and_no_limit_and_a_place_for_notes(
    queue_type: QueueType,
):
    wanted = topology("shop", ["a", "b"], called=["a", "b"], ordered=["a"], queue_type=queue_type)
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


SUBSCRIBED = topology(
    "shop",
    ["a", "b"],
    called=["a"],
    subscriptions=[Subscription("a", "orders", "order.*", "topic")],
)


@pytest.mark.parametrize(
    ("exchange", "key", "queue"),
    [
        ("orders", "order.paid", "shop.v1.processor.a"),
        ("shop.v1.calls", "task.a", "shop.v1.processor.a"),
        ("shop.v1.delayed", "task.a", "shop.v1.processor.a"),
        ("shop.v1.later", "task.a", "shop.v1.processor.a"),
        ("shop.v1.later.32d", "task.a", "shop.v1.processor.a"),
        ("shop.v1.later.32d", "retry.b", "shop.v1.processor.b"),
        ("shop.v1.later.32d", "task.gone", "shop.v1.later.unrouted"),
        ("shop.v1.later.32d", "task.b", "shop.v1.later.unrouted"),  # it gets no calls
        ("shop.v1.processor", "order.paid", "shop.v1.unrouted"),
    ],
)
async def test_a_one_off_message_goes_to_this_one_queue(exchange: str, key: str, queue: str):
    assert await arrivals(SUBSCRIBED, exchange, key) == {queue}


@pytest.mark.parametrize(
    ("exchange", "headers", "queue"),
    [
        ("shop.v1.later", {"192d": "3s"}, "later.3s"),
        ("shop.v1.later.192d", {"192d": "3s", "32d": "2m"}, "later.3s"),
        ("shop.v1.later.s", {"s": "3x100ms"}, "later.3x100ms"),
        ("shop.v1.later.s", {"192d": "3s"}, "processor.a"),
        ("shop.v1.later.s", {"s": "1h"}, "processor.a"),  # it waits for no earlier unit
        ("shop.v1.later", {"192d": "99m"}, "processor.a"),  # no timer has so many
        ("shop.v1.later", {"192d": 3}, "processor.a"),
    ],
)
async def test_a_call_goes_by_its_headers_into_one_timer_however_many_keys_it_has(
    exchange: str, headers: dict[str, Any], queue: str
):
    at = {f"scheduler-at-{unit}": timer for unit, timer in headers.items()}
    copied = {**at, "CC": [f"{ZEROS}.task.a", "0.0.0.0.0.0.0.0.0.1.0.task.a", "loop.b.k"]}
    assert await arrivals(SUBSCRIBED, exchange, "task.a", copied) == {f"shop.v1.{queue}"}


@pytest.mark.parametrize("exchange", [NAMES.calls, NAMES.later])
@pytest.mark.parametrize(
    "key",
    [
        "5.task.a",
        "task.b",  # it gets no calls
        "task.gone",
        "retry.a",
        f"loop.a.{ZEROS}",
    ],
)
async def test_a_sender_is_told_of_a_key_that_is_not_that_of_a_called_task(exchange: str, key: str):
    with pytest.raises(Unroutable):
        await arrivals(SUBSCRIBED, exchange, key)


@pytest.mark.parametrize("header", ["CC", "BCC"])
async def test_nobody_sends_later_what_claims_to_be_a_retry_by_any_of_its_keys(header: str):
    with pytest.raises(Unroutable):
        await arrivals(SUBSCRIBED, NAMES.later, "task.a", {header: ["task.a", "retry.a"]})


# Tokens in shared timers


@pytest.mark.parametrize("loop", [LoopId("a"), LoopId("a", "k"), LoopId("a", "b.c.5")])
@pytest.mark.parametrize("delay", ["0s", "1s", "1h30m"])
def test_a_key_of_a_token_names_its_loop(loop: LoopId, delay: str):
    assert loop_named_by(token_key(loop, route(parse_duration(delay)).key)) == loop


@pytest.mark.parametrize(
    "key", ["", "loop", "loop.", "loop.a", "loop.a.b", f"loop.a.{ZEROS}", f"a.{ZEROS}.3.k"]
)
def test_a_key_of_something_else_names_no_loop(key: str):
    assert loop_named_by(key) is None
    assert loop_named_by(rest_key(LoopId("a", ZEROS))) is None


@pytest.mark.parametrize("shards", [1, 2, 5, 16])
@pytest.mark.parametrize("source", [NAMES.processor, NAMES.rerouted])
async def test_a_token_goes_to_one_shard_of_its_task(shards: int, source: str):
    wanted = topology("shop", ["a", "b"], called=["a"], shards={"a": shards})
    queues, due = NAMES.processor_queues("a", shards), Counter[str]()
    server = MemoryServer()
    async with MemoryBroker(server) as broker:
        await broker.declare(wanted)

        async def send(exchange: str, key: str, queue: str) -> None:
            server.publish(Message(b"m"), exchange, key)
            due[queue] += 1
            depths = {each.name: await broker.depth(each.name) for each in wanted.queues}
            assert Counter({name: each.ready for name, each in depths.items() if each}) == due

        for number in range(60):
            loop = LoopId("a", f"k{number}")
            key = token_key(loop, route(timedelta(hours=number)).key)
            await send(source, key, queues[slice_of(loop) % shards])
        assert due.keys() == set(queues)
        await send(source, token_key(LoopId("a"), ZEROS), queues[0])
        await send(NAMES.calls, "task.a", queues[0])


@pytest.mark.parametrize("name", ["{}", "user-{}", "order-{}0", "k{}.eu"])
def test_slices_are_about_equal(name: str):
    slices = Counter(slice_of(LoopId("a", name.format(number))) for number in range(1600))
    assert len(slices) == SLICES
    assert 60 <= min(slices.values()) <= max(slices.values()) <= 140


@pytest.mark.parametrize(
    ("delay", "exchange"),
    [
        ("0s", "shop.v1.scheduler"),  # not where an exchange hands it on to
        ("1s", "shop.v1.hatchery.100ms"),
        ("1.5s", "shop.v1.processor"),
        ("1h", "shop.v1.hatchery.5m"),
        ("1h20s", "shop.v1.processor"),
    ],
)
async def test_a_token_comes_to_its_task_by_an_exchange_that_brings_tokens(
    clock: LoopClock, delay: str, exchange: str, queue_type: QueueType
):
    wanted = topology("shop", ["a"], queue_type=queue_type)
    span = parse_duration(delay)
    way, key = route(span), token_key(LoopId("a", "k"), route(span).key)
    async with MemoryBroker(MemoryServer(clock)) as broker:
        await broker.declare(wanted)
        await broker.publish(Message(b"token"), exchange=NAMES.scheduler, routing_key=key)
        await asyncio.sleep(max((span - way.rest).total_seconds() - 0.001, 0))
        early = await broker.get("shop.v1.processor.a")
        assert (early is None) == any(way.digits)
        await asyncio.sleep(0.002)
        hatched = early or await broker.get("shop.v1.processor.a")
        assert hatched is not None
        assert (hatched.exchange, hatched.routing_key) == (exchange, key)
        assert hatched.exchange in NAMES.token_exchanges


# Where it comes from


def reached(wanted: Topology, *sources: str) -> set[str]:
    """List all that a message of some exchanges may come to, whatever its keys and headers."""
    arrows = {(each.source, each.destination) for each in wanted.bindings}
    for argument in ("alternate-exchange", "x-dead-letter-exchange"):
        declared = (*wanted.exchanges, *wanted.queues)
        arrows |= {(each.name, each.arguments.get(argument, each.name)) for each in declared}
    found, ahead = set[str](), [*sources]
    while ahead:
        if (name := ahead.pop()) not in found:
            found.add(name)
            ahead += [destination for source, destination in arrows if source == name]
    return found


SENDERS = NAMES.calls, NAMES.later, "orders"
WHOLE = topology(
    "shop",
    ["a", "b", "c"],
    called=["a", "c"],
    ordered=["c"],
    subscriptions=[Subscription("a", "orders", "#", "topic")],
)


def test_no_way_leads_from_where_senders_write_to_one_of_tokens(queue_type: QueueType):
    """RabbitMQ routes by all keys of a message, at every exchange: so no key counts here."""
    wanted = topology(
        "shop",
        ["a", "b", "c"],
        called=["a", "c"],
        ordered=["c"],
        subscriptions=[Subscription("a", "orders", "#", "topic")],
        queue_type=queue_type,
    )
    names = {each.name for each in (*wanted.exchanges, *wanted.queues)}
    of_calls = {name for name in names if name.startswith(f"{NAMES.later}.")} | {*SENDERS}
    ends = {f"shop.v1.{end}.{task}" for end in ("processor", "failed") for task in "abc"}
    parked = {NAMES.failed, NAMES.unmatched, NAMES.trash}
    assert reached(wanted, *SENDERS) == of_calls | ends | parked | {NAMES.delayed}
    of_tokens = {name for name in names if name.startswith("shop.v1.hatchery.")}
    of_tokens |= {NAMES.scheduler, NAMES.processor, NAMES.unrouted, NAMES.rerouted, NAMES.journal}
    assert reached(wanted, NAMES.scheduler) == of_tokens | ends | parked
    # From where both ways end, none leads back.
    assert reached(wanted, *ends) == ends | parked


@pytest.mark.parametrize(
    "source", [NAMES.calls, NAMES.later_sent, NAMES.delayed, NAMES.later_rerouted]
)
def test_calls_go_by_whole_keys_and_by_none_of_a_loop(source: str):
    (type,) = [each.type for each in WHOLE.exchanges if each.name == source]
    keys = {each.routing_key for each in WHOLE.bindings if each.source == source}
    retries = set[str]() if source in (NAMES.calls, NAMES.later_sent) else {"a", "b", "c"}
    wanted = {"task.a", "task.c"} | {f"retry.{task}" for task in retries}
    assert (type, keys) == ("direct", wanted)


def test_what_is_dead_lettered_of_a_task_has_one_key_and_one_end(queue_type: QueueType):
    wanted = topology("shop", ["a", "b"], called=["a"], queue_type=queue_type)
    for task in "ab":
        arguments = queue_of(wanted, NAMES.processor_queue(task)).arguments
        exchange, key = (arguments[f"x-dead-letter-{each}"] for each in ("exchange", "routing-key"))
        led = [each for each in wanted.bindings if each.source == exchange]
        assert [each.destination for each in led if each.routing_key == key] == [
            NAMES.failed_queue(task)
        ]
        assert not any(each.routing_key.startswith("#") for each in led)


@pytest.mark.parametrize("exchange", sorted(reached(WHOLE, *SENDERS)))
def test_nothing_brings_tokens_that_senders_can_reach(exchange: str):
    assert exchange not in NAMES.token_exchanges


@pytest.mark.parametrize(
    ("exchange", "key", "is_retry"),
    [
        (NAMES.delayed, "retry.a", True),
        (NAMES.later_exchange(3), "retry.a", True),
        (NAMES.later_rerouted, "retry.a", True),
        (NAMES.later_exchange(3), "task.a", False),
        (NAMES.later, "retry.a", False),
        (NAMES.calls, "retry.a", False),
        ("orders", "retry.a", False),
        (NAMES.processor, "retry.a", False),
    ],
)
def test_a_retry_comes_out_of_the_timers_by_a_key_of_its_own(
    exchange: str, key: str, is_retry: bool
):
    assert NAMES.bring_retries(exchange, key) == is_retry


def test_whatever_a_binding_or_a_queue_needs_is_declared_before_it():
    known: set[str] = set()
    for exchange in CALLED.exchanges:
        assert exchange.arguments.get("alternate-exchange", "shop.v1.failed") in known | {
            "shop.v1.failed"
        }
        known.add(exchange.name)
    for queue in CALLED.queues:
        assert queue.arguments.get("x-dead-letter-exchange", "shop.v1.failed") in known


def test_a_subscription_is_a_binding_to_an_exchange_of_somebody_else():
    wanted = topology(
        "shop",
        ["a", "b"],
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
