"""Loops that are watched: what is told of them, and that their slots are left alone meanwhile."""

import asyncio
from datetime import timedelta

import pytest

from scheduler import Context, Scheduler
from scheduler.control.status import Status, Where
from scheduler.control.watching import LOOK_EVERY
from scheduler.protocol.tokens import LoopId
from tests.faulty import FaultyBroker
from tests.stage import START, Stage, new_app, program_of

TASK = LoopId("task")


def looping(every: str = "1m", takes: float = 0) -> Scheduler:
    app = new_app(supervision_interval="1h")

    @app.periodic(every=every)
    async def task(ctx: Context) -> None:
        await asyncio.sleep(takes)

    return app


async def watched(stage: Stage) -> Status:
    (found,) = await stage.program.watch.status()
    return found


async def test_what_a_loop_has_come_to_is_told_between_two_looks(stage: Stage) -> None:
    await stage.seed(looping("10s", takes=3))
    told = list[tuple[Where, int | None]]()
    async with stage.supervised():
        for _ in range(8):
            found = await watched(stage)
            told.append((found.where, found.seq))
            await asyncio.sleep(3)
    waiting, running = Where.WAITING, Where.RUNNING
    assert told == [
        *[(waiting, 0)] * 4,
        (running, 0),
        *[(waiting, 1)] * 3,
    ]


async def test_slots_are_looked_into_at_first_and_seldom_after_that(stage: Stage) -> None:
    await stage.seed(looping("1s"))
    async with FaultyBroker(stage.server) as broker, stage.supervised():
        watch = program_of(stage.app, broker, stage.clock).watch
        looks = broker.on("get", stage.app.names.hatchery(TASK)).met
        for second in range(61):
            (found,) = await watch.status()
            assert found.seq in (second, second - 1)
            await asyncio.sleep(1)
    assert len(looks) == 1 + timedelta(minutes=1) // LOOK_EVERY


async def test_a_loop_that_nobody_takes_is_ready(stage: Stage) -> None:
    await stage.seed(looping())
    assert (await watched(stage)).where is Where.WAITING
    await asyncio.sleep(25)
    assert (await watched(stage)).where is Where.WAITING
    await asyncio.sleep(29)
    assert (await watched(stage)).where is Where.WAITING
    await asyncio.sleep(10)
    found = await watched(stage)
    assert (found.where, found.due_at) == (Where.READY, START + timedelta(minutes=1))


async def test_what_operators_do_is_seen_at_once(stage: Stage) -> None:
    await stage.seed(looping())
    assert (await watched(stage)).where is Where.WAITING
    await stage.verbs.pause(stage.app.loop("task"), "stocktaking")
    await asyncio.sleep(1)
    paused = await watched(stage)
    assert (paused.where, paused.reason, paused.due_at) == (Where.PAUSED, "stocktaking", None)
    await stage.verbs.resume(stage.app.loop("task"))
    await asyncio.sleep(1)
    resumed = await watched(stage)
    assert (resumed.where, resumed.epoch > paused.epoch) == (Where.WAITING, True)


@pytest.mark.parametrize("after", [1, 31])
async def test_a_loop_that_is_lost_is_told_at_the_next_look(stage: Stage, after: float) -> None:
    await stage.seed(looping())
    assert (await watched(stage)).where is Where.WAITING
    stage.expects_none(TASK)
    await stage.lose(TASK)
    await asyncio.sleep(after)
    is_lost = (await watched(stage)).where is Where.LOST
    assert is_lost == (timedelta(seconds=after) >= LOOK_EVERY)


async def test_before_anything_is_seeded_nothing_is_there(stage: Stage) -> None:
    app = looping()
    watch = program_of(app, stage.broker, stage.clock).watch
    for _ in range(2):
        (found,) = await watch.status()
        assert found.where is Where.UNSEEDED
    await stage.seed(app)
    await asyncio.sleep(LOOK_EVERY.total_seconds())
    (found,) = await watch.status()
    assert found.where is Where.WAITING


async def test_keyed_loops_come_and_go(stage: Stage) -> None:
    app = new_app()

    @app.task()
    async def report() -> None: ...

    await stage.seed(app)
    assert await stage.program.watch.status() == []
    await report.start("bonn", every="1h")
    assert [str(each.loop) for each in await stage.program.watch.status()] == ["report.bonn"]
    await report.stop("bonn")
    assert await stage.program.watch.status() == []
