"""Schedules that somebody has set in place of the code's: they hold until they are cleared."""

import asyncio
from datetime import timedelta

import pytest

from scheduler import Context, Cron, Every, Scheduler
from scheduler.control.keyed import Keyed
from scheduler.control.reports import Effect
from scheduler.errors import UsageError
from scheduler.tasks.loops import Override
from scheduler.timing.schedules import Recurring, Schedule
from tests.stage import START, Stage, new_app, program_of
from tests.unit.control.conftest import TASK, Deed, the_loop

CODE, SET = Every("30s"), Every("5m")


def coded(schedule: Recurring = CODE, n: int = 1, *, also: str = "") -> Scheduler:
    """A release of the code, in which the loop has this schedule and these arguments."""
    app = new_app()

    @app.periodic(schedule=schedule, args={"n": n})
    async def task(ctx: Context, n: int) -> None: ...

    async def nothing() -> None: ...

    if also:
        app.periodic(every="1h", name=also)(nothing)
    return app


async def overridden(stage: Stage) -> None:
    await stage.seed(coded())
    await asyncio.sleep(10)
    report = await stage.verbs.set_schedule(the_loop(stage), SET, by="anna@host")
    assert report.did is Effect.RESCHEDULED
    assert report.loop.of_code == CODE


async def seed(stage: Stage, app: Scheduler) -> None:
    reports = await program_of(app, stage.broker, stage.clock).seeding.seed()
    assert [report.did for report in reports if report.loop.id == TASK] == [Effect.UNCHANGED]


async def holds(stage: Stage, schedule: Schedule = SET) -> bool:
    """Whether the roster, the token and the status agree that this schedule was set by Anna."""
    listed = (await stage.listing())[TASK]
    (status,) = [each for each in await stage.survey.status() if each.loop.id == TASK]
    anna = Override("anna@host", START + timedelta(seconds=10))
    schedules = {listed.schedule, status.loop.schedule, (await stage.token(TASK)).schedule}
    return {listed.override, status.loop.override} == {anna} and schedules == {schedule}


async def test_a_loop_runs_by_its_override_until_that_is_cleared(stage: Stage) -> None:
    await overridden(stage)
    async with stage.processor():
        await asyncio.sleep(650)
        cleared = await stage.verbs.clear_schedule(the_loop(stage))
        assert (cleared.did, cleared.loop.schedule) == (Effect.RESCHEDULED, CODE)
        await asyncio.sleep(61)
    assert stage.starts() == [310.0, 610.0, 690.0, 720.0]
    assert (await stage.listing())[TASK].override is None
    assert (await stage.verbs.clear_schedule(the_loop(stage))).did is Effect.NOT_SET


async def pause_and_resume(stage: Stage) -> None:
    await stage.verbs.pause(the_loop(stage))
    await stage.verbs.resume(the_loop(stage))


async def trigger(stage: Stage) -> None:
    await stage.verbs.trigger(the_loop(stage))


async def lose_and_repair(stage: Stage) -> None:
    await stage.lose(TASK)
    await stage.put_again(TASK)


async def seed_another_release(stage: Stage) -> None:
    await seed(stage, coded(Cron("0 9 * * *"), also="other"))


async def lose_the_roster_and_adopt(stage: Stage) -> None:
    await stage.program.roster.read()
    await stage.broker.delete(stage.app.names.roster)
    await stage.seeding.adopt()


async def have_supervision_note(stage: Stage) -> None:
    async with stage.supervised():
        await asyncio.sleep(700)


async def set_it_again(stage: Stage) -> None:
    again = await stage.verbs.set_schedule(the_loop(stage), SET, by="bert@host")
    assert again.did is Effect.UNCHANGED


@pytest.mark.parametrize(
    "deed",
    [
        *(pause_and_resume, trigger, lose_and_repair, seed_another_release),
        *(lose_the_roster_and_adopt, have_supervision_note, set_it_again),
    ],
)
async def test_an_override_stays_whatever_is_done_to_its_loop(stage: Stage, deed: Deed) -> None:
    await overridden(stage)
    await deed(stage)
    async with stage.processor():  # what is put again is run at once
        await asyncio.sleep(1)
    assert await holds(stage)


async def test_new_arguments_of_the_code_take_effect_under_an_override(stage: Stage) -> None:
    await overridden(stage)
    newer = program_of(coded(n=2), stage.broker, stage.clock)
    plan = [(report.did, report.loop.schedule) for report in await newer.seeding.plan()]
    did = [(report.did, report.loop.schedule) for report in await newer.seeding.seed()]
    assert plan == did == [(Effect.RESCHEDULED, SET)]
    assert await holds(stage)
    assert (await stage.token(TASK)).args == {"n": 2}


async def test_a_keyed_loop_gets_another_schedule_for_good_and_a_one_off_none(stage: Stage) -> None:
    await stage.seed(app := coded())
    keyed = Keyed(app.tasks["task"], app.operations)
    await keyed.start("a", every="1m", args={"n": 7})
    loop = await stage.loops.find("task.a")
    assert (await stage.verbs.set_schedule(loop, SET, by="anna@host")).did is Effect.RESCHEDULED
    (found,) = await keyed.list()
    assert (found.schedule, found.args) == (SET, {"n": 7})
    assert (await stage.listing())[loop.id].override is None
    assert (await stage.verbs.set_schedule(loop, SET, by="anna@host")).did is Effect.UNCHANGED
    with pytest.raises(UsageError, match=r"task\.a is not in the code, .* Nothing was changed"):
        await stage.verbs.clear_schedule(loop)
    await keyed.once("order-7", after="1h", args={"n": 7})
    one_off = await stage.loops.find("task.order-7")
    with pytest.raises(UsageError, match=r"task\.order-7 is a named one-off.* Nothing was changed"):
        await stage.verbs.set_schedule(one_off, SET, by="anna@host")
    assert (await stage.token(one_off.id)).schedule == one_off.schedule


async def test_overriding_a_loop_that_this_code_does_not_have_is_refused(stage: Stage) -> None:
    await overridden(stage)
    without = program_of(new_app(), stage.broker, stage.clock)
    orphan = await without.loops.find("task")
    assert orphan.override is not None
    assert orphan.of_code is None
    with pytest.raises(UsageError, match=r"not in this code.* Nothing was changed"):
        await without.verbs.set_schedule(orphan, CODE, by="anna@host")
    with pytest.raises(UsageError, match="is not in the code"):
        await without.verbs.clear_schedule(orphan)
    assert await holds(stage)
