"""What comes before its time waits for it in hand: not for long, and not as a run."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from logging import DEBUG, WARNING

import pytest

from scheduler import Scheduler
from scheduler.events import HatchedEarly, ProcessorStopping, RunStarted, TokenSuperseded
from scheduler.processor.recognition import VOID
from scheduler.protocol.calls import new_call, task_key
from scheduler.protocol.hatchery import NO_WAIT, route, timers
from scheduler.protocol.tokens import LoopId, encode, token_key
from scheduler.protocol.topology import Queue
from scheduler.queues.timers import SHORTEST_LEAD_MS
from scheduler.timing.durations import MILLISECOND
from tests.stage import START, Stage, new_app, of

TASK = LoopId("task")
IN_HAND = 59.91  # seconds after its start, when the token of a loop of a minute waits for its time


def looping(every: str = "1m", longest_lead_ms: int = 200) -> Scheduler:
    app = new_app(longest_lead=longest_lead_ms * MILLISECOND)

    @app.periodic(every=every, mode="fixed_rate")
    async def task() -> None: ...

    return app


async def test_a_stopping_processor_requeues_held_tokens(stage: Stage) -> None:
    await stage.seed(looping())
    async with stage.processor():
        await asyncio.sleep(IN_HAND)
        assert not await stage.waiting()
    assert [stopping.running for stopping in of(ProcessorStopping, stage.events)] == [0]
    assert not stage.starts()
    await stage.work(1)
    assert stage.starts() == [pytest.approx(60, abs=0.2)]


async def test_a_new_epoch_voids_a_held_token(stage: Stage) -> None:
    await stage.seed(looping())
    async with stage.processor():
        await asyncio.sleep(IN_HAND)
        await stage.seed(looping(every="7m"))
        await asyncio.sleep(60)
    assert not stage.starts()
    assert [void.reason for void in of(TokenSuperseded, stage.events)] == [VOID]


async def test_without_a_lead_tokens_leave_their_timers_when_due(stage: Stage) -> None:
    await stage.seed(looping("1200ms", longest_lead_ms=0))
    await stage.work(10)
    runs = of(RunStarted, stage.events)
    assert {run.lead for run in runs} == {timedelta(milliseconds=50)}  # of what is left of the wait
    assert {run.late for run in runs} == {timedelta(0)}


async def test_runs_start_on_time_and_the_lead_is_learned(stage: Stage) -> None:
    await stage.seed(looping(every="1270ms"))
    await stage.work(200)
    runs = of(RunStarted, stage.events)
    assert {(run.late, run.start_delay) for run in runs} == {(timedelta(0), timedelta(0))}
    leads = [run.lead for run in runs]
    assert leads[1] == timedelta(milliseconds=120)  # and what its timers leave over
    assert leads == sorted(leads, reverse=True)
    assert leads[-1] == SHORTEST_LEAD_MS * MILLISECOND  # on this broker it takes no time


@pytest.mark.parametrize("came_by", ["rerouted", "processor"])
async def test_a_token_that_arrives_early_waits_until_due(stage: Stage, came_by: str) -> None:
    await stage.seed(app := looping(every="1h"))
    token = await stage.token(TASK)
    await stage.lose(TASK)
    exchange = getattr(app.names, came_by)
    await stage.publish(encode(token, "test"), token_key(TASK, NO_WAIT.key), exchange)
    await stage.work(3700)
    assert stage.starts() == [pytest.approx(3600, abs=0.2)]
    (early,) = of(HatchedEarly, stage.events)
    assert early.reason == ("unrouted" if came_by == "rerouted" else "early")
    assert early.early == pytest.approx(timedelta(hours=1), abs=timedelta(seconds=1))


@pytest.mark.parametrize("came_after", [timedelta(seconds=30), timedelta(seconds=599)])
async def test_a_call_that_arrives_early_waits_until_due(
    stage: Stage, came_after: timedelta
) -> None:
    stage.task("remind")
    await stage.seed()
    due_at = START + timedelta(minutes=10)
    sent = new_call("test", "remind", {}, message_id="1", sent_at=START, due_at=due_at)
    forged = [{"reason": "made up", "queue": "by its sender"}]
    sent = replace(sent, headers={**sent.headers, "x-death": forged})
    async with stage.processor():
        await asyncio.sleep(came_after.total_seconds())
        await stage.publish(sent, task_key("remind"), stage.app.names.delayed)
        await asyncio.sleep(700)
    assert stage.starts() == [600]
    early = [(each.reason, each.queue) for each in of(HatchedEarly, stage.events)]
    assert early == [("early", "")] * (came_after < timedelta(seconds=598))


async def test_tokens_that_expire_at_once_circulate_once_a_second(stage: Stage) -> None:
    """As with a policy of message-ttl or max-length for all queues."""
    await stage.seed(app := looping(every="1m"))
    names = [app.names.timer(timer) for timer in timers()]
    tokens = [await stage.token(each) for each in (TASK, app.supervision.id)]
    for name in names:
        await stage.broker.delete(name)
    wanted = app.topology().only(names)
    queues = tuple(
        Queue(each.name, {**each.arguments, "x-message-ttl": 10}) for each in wanted.queues
    )
    await stage.broker.declare(replace(wanted, queues=queues))
    for token in tokens:
        way = token_key(token.loop, route(timedelta(minutes=1)).key)
        await stage.publish(encode(token, "test"), way, app.names.scheduler)
    await stage.work(62)
    assert stage.starts()[0] == pytest.approx(60, abs=0.2)
    early = [each for each in of(HatchedEarly, stage.events) if each.loop.task == "task"]
    assert {each.reason for each in early} == {"expired"}
    assert 50 < len(early) <= 65
    assert [each.line[0] for each in early] == [WARNING, *[DEBUG] * (len(early) - 1)]
