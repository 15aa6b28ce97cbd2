"""Tokens that somebody wrote who may only send: they are parked, and their loops go on."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from scheduler import Context, Scheduler
from scheduler.events import RunSettled, RunStarted
from scheduler.protocol.calls import new_call
from scheduler.protocol.hatchery import NO_WAIT, route
from scheduler.protocol.messages import Message
from scheduler.protocol.tokens import LoopId, encode, token_key
from scheduler.protocol.topology import Binding, Topology
from scheduler.timing.moments import milliseconds_since_epoch
from tests.stage import Stage, new_app, of

LOOP = LoopId("beat")
KEY = token_key(LOOP, NO_WAIT.key)
FAR = timedelta(days=365 * 80)
ONE_SECOND = route(timedelta(seconds=1))
CLAIMS = {
    "scheduler-attempt": 7,
    "scheduler-exchange": "elsewhere",
    "scheduler-key": "order.paid",
    "scheduler-first-failed-at-ms": 1,
    "scheduler-replayed-at-ms": 1,
    "scheduler-parked-reason": "exhausted",
}


def beating() -> Scheduler:
    app = new_app()

    @app.periodic(every="10s")
    async def beat(ctx: Context, city: str = "") -> None: ...

    @app.task(subscribe=[("orders", "#", "topic")])
    async def paid(order: bytes) -> None: ...

    @app.task()
    async def work(n: int) -> None: ...

    return app


async def forged(stage: Stage, **fields: Any) -> Message:
    """A token of the loop's line that is far ahead of it."""
    token = await stage.token(LOOP)
    due = token.due_at + FAR
    ahead = replace(token, seq=1000, scheduled_at=due, due_at=due, **fields)
    return encode(ahead, stage.app.namespace)


async def goes_on(stage: Stage) -> None:
    """The loop has its own token, and its own ticks."""
    token = await stage.token(LOOP)
    assert token.seq < 10
    started = len(of(RunStarted, stage.events))
    await asyncio.sleep(11)
    assert len(of(RunStarted, stage.events)) > started


@pytest.mark.parametrize(
    ("exchange", "fields"),
    [("calls", {}), ("later", {"first": True}), ("delayed", {"args": {"city": 7}})],
)
async def test_a_token_that_came_as_a_call_is_parked_whatever_its_other_keys(
    stage: Stage, exchange: str, fields: dict[str, Any]
) -> None:
    await stage.seed(beating())
    async with stage.processor():
        token = await forged(stage, **fields)
        keys = [KEY, "task.beat", "task.work", f"{ONE_SECOND.key}.{KEY}"]
        headers = {**token.headers, **ONE_SECOND.headers, "CC": keys, "BCC": keys}
        copied = replace(token, headers=headers)
        stage.server.publish(copied, getattr(stage.app.names, exchange), "task.work")
        await asyncio.sleep(15)
        (parked,) = await stage.parked()
        assert (parked.reason, parked.task) == ("undecodable", "work")
        assert "did not arrive as a token" in parked.error
        await goes_on(stage)


@pytest.mark.parametrize("key", [KEY, token_key(LoopId("paid"), NO_WAIT.key)])
async def test_a_token_from_a_subscribed_exchange_is_a_message_like_others(
    stage: Stage, key: str
) -> None:
    await stage.seed(beating())
    async with stage.processor():
        await stage.publish(await forged(stage), key, "orders")
        await asyncio.sleep(1)
        assert [run.loop for run in of(RunStarted, stage.events)] == [LoopId("paid")]
        await goes_on(stage)
    assert not await stage.parked()


async def test_a_call_that_claims_to_be_a_token_pauses_nothing(stage: Stage) -> None:
    await stage.seed(beating())
    async with stage.processor():
        token, now = await forged(stage), stage.clock.now()
        wrong = {"n": "none"}
        call = new_call("test", "work", wrong, message_id="m", sent_at=now, due_at=now)
        both = replace(call, headers={**token.headers, **call.headers})
        await stage.publish(both, "task.work", stage.app.names.calls)
        await asyncio.sleep(1)
        (parked,) = await stage.parked()
        assert parked.reason == "invalid-arguments"
        await goes_on(stage)


async def test_a_token_of_another_key_or_queue_or_of_the_future_is_parked(stage: Stage) -> None:
    await stage.seed(beating())
    names, future = stage.app.names, stage.clock.now() + timedelta(hours=1)
    astray = Binding(names.processor, names.processor_queue("work"), KEY)
    async with stage.processor():
        await stage.publish(await forged(stage), f"{KEY}.other")
        await stage.publish(await forged(stage, epoch=milliseconds_since_epoch(future)), KEY)
        await stage.broker.declare(Topology(bindings=(astray,)))
        await stage.publish(await forged(stage, epoch=1), KEY)  # void for its own loop
        await asyncio.sleep(1)
        parked = await stage.parked()
        assert {each.reason for each in parked} == {"undecodable"}
        told = f"arrived by '{KEY}.other'", "lies in the future", f"arrived by '{KEY}' to 'work'"
        for said, each in zip(told, parked, strict=True):
            assert said in each.error
        await goes_on(stage)


@pytest.mark.parametrize(("exchange", "key"), [("later", "task.paid"), ("orders", "retry.paid")])
async def test_foreign_headers_cannot_claim_facts_of_processors(
    stage: Stage, exchange: str, key: str
) -> None:
    await stage.seed(beating())
    said = {**CLAIMS, **ONE_SECOND.headers, "mine": 1}
    stage.server.publish(Message(b"x", said), getattr(stage.app.names, exchange, exchange), key)
    await stage.work(2)
    (run,) = of(RunStarted, stage.events)
    assert (run.loop, run.attempt) == (LoopId("paid"), 1)
    assert run.headers["mine"] == 1
    assert not CLAIMS.keys() & run.headers.keys()


async def test_calls_that_come_due_while_their_queue_is_deleted_run_once_it_is_back(
    stage: Stage,
) -> None:
    work = stage.task("work")
    await stage.seed()
    async with stage.supervised():
        await asyncio.sleep(1)
        sent = [await work.send_later("3s") for _ in range(5)]
        await stage.broker.delete(stage.app.names.processor_queue("work"))
        await asyncio.sleep(60)
    settled = [run.message_id for run in of(RunSettled, stage.events) if run.loop.task == "work"]
    assert sorted(settled) == sorted(sent)
    assert await stage.parked() == []


async def test_calls_that_outlive_their_task_are_parked(stage: Stage) -> None:
    await stage.seed(beating())
    await stage.app.senders["work"].send_later("1s", 1)
    await stage.broker.delete(stage.app.names.processor_queue("work"))
    await asyncio.sleep(20)
    (parked,) = await stage.parked()
    assert (parked.reason, parked.task) == ("unknown-task", "work")
