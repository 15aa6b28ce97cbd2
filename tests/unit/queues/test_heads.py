"""What is noted of the message at the head of an ordered queue."""

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from scheduler.brokers.contract import DEFAULT_TIMEOUT
from scheduler.protocol.messages import Message
from scheduler.protocol.topology import QueueType
from scheduler.queues.heads import LOOK_PAUSE, LOOKS, UNNOTED, Head, Heads
from tests.stage import START, Stage, new_app

SENT = Message(b"body", headers={"h": 1}, message_id="m-1", correlation_id="c", type="t")
NOTED = Head(2, 1, START + timedelta(seconds=5), START)


async def heads_on(stage: Stage, queue_type: QueueType) -> Heads:
    stage.app = new_app(queue_type)
    stage.task("book", ordered=True)
    await stage.seed()
    return Heads(stage.broker, stage.app.names)


async def test_the_last_note_is_read(stage: Stage, queue_type: QueueType) -> None:
    heads = await heads_on(stage, queue_type)
    assert await heads.of("book", SENT) == UNNOTED
    await heads.note("book", SENT, Head(1), DEFAULT_TIMEOUT)
    await heads.note("book", SENT, NOTED, DEFAULT_TIMEOUT)
    for _ in range(3):
        assert await heads.of("book", SENT) == NOTED
    assert await stage.ready(stage.app.names.head("book")) == 1
    again = replace(SENT, headers={"x-delivery-count": 3, **SENT.headers})
    assert await heads.of("book", again) == NOTED
    names = stage.app.names
    for note in Message(b"x"), Message(headers={"scheduler-head-of": 1, "scheduler-begun": "x"}):
        await stage.broker.publish(note, exchange=names.control, routing_key=names.head("book"))
        assert await heads.of("book", SENT) == UNNOTED
    await stage.broker.delete(names.head("book"))  # as before the next seed
    assert await heads.of("book", SENT) == UNNOTED


async def test_a_missing_note_is_looked_for_once(stage: Stage, queue_type: QueueType) -> None:
    heads = await heads_on(stage, queue_type)
    loop = asyncio.get_running_loop()
    waited: list[float] = []
    for _ in range(3):
        began = loop.time()
        assert await heads.of("book", SENT) == UNNOTED
        waited.append(loop.time() - began)
    assert waited[0] == pytest.approx(LOOKS * LOOK_PAUSE)
    assert waited[1:] == [0, 0]
