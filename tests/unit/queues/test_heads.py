"""What is noted of the message at the head of an ordered queue."""

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from scheduler import Scheduler
from scheduler.brokers.contract import DEFAULT_TIMEOUT, Delivery
from scheduler.brokers.memory.broker import MemoryBroker
from scheduler.protocol.messages import Message
from scheduler.protocol.topology import QueueType
from scheduler.queues.heads import LOOK_PAUSE, LOOKS, UNNOTED, Head, Heads
from tests.stage import START, Stage, new_app

SENT = Message(b"body", headers={"h": 1}, message_id="m-1", correlation_id="c", type="t")
NOTED = Head(2, 1, START + timedelta(seconds=5), START)


def booking(queue_type: QueueType = "quorum") -> Scheduler:
    app = new_app(queue_type)

    @app.task(ordered=True)
    async def book() -> None: ...

    return app


async def heads_on(stage: Stage, app: Scheduler | None = None) -> Heads:
    await stage.seed(app or booking())
    return Heads(stage.broker, stage.app.names)


async def test_the_last_note_is_read_again_and_again(stage: Stage, queue_type: QueueType) -> None:
    heads = await heads_on(stage, booking(queue_type))
    assert await heads.of("book", SENT) == UNNOTED
    await heads.note("book", SENT, Head(1), DEFAULT_TIMEOUT)
    await heads.note("book", SENT, NOTED, DEFAULT_TIMEOUT)
    for _ in range(3):
        assert await heads.of("book", SENT) == NOTED
    depth = await stage.broker.depth(stage.app.names.head("book"))
    assert depth is not None
    assert depth.ready == 1


@pytest.mark.parametrize(
    "other",
    [
        replace(SENT, body=b"other"),
        replace(SENT, headers={"h": 2}),
        replace(SENT, message_id="m-2"),
        replace(SENT, correlation_id=None),
        replace(SENT, type=None),
        replace(SENT, timestamp=START),
    ],
)
async def test_a_note_is_of_one_message(stage: Stage, other: Message) -> None:
    heads = await heads_on(stage)
    await heads.note("book", SENT, NOTED, DEFAULT_TIMEOUT)
    assert await heads.of("book", other) == UNNOTED


async def test_what_the_broker_adds_does_not_make_it_another_message(stage: Stage) -> None:
    heads = await heads_on(stage)
    await heads.note("book", SENT, NOTED, DEFAULT_TIMEOUT)
    again = replace(SENT, headers={"x-delivery-count": 3, **SENT.headers})
    assert await heads.of("book", again) == NOTED


async def test_what_is_forgotten_is_unnoted(stage: Stage) -> None:
    heads = await heads_on(stage)
    await heads.note("book", SENT, NOTED, DEFAULT_TIMEOUT)
    await heads.forget("book")
    assert await heads.of("book", SENT) == UNNOTED


async def test_a_note_that_cannot_be_read_is_none(stage: Stage) -> None:
    heads = await heads_on(stage)
    names = stage.app.names
    for note in Message(b"x"), Message(headers={"scheduler-head-of": 1, "scheduler-begun": "x"}):
        await stage.broker.publish(note, exchange=names.control, routing_key=names.head("book"))
        assert await heads.of("book", SENT) == UNNOTED


async def test_before_the_next_seed_there_is_no_place_for_notes(stage: Stage) -> None:
    heads = await heads_on(stage)
    await stage.broker.delete(stage.app.names.head("book"))
    assert await heads.of("book", SENT) == UNNOTED


class SlowToTakeBack(MemoryBroker):
    """A broker to which it takes a moment to put back what is requeued, as it does to RabbitMQ."""

    async def get(self, queue: str) -> Delivery | None:
        delivery = await super().get(queue)
        if delivery is None:
            return None
        requeue = delivery._requeue  # pyright: ignore[reportPrivateUsage]

        async def later() -> None:
            asyncio.get_running_loop().call_later(0.05, lambda: asyncio.ensure_future(requeue()))

        return replace(delivery, _requeue=later)


async def test_who_has_read_a_note_has_put_it_back(stage: Stage) -> None:
    await heads_on(stage)
    async with SlowToTakeBack(stage.server) as broker:
        heads = Heads(broker, stage.app.names)
        await heads.note("book", SENT, NOTED, DEFAULT_TIMEOUT)
        assert await heads.of("book", SENT) == NOTED
        depth = await broker.depth(stage.app.names.head("book"))
        assert depth is not None
        assert depth.ready == 1


async def test_two_who_read_side_by_side_do_not_lose_it(stage: Stage) -> None:
    heads = await heads_on(stage)
    await heads.note("book", SENT, NOTED, DEFAULT_TIMEOUT)
    async with asyncio.TaskGroup() as group:
        for _ in range(5):
            group.create_task(heads.of("book", SENT))
    assert await heads.of("book", SENT) == NOTED


async def test_a_note_comes_back_from_who_died_while_it_read_it(stage: Stage) -> None:
    heads = await heads_on(stage)
    await heads.note("book", SENT, NOTED, DEFAULT_TIMEOUT)
    async with MemoryBroker(stage.server) as dying:
        assert await dying.get(stage.app.names.head("book"))
        asyncio.get_running_loop().call_later(0.05, stage.server.disconnect_all)
        assert await heads.of("book", SENT) == NOTED


async def test_that_nothing_is_noted_is_looked_for_once(
    stage: Stage, queue_type: QueueType
) -> None:
    heads = await heads_on(stage, booking(queue_type))
    loop = asyncio.get_running_loop()
    waited: list[float] = []
    for _ in range(3):
        began = loop.time()
        assert await heads.of("book", SENT) == UNNOTED
        waited.append(loop.time() - began)
    assert waited[0] == pytest.approx(LOOKS * LOOK_PAUSE)
    assert waited[1:] == [0, 0]
