"""Loops cannot die, and cannot double: processors repair what is done to the broker's queues."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from scheduler import Scheduler
from scheduler.brokers.amqp.broker import AmqpBroker
from scheduler.brokers.contract import Broker
from scheduler.protocol.hatchery import NO_WAIT
from scheduler.protocol.messages import Message, own_headers
from scheduler.protocol.tokens import LoopId, token_key
from scheduler.protocol.topology import QueueType
from tests.integration.conftest import Field, sweep
from tests.rabbitmq import PrivateNode
from tests.sweep import new_namespace

SUPERVISED = {"SCHEDULER_SUPERVISION_INTERVAL": "2s"}
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
        await asyncio.sleep(0.01)


async def test_a_token_that_was_handed_out_twice_is_one_line_again(field_: Field, broker: Broker):
    names = Scheduler(field_.namespace).names
    loop = {"EVERY": "500ms", "TAKES": "2", **SUPERVISED}
    field_.call("seed", **loop)
    message = await taken_away(broker, names.processor_queue("loop0"))
    message = replace(message, headers=own_headers(message.headers))

    async def hand_out() -> None:
        await broker.publish(
            message, exchange=names.processor, routing_key=token_key(LOOP0, NO_WAIT.key)
        )

    await hand_out()
    processors = [field_.start("run", **loop) for _ in range(2)]
    logs = [field_.log_of(field_.processes.index(each)) for each in processors]
    await field_.until(lambda: bool(runs(field_)))
    await asyncio.sleep(1)  # so far apart, the two lines would not meet by themselves
    await hand_out()
    # Supervision ends both, or one processor gets both and acks the one that is behind.
    ended = "doubled", "was settled before"
    await field_.until(
        lambda: any(what in log.read_text() for log in logs for what in ended), seconds=60
    )
    before = runs(field_)
    await field_.until(lambda: len(runs(field_)) >= len(before) + 3, seconds=60)
    for processor in processors:
        processor.terminate()
        field_.output_of(processor)
    first, second, third = field_.notes("start")[-3:]
    assert [second["seq"], third["seq"]] == [first["seq"] + 1, first["seq"] + 2]
    ends = [note["at"] for note in field_.notes("end")][-3:]
    assert first["at"] < ends[0] < second["at"] < ends[1] < third["at"]
    assert await field_.tokens(broker, 1) == {"loop0": 1}


async def test_all_loops_run_again_after_the_broker_has_lost_everything(
    node: PrivateNode, tmp_path: Path
) -> None:
    types: tuple[QueueType, ...] = ("quorum", "classic")
    fields = [Field(node.url, new_namespace(), each, tmp_path / each) for each in types]
    loop = {"LOOPS": "5", "EVERY": "500ms", **SUPERVISED}
    names = [f"loop{number}" for number in range(5)]

    async def until_all_ran(field: Field, times: int, since: int, seconds: float) -> None:
        def all_ran() -> bool:
            ran = [note["loop"] for note in field.notes("start")[since:]]
            return all(ran.count(name) >= times for name in names)

        await field.until(all_ran, seconds)

    try:
        for field in fields:
            for _ in range(2):
                field.start("run", **loop)
        await asyncio.gather(*(until_all_ran(field, 3, 0, 90) for field in fields))
        await asyncio.to_thread(node.kill)
        node.forget()
        before = [len(field.notes("start")) for field in fields]
        await asyncio.to_thread(node.start)
        again = zip(fields, before, strict=True)
        await asyncio.gather(*(until_all_ran(field, 2, since, 120) for field, since in again))
    finally:
        for field in fields:
            field.stop()
    async with AmqpBroker(node.url) as broker:
        for field in fields:
            assert await field.tokens(broker, 5) == dict.fromkeys(names, 1)
            await sweep(field)


async def test_twenty_concurrent_seeds_give_each_loop_one_token(field_: Field, broker: Broker):
    seeds = [field_.calling("seed", LOOPS="5", EVERY="1h") for _ in range(20)]
    # Not in this thread: the broker closes the connection of a client that shows no sign of life.
    reports = [await asyncio.to_thread(seed) for seed in seeds]
    did = [row["did"] for each in reports for row in each["loops"]]
    assert (did.count("created"), did.count("unchanged")) == (5, 95)
    assert await field_.tokens(broker, 5) == {f"loop{number}": 1 for number in range(5)}
