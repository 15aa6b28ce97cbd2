"""What was seeded before there were epochs keeps running, and is taken over when it changes."""

import asyncio
import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from scheduler import Context, Every, Scheduler
from scheduler.control.reports import Did
from scheduler.events import RunStarted
from scheduler.protocol.messages import Message
from scheduler.protocol.tokens import LoopId, State, Token, encode
from scheduler.protocol.topology import routing_key
from scheduler.queues.roster import ENTRY_TYPE
from scheduler.tasks.tasks import SUPERVISION
from scheduler.timing.schedules import to_wire
from tests.stage import START, Stage, new_app, of, program_of, seconds_of

TASK = LoopId("task")
OLD = Every("1m")


def looping(period: str = "1m", takes: float = 0) -> Scheduler:
    """An app with a loop that counts its runs."""
    app = new_app()

    @app.periodic(every=period)
    async def task(ctx: Context) -> None:
        ctx.carry(ctx.carried + 1)
        await asyncio.sleep(takes)

    return app


def before_epochs(token: Token, **changed: str) -> Message:
    """A token as it travelled then."""
    due_in = max(token.due_at - START, timedelta(0))
    waits = token.state is not State.PAUSED
    message = encode(token, "test", expiration=due_in if waits else None)
    kept = {
        name: value
        for name, value in message.headers.items()
        if name not in ("scheduler-epoch", "scheduler-life")
    }
    generation = {"scheduler-generation": "001780304400000-0123456789ab"}
    return replace(message, headers={**kept, **generation, **changed})


def waiting(seq: int = 4, due_in: float = 30, **more: Any) -> Token:
    due_at = START + timedelta(seconds=due_in)
    return Token(TASK, OLD, due_at, due_at, seq=seq, carry=seq, **more)


async def enter(stage: Stage, app: Scheduler, loop: LoopId, **entry: Any) -> None:
    """Append an entry to the roster, as it was then."""
    body = json.dumps({"task": loop.task, "key": loop.key, "at_ms": 1, **entry}).encode()
    message = Message(body, type=ENTRY_TYPE)
    await stage.publish(message, app.names.roster, app.names.control)


async def as_it_was(stage: Stage, app: Scheduler, *tokens: Message) -> None:
    """Leave in the broker what was there of an app before there were epochs.

    Args:
        tokens: what was put of its loop, one after the other; the last one waits.
    """
    names, topology = app.names, app.topology()
    there = {queue.name for queue in topology.queues} - {names.presence}
    await stage.broker.declare(topology.only(there))
    for loop, schedule in (TASK, OLD), (SUPERVISION, app.supervision.schedule):
        await enter(stage, app, loop, did="added", schedule=to_wire(schedule), args={})
    round_at = START + app.settings.supervision_interval
    supervision = Token(SUPERVISION, app.supervision.schedule, round_at, round_at)
    for token in before_epochs(supervision), *tokens:
        loop = LoopId(token.headers["scheduler-task"])
        await stage.broker.purge(names.hatchery(loop))
        await stage.publish(token, routing_key(loop), names.scheduler)


def runs(stage: Stage) -> list[tuple[float, int | None]]:
    """When each run of the loop began, and which tick of it that was."""
    events = [event for event in of(RunStarted, stage.events) if event.loop == TASK]
    return [(seconds_of([event.started_at])[0], event.seq) for event in events]


async def seed(stage: Stage, app: Scheduler) -> Did:
    """Seed another version of the app."""
    app.events.listen(stage.events.append)
    (report,) = await program_of(app, stage.broker, stage.clock).seeding.seed()
    return report.did


async def test_it_keeps_running(stage: Stage) -> None:
    await as_it_was(stage, app := looping(), before_epochs(waiting()))
    await stage.seed(app)
    async with stage.supervised():
        await asyncio.sleep(200)
    assert runs(stage) == [(30, 4), (90, 5), (150, 6)]
    token = await stage.token(TASK)
    assert (token.epoch, token.carry, stage.repairs()) == (0, 7, [])


async def test_changed_while_it_waits_it_goes_on_from_there(stage: Stage) -> None:
    await as_it_was(stage, looping(), before_epochs(waiting()))
    await stage.seed(app := looping("10s"))
    assert await stage.history("task") == ["rescheduled"]
    async with stage.supervised(app=app):
        await asyncio.sleep(35)
    assert [(round(at, 1), seq) for at, seq in runs(stage)] == [(10, 4), (20, 5), (30, 6)]
    assert (await stage.token(TASK)).carry == 7


