import json
from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from hashlib import blake2b
from types import MappingProxyType
from typing import Any

import pytest

from scheduler.brokers.memory.broker import MemoryBroker
from scheduler.brokers.memory.server import MemoryServer
from scheduler.errors import SettingsError, Unroutable
from scheduler.protocol.hatchery import route
from scheduler.protocol.messages import Message
from scheduler.protocol.tokens import SLICES, LoopId, loop_named_by, rest_key, slice_of, token_key
from scheduler.protocol.topology import (
    DELIVERY_BACKSTOP,
    Names,
    QueueType,
    Subscription,
    Topology,
    definitions,
    topology,
)
from scheduler.settings import Settings
from scheduler.timing.durations import parse_duration

NAMES = Names("shop")
SENDERS = NAMES.calls, NAMES.later, "orders"
ZEROS = "0.0.0.0.0.0.0.0.0.0.0"
# Some are called like parts of the topology.
TASKS = ("a", "b", "c", "a-b", "failed", "processor", "hatchery", "journal")
TO = ("queue", "exchange")


def shop(queue_type: QueueType = "quorum", shards: int = 1) -> Topology:
    """What tasks of all kinds need: `a` and `c` are called, `c` is ordered."""
    return topology(
        "shop",
        TASKS,
        called=["a", "c"],
        ordered=["c"],
        subscriptions=[Subscription("a", "orders", "order.*", "topic")],
        shards={"a": shards},
        queue_type=queue_type,
    )


SHOP = shop()


@pytest.mark.parametrize(
    ("queue_type", "fingerprint"), [("quorum", "810cd05a53c5d40f"), ("classic", "a5197ef6d2d2bfe5")]
)
def test_declarations_do_not_change_by_accident(queue_type: QueueType, fingerprint: str):
    """Queues that exist cannot get other arguments: whatever changes here needs a migration."""
    wanted = shop(queue_type, shards=2)
    declared = [each for kind in definitions(wanted, vhost="prod").values() for each in kind]
    told = "\n".join(sorted(json.dumps(each, sort_keys=True) for each in declared))
    assert blake2b(told.encode(), digest_size=8).hexdigest() == fingerprint


def test_a_processor_counts_deliveries_before_the_broker_does():
    with pytest.raises(SettingsError):
        Settings(delivery_limit=DELIVERY_BACKSTOP)
    assert Settings(delivery_limit=DELIVERY_BACKSTOP - 1)


def test_every_named_object_is_declared_before_it_is_named():
    exchanges = {exchange.name for exchange in SHOP.exchanges}
    queues = {queue.name for queue in SHOP.queues}
    assert {binding.source for binding in SHOP.bindings} <= exchanges
    bound = {kind: {b.destination for b in SHOP.bindings if b.to == kind} for kind in TO}
    assert bound["queue"] == queues - {NAMES.presence}  # nothing is ever put there
    assert bound["exchange"] <= exchanges
    known = {NAMES.failed}
    for argument, kind in (
        ("alternate-exchange", SHOP.exchanges),
        ("x-dead-letter-exchange", SHOP.queues),
    ):
        assert any(argument in each.arguments for each in kind)
        for each in kind:
            assert each.arguments.get(argument, NAMES.failed) in known
            known.add(each.name)


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
        (NAMES.processor, "loop.a", "processor.a"),
        (NAMES.processor, "loop.a.k.more", "processor.a"),
        (NAMES.processor, "loop.a-b", "processor.a-b"),
        (NAMES.rerouted, "loop.a.k", "processor.a"),
        (NAMES.scheduler, "loop.gone", "journal"),
        (NAMES.control, "shop.v1.roster", "roster"),
        (NAMES.control, "shop.v1.head.c", "head.c"),
        (NAMES.failed, "loop.a.k", "failed.a"),
        (NAMES.failed, "task.a", "failed.a"),
        ("orders", "order.paid", "processor.a"),
        (NAMES.calls, "task.a", "processor.a"),
        (NAMES.delayed, "task.a", "processor.a"),
        (NAMES.delayed, "retry.b", "processor.b"),
        (NAMES.later, "task.a", "processor.a"),
        ("shop.v1.later.32d", "task.a", "processor.a"),
        ("shop.v1.later.32d", "retry.b", "processor.b"),
        (NAMES.later_rerouted, "retry.b", "processor.b"),
        # What still has no queue is parked by none of its keys, of which its sender may add some.
        (NAMES.rerouted, "task.a", "failed"),
        (NAMES.later_rerouted, "task.b", "failed"),
        # What no task takes is given time.
        (NAMES.processor, "loop.gone.k", "unrouted"),
        (NAMES.processor, "", "unrouted"),
        (NAMES.processor, "task.a", "unrouted"),
        (NAMES.delayed, "loop.a", "later.unrouted"),
        (NAMES.delayed, "retry.gone", "later.unrouted"),
        ("shop.v1.later.32d", "task.b", "later.unrouted"),  # it gets no calls
    ],
)
async def test_a_message_goes_to_this_one_queue(
    exchange: str, key: str, queue: str, queue_type: QueueType
):
    assert await arrivals(shop(queue_type), exchange, key) == {f"shop.v1.{queue}"}


