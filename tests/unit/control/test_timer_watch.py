"""Timers that do not hatch are found by the message at their head."""

import asyncio
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from scheduler import Scheduler
from scheduler.control.timer_watch import IN_TIME
from scheduler.events import TimerStuck
from scheduler.protocol.calls import new_call, task_key
from scheduler.protocol.hatchery import Timer, route
from scheduler.protocol.tokens import LoopId, encode, token_key
from scheduler.timing.durations import SECOND
from tests.faulty import FaultyBroker
from tests.stage import Stage, of, program_of
from tests.sweep import empty

HOUR = route(timedelta(hours=1))
TASK = LoopId("task")


async def with_both(stage: Stage) -> Scheduler:
    @stage.app.periodic(every="10s")
    async def task() -> None: ...

    @stage.app.task
    async def mail() -> None: ...

    await stage.seed()
    return stage.app


async def hold_back(
    stage: Stage, *, due_in: timedelta, came_at: datetime | None = None, losing: bool = False
) -> None:
    """Put a token and a call into the timers of an hour, though they are due at another time.

    Args:
        came_at: when they left another timer.
        losing: take away the token that waits in its own timer.
    """
    names, due_at = stage.app.names, stage.clock.now() + due_in
    token = replace(await stage.token(TASK), due_at=due_at, epoch=0)
    if losing:
        await stage.lose(TASK)
    deaths = {} if came_at is None else {"x-death": [{"reason": "expired", "time": came_at}]}
    put = encode(token, "test")
    put = replace(put, headers={**put.headers, **deaths})
    await stage.publish(put, token_key(TASK, HOUR.key), exchange=names.scheduler)
    call = new_call("test", "mail", {}, message_id="m", sent_at=due_at, due_at=due_at)
    call = replace(call, headers={**call.headers, **HOUR.headers, **deaths})
    await stage.publish(call, task_key("mail"), exchange=names.later)


async def test_a_timer_whose_first_message_is_overdue_is_stuck(stage: Stage) -> None:
    names, watch = (await with_both(stage)).names, stage.program.timer_watch
    hour = Timer(5, 1)
    await hold_back(stage, due_in=timedelta(hours=1))
    assert (await watch.of_tokens(), await watch.of_calls()) == (IN_TIME, IN_TIME)
    await empty(stage.broker, names.timer(hour))
    await empty(stage.broker, names.later_timer(hour))
    await hold_back(stage, due_in=-10 * SECOND)
    tokens, calls = await watch.of_tokens(), await watch.of_calls()
    assert tokens.stuck == {
        names.timer(hour): "Its first message, for the loop task, was due at 11:59:50 UTC."
    }
    assert "for the task 'mail'" in calls.stuck[names.later_timer(hour)]
    assert not tokens.is_draining


@pytest.mark.parametrize("ago", [timedelta(minutes=59), timedelta(days=-(10**6))])
async def test_a_message_may_come_late_to_a_timer(stage: Stage, ago: timedelta) -> None:
    await with_both(stage)
    watch = stage.program.timer_watch
    await hold_back(stage, due_in=-10 * SECOND, came_at=stage.clock.now() - ago)
    assert (await watch.of_tokens(), await watch.of_calls()) == (IN_TIME, IN_TIME)
    await asyncio.sleep(63)
    assert len({**(await watch.of_tokens()).stuck, **(await watch.of_calls()).stuck}) == (
        2 if ago > timedelta(0) else 0
    )


async def test_a_timer_that_hands_on_overdue_messages_is_draining(stage: Stage) -> None:
    app = await with_both(stage)
    for _ in range(2):
        await hold_back(stage, due_in=-10 * SECOND)
        await asyncio.sleep(0.1)
    async with FaultyBroker(stage.server) as broker:
        watch = program_of(app, broker, stage.clock).timer_watch
        looking = asyncio.create_task(watch.of_tokens())
        await asyncio.sleep(0.5)
        taken = await stage.broker.get(app.names.timer(Timer(5, 1)))
        assert taken is not None
        await taken.ack()
        token = replace(await stage.token(TASK), seq=9, due_at=stage.clock.now() - 9 * SECOND)
        await empty(stage.broker, app.names.timer(Timer(5, 1)))
        key = token_key(TASK, HOUR.key)
        await stage.publish(encode(token, "test"), key, exchange=app.names.scheduler)
        found = await looking
    assert found.is_draining
    assert not found.stuck
    await empty(stage.broker, app.names.timer(Timer(5, 1)))


async def test_a_timer_that_does_not_respond_is_stuck(stage: Stage) -> None:
    app = await with_both(stage)
    await hold_back(stage, due_in=timedelta(hours=1))
    timer = app.names.timer(Timer(5, 1))
    async with FaultyBroker(stage.server) as broker:
        broker.on("get", timer).first(lambda _: asyncio.sleep(60))
        found = await program_of(app, broker, stage.clock).timer_watch.of_tokens()
    assert found.stuck == {timer: "It has no leader: it does not respond."}


@pytest.mark.parametrize("is_lost", [True, False])
async def test_supervision_recreates_timers_of_tokens(stage: Stage, is_lost: bool) -> None:
    names = (await with_both(stage)).names
    # A lost loop makes supervision look at the timers of tokens.
    await hold_back(stage, due_in=-10 * SECOND, losing=is_lost)
    async with stage.supervised():
        await asyncio.sleep(60)
    stuck = {event.queue: event.was_recreated for event in of(TimerStuck, stage.events)}
    of_tokens = {names.timer(Timer(5, 1)): True} if is_lost else {}
    assert stuck == {**of_tokens, names.later_timer(Timer(5, 1)): False}
    assert len(of(TimerStuck, stage.events)) == len(stuck)  # each is reported once
    assert bool(await stage.ready(names.timer(Timer(5, 1)))) is not is_lost
