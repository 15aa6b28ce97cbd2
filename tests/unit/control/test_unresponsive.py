"""A slot that does not answer: none of its replicas leads it, and only to delete it helps."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from scheduler import Every, Scheduler
from scheduler.control.reports import Did
from scheduler.control.status import Where
from scheduler.errors import AccessRefused, QueueUnresponsive, Rejected
from scheduler.events import LoopReported
from scheduler.protocol.tokens import LoopId
from scheduler.tasks.loops import loop_of
from tests.faulty import Fault, FaultyBroker, not_allowed
from tests.stage import Stage, new_app, of, program_of

TASK, BONN = LoopId("task"), LoopId("report", "bonn")
ROUND = 15


def an_app() -> tuple[Scheduler, list[int]]:
    app, runs = new_app(supervision_interval=f"{ROUND}s"), list[int]()

    @app.periodic(every="20s")
    async def task() -> None:
        runs.append(1)

    @app.task
    async def report() -> None: ...

    return app, runs


@asynccontextmanager
async def stuck(stage: Stage, loop: LoopId) -> AsyncGenerator[tuple[FaultyBroker, Fault]]:
    """A connection over which the slot of a loop does not answer, until it is deleted."""
    broker, slot = FaultyBroker(stage.server), stage.app.names.hatchery(loop)
    silence = broker.on("get", slot).fails(QueueUnresponsive())
    broker.on("delete", slot).then(silence.cease)
    async with broker:
        yield broker, silence


async def test_supervision_makes_it_anew_and_the_loop_goes_on(stage: Stage) -> None:
    app, runs = an_app()
    await stage.seed(app)
    async with stuck(stage, TASK) as (broker, silence), stage.supervised(over=broker):
        await stage.broker.purge(app.names.hatchery(TASK))  # nobody can see what is in it
        await asyncio.sleep(5 * ROUND)
        assert silence.times == 0
        assert runs
    assert ("task", "stuck") in stage.repairs()


async def test_one_that_answers_again_is_left_alone(stage: Stage) -> None:
    app, runs = an_app()
    await stage.seed(app)
    async with stuck(stage, TASK) as (broker, silence), stage.supervised(over=broker):
        await asyncio.sleep(ROUND + 1)
        await silence.cease()
        await asyncio.sleep(5 * ROUND)
    assert stage.repairs() == []
    assert len(runs) >= 4


async def test_it_is_told_where_nobody_may_make_it_anew(stage: Stage) -> None:
    app, _ = an_app()
    await stage.seed(app)
    broker = FaultyBroker(stage.server)
    broker.on("get", app.names.hatchery(TASK)).fails(QueueUnresponsive())
    broker.on("delete").fails(AccessRefused())
    async with stage.supervised(over=broker):
        await asyncio.sleep(5 * ROUND)
    told = [event.trouble for event in of(LoopReported, stage.events) if event.loop == TASK]
    assert told == ["stuck"]


async def test_an_operator_who_ends_its_loop_does_not_ask_it(stage: Stage) -> None:
    app, _ = an_app()
    await stage.seed(app)
    bonn = loop_of(app.tasks["report"], Every("1h"), {}, "bonn")
    await stage.seeding.start(bonn)
    async with stuck(stage, BONN) as (broker, _):
        program = program_of(app, broker, stage.clock)
        assert (await program.removal.remove(bonn)).did is Did.REMOVED
    assert await stage.broker.depth(app.names.hatchery(BONN)) is None


async def test_an_operator_who_pauses_its_loop_makes_it_anew(stage: Stage) -> None:
    app, _ = an_app()
    await stage.seed(app)
    async with stuck(stage, TASK) as (broker, silence):
        program = program_of(app, broker, stage.clock)
        assert (await program.verbs.pause(app.loops[TASK])).did is Did.PAUSED
        assert silence.times == 0
    assert await stage.where(TASK) is Where.PAUSED


def refusing(stage: Stage, broker: FaultyBroker) -> FaultyBroker:
    """A slot that refuses all, though nothing is in it, until it is deleted."""
    refusal = broker.on("publish", stage.app.names.scheduler, key="loop.task").fails(Rejected())
    broker.on("delete", stage.app.names.hatchery(TASK)).then(refusal.cease)
    return broker


async def test_an_operator_who_pauses_a_loop_whose_slot_refuses_makes_it_anew(stage: Stage) -> None:
    app, runs = an_app()
    await stage.seed(app)
    async with stage.supervised():
        await asyncio.sleep(30)
        async with refusing(stage, FaultyBroker(stage.server)) as broker:
            program = program_of(app, broker, stage.clock)
            assert (await program.verbs.pause(app.loops[TASK])).did is Did.PAUSED
        assert await stage.where(TASK) is Where.PAUSED
        await stage.verbs.resume(app.loops[TASK])
        await asyncio.sleep(45)
        assert (await stage.token(TASK)).seq == len(runs) == 3


async def test_an_operator_who_may_not_make_it_anew_is_told_that_it_refuses(stage: Stage) -> None:
    app, _ = an_app()
    await stage.seed(app)
    async with refusing(stage, not_allowed(stage.server)) as broker:
        program = program_of(app, broker, stage.clock)
        with pytest.raises(Rejected, match="takes no token, though none waits in it"):
            await program.verbs.pause(app.loops[TASK])
    stage.expects_none(TASK)


async def test_what_does_not_answer_is_lost_as_far_as_an_operator_is_told(stage: Stage) -> None:
    app, _ = an_app()
    await stage.seed(app)
    async with stuck(stage, TASK) as (broker, _):
        (status,) = await program_of(app, broker, stage.clock).survey.status(app.loops[TASK])
    assert status.where is Where.LOST
