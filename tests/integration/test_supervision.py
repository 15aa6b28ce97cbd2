"""Loops cannot die, and cannot double: processors repair what is done to the broker's queues."""

import asyncio
import json
from contextlib import suppress
from pathlib import Path

import pytest

from scheduler import Scheduler
from scheduler.brokers import Broker
from scheduler.brokers.amqp import AmqpBroker
from scheduler.errors import Rejected
from scheduler.messages import LoopId, Message
from scheduler.topology import QueueType, routing_key
from tests.integration.conftest import Field
from tests.integration.shop import eventually
from tests.rabbitmq import PrivateNode

INTERVAL = 3.0
SUPERVISED = {"SCHEDULER_SUPERVISION_INTERVAL": f"{INTERVAL}s"}
LOOP0 = LoopId("loop0")

pytestmark = pytest.mark.timeout(240)


def runs(field: Field, loop: str = "loop0") -> list[int]:
    return [note["seq"] for note in field.notes("start") if note["loop"] == loop]


async def taken_away(broker: Broker, queue: str) -> Message:
    """The message that waits in a queue, deleted from it."""
    while True:
        delivery = await broker.get(queue)
        if delivery is not None:
            await delivery.ack()
            return delivery.message
        await broker.wake(queue)
        await asyncio.sleep(0.01)


async def test_a_token_deleted_by_hand_comes_back(field_: Field, broker: Broker) -> None:
    names = Scheduler(field_.namespace).names
    loop = {"LOOPS": "2", "EVERY": "700ms", "TIMEOUT": "1h", **SUPERVISED}
    field_.call("seed", **loop)
    processors = [field_.start("run", **loop) for _ in range(2)]
    await field_.until(lambda: len(runs(field_)) >= 2 and len(runs(field_, "loop1")) >= 2)
    await taken_away(broker, names.hatchery(LOOP0))
    before = len(runs(field_))
    status = await asyncio.to_thread(status_of, field_, loop)
    history = [entry["what"] for entry in field_.call("history", "loop0", **loop)]
    if "repaired" not in history:
        assert status == "lost"
    await field_.until(lambda: len(runs(field_)) > before, seconds=60)
    for processor in processors:
        processor.terminate()
        field_.output_of(processor)
    seqs = runs(field_)
    assert seqs == list(range(len(seqs)))  # none is left out, none is run twice
    history = [entry["what"] for entry in field_.call("history", "loop0", **loop)]
    assert history.count("repaired") == 1
    assert await field_.tokens(broker, 2) == {"loop0": 1, "loop1": 1}


def status_of(field: Field, loop: dict[str, str]) -> str:
    process = field.start("status", "--json", **loop)
    loops = json.loads(field.output_of(process))["loops"]
    return {row["loop"]: row["where"] for row in loops}["loop0"]


async def test_of_three_tokens_put_by_hand_one_is_left(
    field_: Field, broker: Broker, queue_type: QueueType
) -> None:
    if queue_type == "classic":
        pytest.skip("a classic queue of one slot takes one, whoever publishes at once")
    names = Scheduler(field_.namespace).names
    loop = {"EVERY": "20s", **SUPERVISED}
    field_.call("seed", **loop)
    hatchery = names.hatchery(LOOP0)
    token = await taken_away(broker, hatchery)

    async def put() -> None:
        async with AmqpBroker(field_.url) as somebody:
            # Publishers that race are all accepted.
            with suppress(Rejected):
                await somebody.publish(
                    token, exchange=names.scheduler, routing_key=routing_key(LOOP0)
                )

    async def several() -> bool:
        await asyncio.gather(*(put() for _ in range(10)))
        depth = await broker.depth(hatchery)
        return depth is not None and depth.ready >= 2

    await eventually(several)
    processor = field_.start("run", **loop)

    async def one() -> bool:
        depth = await broker.depth(hatchery)
        return depth is not None and depth.ready == 1

    await eventually(one)
    processor.terminate()
    assert "doubled" in field_.output_of(processor)
    assert await field_.tokens(broker, 1) == {"loop0": 1}


async def test_processors_that_start_at_once_seed_an_empty_broker_once(
    field_: Field, broker: Broker
) -> None:
    loop = {"LOOPS": "20", "EVERY": "5s", **SUPERVISED}
    processors = [field_.start("run", **loop) for _ in range(5)]
    names = [f"loop{number}" for number in range(20)]
    await field_.until(lambda: all(len(runs(field_, name)) >= 2 for name in names), seconds=150)
    for processor in processors:
        processor.terminate()
    for processor in processors:
        field_.output_of(processor)
    for name in names:
        seqs = runs(field_, name)
        assert seqs == list(range(len(seqs)))
    assert await field_.tokens(broker, 20) == dict.fromkeys(names, 1)


async def test_all_loops_run_again_after_the_broker_has_lost_everything(
    namespace: str, queue_type: QueueType, tmp_path: Path
) -> None:
    with PrivateNode() as node:
        field = Field(node.url, namespace, queue_type, tmp_path / "record")
        loop = {"LOOPS": "5", "EVERY": "500ms", **SUPERVISED}
        names = [f"loop{number}" for number in range(5)]
        processors = [field.start("run", **loop) for _ in range(2)]
        try:
            await field.until(lambda: all(len(runs(field, name)) >= 3 for name in names), 90)
            await asyncio.to_thread(node.kill)
            node.forget()
            before = len(field.notes("start"))
            await asyncio.to_thread(node.start)

            def all_again() -> bool:
                later = field.notes("start")[before:]
                return all([n["loop"] for n in later].count(name) >= 2 for name in names)

            await field.until(all_again, 120)
        finally:
            for processor in processors:
                processor.terminate()
            for processor in processors:
                processor.wait(30)
        async with AmqpBroker(node.url) as broker:
            assert await field.tokens(broker, 5) == dict.fromkeys(names, 1)