# One-off messages


def test_calls_wait_for_a_missing_queue_and_tokens_block_no_timer(queue_type: QueueType):
    """Nobody would know of a call that was lost; a token is put again."""
    arguments = {each.name: each.arguments for each in shop(queue_type).queues}
    for timers, is_kept in ((f"{NAMES.later}.", True), ("shop.v1.hatchery.", False)):
        found = [each for name, each in arguments.items() if name.startswith(timers)]
        assert len(found) == 68 + is_kept
        assert {"x-dead-letter-strategy" in each for each in found} == {is_kept}


def test_every_dead_letter_has_a_bound_queue():
    caught = {
        exchange.name
        for exchange in SHOP.exchanges
        if "alternate-exchange" in exchange.arguments or exchange.type == "fanout"
    }
    keeping = [queue for queue in SHOP.queues if "x-dead-letter-strategy" in queue.arguments]
    assert {queue.arguments["x-dead-letter-exchange"] for queue in keeping} <= caught


def test_an_ordered_task_has_one_consumer_and_neither_limit_nor_priorities(queue_type: QueueType):
    arguments = {each.name: each.arguments for each in shop(queue_type).queues}
    other, ordered = (arguments[NAMES.processor_queue(task)] for task in "ac")
    alone = [each.get("x-single-active-consumer", False) for each in (other, ordered)]
    priorities = [each.get("x-max-priority") for each in (other, ordered)]
    limits = [each.get("x-delivery-limit") for each in (other, ordered)]
    assert alone == [False, True]
    assert priorities == ([None, None] if queue_type == "quorum" else [5, None])
    assert limits == ([100, 2_000_000_000] if queue_type == "quorum" else [None, None])


@pytest.mark.parametrize(
    ("exchange", "headers", "queue"),
    [
        ("shop.v1.later.192d", {"192d": "3s", "32d": "2m"}, "later.3s"),
        ("shop.v1.later.s", {"s": "3x100ms"}, "later.3x100ms"),
        ("shop.v1.later.s", {"192d": "3s"}, "processor.a"),
        ("shop.v1.later.s", {"s": "1h"}, "processor.a"),  # it waits for no earlier unit
        ("shop.v1.later", {"192d": "99m"}, "processor.a"),  # no timer has so many
        ("shop.v1.later", {"192d": 3}, "processor.a"),
    ],
)
async def test_the_headers_of_a_call_lead_to_one_timer_whatever_its_keys(
    exchange: str, headers: dict[str, Any], queue: str
):
    at = {f"scheduler-at-{unit}": timer for unit, timer in headers.items()}
    copied = {**at, "CC": [f"{ZEROS}.task.a", "0.0.0.0.0.0.0.0.0.1.0.task.a", "loop.b.k"]}
    assert await arrivals(SHOP, exchange, "task.a", copied) == {f"shop.v1.{queue}"}


@pytest.mark.parametrize("exchange", [NAMES.calls, NAMES.later])
@pytest.mark.parametrize("key", ["5.task.a", "task.b", "task.gone", "retry.a", f"loop.a.{ZEROS}"])
async def test_a_key_of_no_called_task_is_unroutable(exchange: str, key: str):
    with pytest.raises(Unroutable):
        await arrivals(SHOP, exchange, key)