async def test_changed_while_it_is_due_it_runs_once(stage: Stage) -> None:
    await as_it_was(stage, looping(), before_epochs(waiting()))
    await asyncio.sleep(40)
    await stage.seed(app := looping("10s"))
    async with stage.supervised(app=app):
        await asyncio.sleep(15)
    assert [seq for _, seq in runs(stage)] == [4, 5]
    assert runs(stage)[0][0] < 41
    assert (await stage.token(TASK)).carry == 6


async def test_changed_while_it_runs_it_goes_on_when_that_run_has_ended(stage: Stage) -> None:
    await as_it_was(stage, app := looping(takes=15), before_epochs(waiting()))
    await stage.seed(app)
    async with stage.supervised(), stage.supervised():
        await asyncio.sleep(40)
        assert await seed(stage, looping("10s", takes=15)) is Did.RESCHEDULED
        await asyncio.sleep(30)
    assert runs(stage) == [(30, 4), (50, 5)]
    token = await stage.token(TASK)
    assert (token.schedule, token.carry) == (Every("10s"), 6)


@pytest.mark.parametrize("due_in", [0, 30])
async def test_changed_often_it_goes_on_in_one_line(stage: Stage, due_in: float) -> None:
    await as_it_was(stage, app := looping(), before_epochs(waiting(due_in=due_in)))
    await stage.seed(app)
    for period in "10s", "1m", "10s":
        assert await seed(stage, looping(period)) is Did.RESCHEDULED
    async with stage.supervised():
        await asyncio.sleep(12)
    assert [seq for _, seq in runs(stage)] == ([4] if due_in else [4, 5])


async def test_a_pause_takes_effect_though_it_is_due(stage: Stage) -> None:
    await as_it_was(stage, app := looping(), before_epochs(waiting(due_in=0)))
    await stage.seed(app)
    await stage.verbs.pause(app.loop("task"))
    async with stage.supervised():
        await asyncio.sleep(100)
        assert runs(stage) == []
        await stage.verbs.resume(app.loop("task"), at_once=True)
        await asyncio.sleep(1)
    assert [seq for _, seq in runs(stage)] == [4]


async def test_paused_it_stays_so_until_it_is_resumed(stage: Stage) -> None:
    held = before_epochs(waiting(state=State.PAUSED, reason="stocktaking"))
    await as_it_was(stage, app := looping(), held)
    await stage.seed(app)
    async with stage.supervised():
        await asyncio.sleep(100)
        assert runs(stage) == []
        assert (await stage.verbs.resume(app.loop("task"))).did is Did.RESUMED
        await asyncio.sleep(65)
    assert [seq for _, seq in runs(stage)] == [4]


async def test_paused_it_stays_so_though_it_is_changed(stage: Stage) -> None:
    held = before_epochs(waiting(state=State.PAUSED, reason="stocktaking"))
    await as_it_was(stage, looping(), held)
    await stage.seed(looping("10s"))
    for _ in range(2):
        token = await stage.token(TASK)
        assert (token.state, token.reason, token.seq) == (State.PAUSED, "stocktaking", 4)
        async with stage.supervised():
            await asyncio.sleep(100)
    assert runs(stage) == []


@pytest.mark.parametrize(
    ("due_in", "mended_by"),
    [(600, []), (0, [("task", "lost")])],
    ids=["it waits", "it is due"],
)
async def test_what_stood_in_for_a_run_is_parked_and_the_loop_goes_on(
    stage: Stage, due_in: float, mended_by: list[tuple[str, str]]
) -> None:
    guard = before_epochs(waiting(due_in=due_in), **{"scheduler-state": "guard"})
    await as_it_was(stage, app := looping(), before_epochs(waiting()), guard)
    await stage.seed(app)
    async with stage.supervised():
        await asyncio.sleep(120)
    assert [seq for _, seq in runs(stage)] == [4, 5]
    assert [each.reason for each in await stage.parked()] == ["undecodable"]
    assert stage.repairs() == mended_by


@pytest.mark.parametrize("is_removed", [False, True])
async def test_removed_it_is_gone(stage: Stage, is_removed: bool) -> None:
    await as_it_was(stage, app := looping())
    await enter(stage, app, LoopId("other"), schedule=to_wire(OLD), did="added")
    if is_removed:
        await enter(stage, app, LoopId("other"), did="removed")
    await stage.seed(app)
    assert (LoopId("other") in {each.loop for each in (await stage.listing()).there}) is (
        not is_removed
    )
    stage.expects_none(LoopId("other"))