@pytest.mark.parametrize("header", ["CC", "BCC"])
async def test_a_sender_cannot_claim_a_retry_by_any_key(header: str):
    with pytest.raises(Unroutable):
        await arrivals(SHOP, NAMES.later, "task.a", {header: ["task.a", "retry.a"]})


# Tokens in shared timers


@pytest.mark.parametrize("loop", [LoopId("a"), LoopId("a", "b.c.5")])
@pytest.mark.parametrize("delay", ["0s", "1h30m"])
def test_a_key_of_a_token_names_its_loop(loop: LoopId, delay: str):
    assert loop_named_by(token_key(loop, route(parse_duration(delay)).key)) == loop


@pytest.mark.parametrize("key", ["", "loop", "loop.a", f"loop.a.{ZEROS}", f"a.{ZEROS}.3.k"])
def test_a_key_of_something_else_names_no_loop(key: str):
    assert loop_named_by(key) is None
    assert loop_named_by(rest_key(LoopId("a", ZEROS))) is None


@pytest.mark.parametrize("shards", [2, 5, 16])
async def test_a_token_goes_to_one_shard_of_its_task(shards: int):
    wanted, queues = shop(shards=shards), NAMES.processor_queues("a", shards)
    loops = [LoopId("a"), *(LoopId("a", f"k{number}") for number in range(60))]
    for number, loop in enumerate(loops):
        key = token_key(loop, route(timedelta(hours=number)).key)
        source = (NAMES.processor, NAMES.rerouted)[number % 2]
        assert await arrivals(wanted, source, key) == {queues[slice_of(loop) % shards]}
    assert {slice_of(loop) % shards for loop in loops} == set(range(shards))
    assert await arrivals(wanted, NAMES.calls, "task.a") == {queues[0]}


@pytest.mark.parametrize("name", ["{}", "order-{}0"])
def test_slices_are_about_equal(name: str):
    slices = Counter(slice_of(LoopId("a", name.format(number))) for number in range(1600))
    assert len(slices) == SLICES
    assert 60 <= min(slices.values()) <= max(slices.values()) <= 140


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


def test_no_exchange_of_senders_leads_to_tokens(queue_type: QueueType):
    """RabbitMQ routes by all keys of a message, at every exchange: so no key counts here."""
    wanted = shop(queue_type)
    names = {each.name for each in (*wanted.exchanges, *wanted.queues)}
    of_calls = {name for name in names if name.startswith(f"{NAMES.later}.")} | {*SENDERS}
    ends = {f"shop.v1.{end}.{task}" for end in ("processor", "failed") for task in TASKS}
    parked = {NAMES.failed, NAMES.unmatched, NAMES.trash}
    of_senders = reached(wanted, *SENDERS)
    assert of_senders == of_calls | ends | parked | {NAMES.delayed}
    assert not of_senders & NAMES.token_exchanges
    of_tokens = {name for name in names if name.startswith("shop.v1.hatchery.")}
    of_tokens |= {NAMES.scheduler, NAMES.processor, NAMES.unrouted, NAMES.rerouted, NAMES.journal}
    assert reached(wanted, NAMES.scheduler) == of_tokens | ends | parked
    # From where both ways end, none leads back.
    assert reached(wanted, *ends) == ends | parked


def test_calls_and_dead_letters_match_whole_keys_and_no_loop(queue_type: QueueType):
    wanted = shop(queue_type)
    types = {each.name: each.type for each in wanted.exchanges}
    calls, retries = {"task.a", "task.c"}, {f"retry.{task}" for task in TASKS}
    for source in (NAMES.calls, NAMES.later_sent, NAMES.delayed, NAMES.later_rerouted):
        keys = {each.routing_key for each in wanted.bindings if each.source == source}
        is_sent = source in (NAMES.calls, NAMES.later_sent)
        assert (types[source], keys) == ("direct", calls if is_sent else calls | retries)
    arguments = {each.name: each.arguments for each in wanted.queues}
    for task in TASKS:
        dead = arguments[NAMES.processor_queue(task)]
        exchange, key = (dead[f"x-dead-letter-{each}"] for each in ("exchange", "routing-key"))
        led = [each for each in wanted.bindings if each.source == exchange]
        ends = [each.destination for each in led if each.routing_key == key]
        assert ends == [NAMES.failed_queue(task)]
        assert not any(each.routing_key.startswith("#") for each in led)
