"""The operator's verbs: what each does to a loop, and that the journal tells of it."""

import asyncio
import getpass
from collections import Counter
from datetime import timedelta

import pytest

from scheduler import Context, Cron, Every
from scheduler.control.loops import Where
from scheduler.control.reports import Effect, operator_here, user_here
from scheduler.control.verbs import PAUSED_BY_OPERATOR
from scheduler.errors import InvalidArguments, Overtaken, QueueNotFound, UnknownLoop, UsageError
from scheduler.events import CensusTaken, LoopSeeded, RunStarted
from scheduler.protocol.epochs import LoopState
from scheduler.queues.entries import ENTRY_TYPE
from scheduler.queues.roll_call import QUESTION
from scheduler.tasks.tasks import SUPERVISION
from tests.faulty import Call, FaultyBroker
from tests.stage import START, Stage, looping, new_app, of, program_of, seconds_of
from tests.unit.control.conftest import (
    TASK,
    Deed,
    delete,
    delete_roster,
    lose,
    nothing,
    pause,
    the_loop,
)

HOUR = 3600.0


# Pause, resume, trigger


async def test_a_program_that_pauses_several_loops_takes_none_back(stage: Stage) -> None:
    app = looping("a", "b", every="1h")
    await stage.seed(app)
    a, b = app.loop("a"), app.loop("b")
    async with stage.processor():
        await asyncio.sleep(HOUR + 60)
        await stage.verbs.pause(a)
        await stage.verbs.resume(a)
        await asyncio.sleep(HOUR + 600)
        await stage.verbs.pause(b)
        await asyncio.sleep(600)
        await stage.verbs.pause(a)
        await stage.verbs.resume(a, at_once=True)
        await asyncio.sleep(60)
    runs = [run for run in of(RunStarted, stage.events) if run.loop == a.id]
    assert [run.seq for run in runs] == [0, 1, 2]


async def test_a_pause_keeps_progress_that_the_journal_has_forgotten(stage: Stage) -> None:
    await stage.seed(looping())
    async with stage.supervised():
        await asyncio.sleep(HOUR + 60)
        await stage.verbs.pause(the_loop(stage))  # this program has heard of one run
        await stage.verbs.resume(the_loop(stage))
        await asyncio.sleep(2.5 * HOUR)
        await stage.broker.delete(stage.app.names.journal)
        await stage.program.installation.declare_all()
        (status,) = await stage.program.survey.status(the_loop(stage))
        assert status.where is Where.WAITING
        await stage.verbs.pause(the_loop(stage))
        await stage.verbs.resume(the_loop(stage), at_once=True)
        await asyncio.sleep(60)
    runs = [run.seq for run in of(RunStarted, stage.events) if run.loop == TASK]
    assert runs == list(range(len(runs)))
    assert len(runs) > 3


async def test_a_pause_keeps_the_loop_from_running_until_it_is_resumed(stage: Stage) -> None:
    app = looping(every="1m")
    await stage.seed(app)
    async with stage.processor():
        await asyncio.sleep(70)
        assert (await stage.verbs.pause(the_loop(stage), "stocktaking")).did is Effect.PAUSED
        await asyncio.sleep(1)
        report = await stage.verbs.pause(the_loop(stage), "another reason")
        assert (report.did, report.is_paused) == (Effect.UNCHANGED, True)
        assert (await stage.listing())[TASK].reason == "stocktaking"
        assert (await stage.verbs.trigger(the_loop(stage))).did is Effect.IS_PAUSED
        await asyncio.sleep(599)
        report = await stage.verbs.resume(the_loop(stage))
        assert report.did is Effect.RESUMED
        assert report.due_at is not None
        assert seconds_of([report.due_at]) == [730]
        assert (await stage.verbs.resume(the_loop(stage))).did is Effect.NOT_PAUSED
        await asyncio.sleep(70)
    assert stage.starts() == [60.0, 730]
    assert await stage.history("task") == [
        *("seeded", "succeeded", "paused", "paused", "resumed", "succeeded")
    ]


AFTER = 600.0


@pytest.mark.parametrize(
    ("schedule", "starts"),
    [
        # Four ticks went by meanwhile: they are made up for as the schedule says.
        (Cron("*/30 * * * *"), [7500, 9000]),
        (Cron("*/30 * * * *", catch_up="all"), [7500, 7500, 7500, 7500, 9000]),
        (Cron("*/30 * * * *", catch_up="skip"), [9000]),
        (Every("100m"), [7500]),  # due 100 minutes after that run
        (Every("120m"), [7800]),
    ],
)
async def test_a_loop_that_is_resumed_after_a_moment_catches_up_from_that_moment(
    stage: Stage, schedule: Every | Cron, starts: list[float]
) -> None:
    @stage.app.periodic(schedule=schedule)
    async def task(ctx: Context) -> None: ...

    await stage.seed(paused=True)
    async with stage.processor():
        await asyncio.sleep(7500)
        after = START + timedelta(seconds=AFTER)
        await stage.verbs.resume(the_loop(stage), after=after)
        await asyncio.sleep(2400)
    assert stage.starts() == pytest.approx(starts, abs=1)


async def test_a_task_is_paused_and_resumed_by_its_name(stage: Stage) -> None:
    app = looping()

    @app.task
    async def bill() -> None: ...

    await stage.seed(app)
    await bill.start("order-7", every="1h")
    with pytest.raises(UnknownLoop, match=r"^'bill' is a task, not a loop: .* named bill\.KEY\.$"):
        await stage.loops.find("bill")
    with pytest.raises(UnknownLoop, match="no loop or task 'bil'; did you mean 'bill'"):
        await app.pause("bil")
    assert (await stage.loops.find("task", or_whole=True)).id == TASK
    assert (await app.resume("bill")).did is Effect.NOT_PAUSED
    assert (await app.pause("bill", "stocktaking")).did is Effect.PAUSED
    assert (await app.pause("bill")).did is Effect.UNCHANGED
    assert (await stage.survey.pauses())["bill"].reason == "stocktaking"
    order = await stage.loops.find("bill.order-7")
    assert (await stage.verbs.trigger(order)).did is Effect.IS_PAUSED
    with pytest.raises(UsageError, match="bill is a task: only a loop is resumed at once"):
        await stage.verbs.resume(await stage.loops.find("bill", or_whole=True), at_once=True)
    assert (await app.resume("bill")).did is Effect.RESUMED
    assert await stage.survey.pauses() == {}
    await app.pause("bill", " \n")
    assert (await stage.survey.pauses())["bill"].reason == PAUSED_BY_OPERATOR
    assert await stage.history("bill") == ["paused", "resumed"]


async def test_a_loop_runs_once_with_other_arguments_and_continues_unchanged(stage: Stage) -> None:
    app, ran = new_app(), list[tuple[float, str, int]]()

    @app.periodic(every="1m", name="task", args={"day": "today"})
    async def task(ctx: Context, day: str, times: int = 1) -> None:
        ran.append((seconds_of([stage.clock.now()])[0], day, times))

    await stage.seed(app)
    with pytest.raises(QueueNotFound):
        await program_of(looping("other"), stage.broker, stage.clock).verbs.run_beside(
            looping("other").loop("other"), {}
        )
    async with stage.processor():
        await asyncio.sleep(70)
        with pytest.raises(InvalidArguments):
            await stage.verbs.run_beside(the_loop(stage), {"times": "x"})
        done = await stage.verbs.run_beside(the_loop(stage), {"day": "yesterday"})
        assert done.did is Effect.TRIGGERED
        await stage.verbs.pause(the_loop(stage))
        await stage.verbs.run_beside(the_loop(stage), {"times": 3})
        await stage.verbs.resume(the_loop(stage))
        await asyncio.sleep(115)
    assert [(round(at), day, times) for at, day, times in ran] == [
        (60, "today", 1),
        (70, "yesterday", 1),
        (70, "today", 3),
        (130, "today", 1),
    ]


async def test_verbs_on_loops_that_were_never_seeded_are_refused_or_say_so(stage: Stage) -> None:
    await stage.seed(looping())
    newer = looping("new", "task")
    verbs, both = program_of(newer, stage.broker, stage.clock).verbs, [*newer.loops.values()]
    for verb in verbs.pause, verbs.resume, verbs.trigger:
        with pytest.raises(QueueNotFound, match="loop new is not in.*Nothing was changed"):
            await verb(newer.loop("new"))
    for reports, did in (
        (await verbs.pause_all(both), Effect.PAUSED),
        (await verbs.resume_all(both), Effect.RESUMED),
    ):
        assert [report.did for report in reports] == [Effect.NOT_THERE, did]


# Seed


async def wait(stage: Stage) -> None:
    await asyncio.sleep(HOUR + 1)


async def pause_and_delete_roster(stage: Stage) -> None:
    await pause(stage)
    await delete_roster(stage)


async def remove(stage: Stage) -> None:
    await program_of(new_app(), stage.broker, stage.clock).seeding.seed(prune=True)


@pytest.mark.parametrize(
    ("deed", "every", "did"),
    [
        (nothing, "1h", Effect.UNCHANGED),
        (nothing, "2h", Effect.RESCHEDULED),
        (wait, "1h", Effect.UNCHANGED),
        (pause, "1h", Effect.UNCHANGED),
        (pause, "2h", Effect.RESCHEDULED),
        (lose, "1h", Effect.UNCHANGED),  # it is not overdue yet
        (delete_roster, "1h", Effect.REPAIRED),
        (pause_and_delete_roster, "1h", Effect.REPAIRED),
        (delete, "1h", Effect.CREATED),
        (remove, "1h", Effect.CREATED),
    ],
)
async def test_a_seed_follows_its_plan(stage: Stage, deed: Deed, every: str, did: Effect) -> None:
    await stage.seed(looping())
    await deed(stage)
    await asyncio.sleep(1)
    before = dict(await stage.listing())
    seeding = program_of(looping(every=every), stage.broker, stage.clock).seeding
    (planned,) = await seeding.plan()
    assert await stage.listing() == before
    (report,) = await seeding.seed()
    is_paused = deed in (pause, pause_and_delete_roster)
    assert (planned.did, planned.is_paused) == (report.did, report.is_paused) == (did, is_paused)
    assert (report.due_at is None) is is_paused
    assert (await stage.listing())[TASK].schedule == Every(every)
    assert (await stage.tokens_by_loop())[TASK] == (not is_paused and deed is not lose)


async def test_a_seed_repairs_an_overdue_loop(stage: Stage) -> None:
    await stage.seed(looping())
    async with stage.processor():
        await stage.lose(TASK)
        await asyncio.sleep(HOUR + 10)
        (planned,) = await stage.seeding.plan()
        (report,) = await stage.seeding.seed()
        assert planned.did is report.did is Effect.REPAIRED
        await asyncio.sleep(5)
    assert len(stage.starts()) == 1


async def test_a_loop_that_is_seeded_paused_waits_until_it_is_resumed(stage: Stage) -> None:
    await stage.seed(looping("other", every="1m"))
    app = looping("task", "other", every="1m")
    planned = await program_of(app, stage.broker, stage.clock).seeding.plan(paused=True)
    for reports in planned, await stage.seed(app, paused=True):
        assert [report.did for report in reports] == [Effect.CREATED, Effect.UNCHANGED]
        assert [report.is_paused for report in reports] == [True, False]
    await stage.seeding.seed()
    assert of(LoopSeeded, stage.events)[-2].due_at is None
    async with stage.supervised():
        await asyncio.sleep(120)
        assert await stage.where(TASK) is Where.PAUSED
        assert (await stage.listing())[TASK].reason == "seeded paused"
        assert len(stage.starts("other")) == 2
        assert stage.starts("task") == []
        await stage.verbs.resume(the_loop(stage))
        await asyncio.sleep(70)
    assert len(stage.starts("task")) == 1


# Remove, and prune


async def test_removing_a_loop_of_old_code_parks_the_messages_in_its_queue(stage: Stage) -> None:
    await stage.seed(looping("task", "gone"))
    program, queue = program_of(looping(), stage.broker, stage.clock), "test.v1.processor.gone"
    with pytest.raises(UsageError, match="The loop task is in the code, so a seed would start it"):
        await stage.removal.remove(the_loop(stage))
    orphan = await program.loops.find("gone")
    await stage.verbs.trigger(orphan)
    assert (await program.removal.remove(orphan)).did is Effect.REMOVED
    assert await stage.broker.depth(queue) is None
    (parked,) = await stage.parked()
    assert (parked.queue, parked.loop, parked.reason) == (
        stage.app.names.failed_queue("gone"),
        "gone",
        "removed",
    )
    assert "The task 'gone' was removed, with this message in its queue." in parked.error
    assert await stage.history("gone") == ["seeded", "triggered", "removed", "parked"]
    assert (await program.removal.remove(orphan)).did is Effect.NOT_THERE
    with pytest.raises(UnknownLoop):
        await program.loops.find("gone")


async def test_removing_a_loop_of_old_code_keeps_the_queue_of_the_other_ones(stage: Stage) -> None:
    app = new_app()

    @app.task
    async def gone() -> None: ...

    await stage.seed(app)
    program, queue = program_of(looping(), stage.broker, stage.clock), "test.v1.processor.gone"
    for key in "a", "b":
        await gone.start(key, every="1h")
    for key, is_kept in ("a", True), ("b", False):
        orphan = await program.loops.find(f"gone.{key}")
        assert (await program.removal.remove(orphan)).did is Effect.REMOVED
        assert (await stage.broker.depth(queue) is not None) is is_kept


# At once


def is_entry(call: Call) -> bool:
    return call.message.type == ENTRY_TYPE


async def test_the_second_of_two_operators_learns_of_the_first_and_decides_again(
    stage: Stage,
) -> None:
    await stage.seed(looping())
    async with FaultyBroker(stage.server) as slower:

        async def be_overtaken(_: Call) -> None:
            assert (await stage.verbs.pause(the_loop(stage), "first")).did is Effect.PAUSED

        appending = slower.on("publish", where=is_entry, times=1).first(be_overtaken)
        program = program_of(stage.app, slower, stage.clock)
        assert (await program.verbs.pause(the_loop(stage), "second")).did is Effect.UNCHANGED
        assert len(appending.met) == 1
    assert (await stage.listing())[TASK].reason == "first"


async def test_a_verb_that_is_overtaken_ten_times_is_refused(stage: Stage) -> None:
    await stage.seed(looping())
    async with FaultyBroker(stage.server) as slower:

        async def be_overtaken(_: Call) -> None:
            await stage.put_again(TASK)

        slower.on("publish", where=is_entry).first(be_overtaken)
        program = program_of(stage.app, slower, stage.clock)
        with pytest.raises(
            Overtaken, match="task: other programs changed it first, 10 times in a row"
        ):
            await program.verbs.pause(the_loop(stage))
    assert (await stage.listing())[TASK].entry.state is LoopState.ACTIVE


async def test_many_loops_are_paused_and_resumed_in_bulk(stage: Stage) -> None:
    names = [f"task{n}" for n in range(100)]
    app = looping(*names, every="1m")
    await stage.seed(app)
    loops = [app.loop(name) for name in names]
    async with stage.supervised(), FaultyBroker(stage.server) as broker:
        await asyncio.sleep(1)
        program = program_of(app, broker, stage.clock)
        paused = await program.verbs.pause_all(loops, "stocktaking")
        assert {(report.did, report.is_paused) for report in paused} == {(Effect.PAUSED, True)}
        assert [report.loop.id for report in paused] == [loop.id for loop in loops]
        types = Counter(call.message.type for call in broker.calls if call.operation == "publish")
        assert types[QUESTION] == 1
        assert types[ENTRY_TYPE] < 10
        await asyncio.sleep(100)
        assert {run.loop.task for run in of(RunStarted, stage.events)} == {SUPERVISION.task}
        resumed = await program.verbs.resume_all(loops, at_once=True)
        assert {report.did for report in resumed} == {Effect.RESUMED}
        await asyncio.sleep(10)
    assert {str(run.loop) for run in of(RunStarted, stage.events)} >= set(names)


async def test_a_snapshot_of_the_roster_delays_no_round(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, broker, snapshots = 10, FaultyBroker(stage.server), stage.app.names.snapshots

    async def linger(_: Call) -> None:
        await asyncio.sleep(50)

    monkeypatch.setattr("scheduler.queues.roster.FEW", few)
    await stage.seed(looping())
    for _ in range(few):
        await stage.verbs.pause(the_loop(stage))
        await stage.verbs.resume(the_loop(stage))
    slow = broker.on("publish", key=snapshots).first(linger)
    async with stage.supervised(over=broker):
        await asyncio.sleep(50)
        assert len(of(CensusTaken, stage.events)) >= 3
        assert await stage.ready(snapshots) == 0
        await asyncio.sleep(40)
    assert 0 < await stage.ready(snapshots) == len(slow.met) <= 2


# Programs that run without a seed


async def test_a_first_start_is_no_repair_unless_the_roster_was_lost(stage: Stage) -> None:
    app = looping()
    app.events.listen(stage.events.append)
    programs = [program_of(app, stage.broker, stage.clock) for _ in range(2)]
    await asyncio.gather(*(each.seeding.adopt() for each in programs))
    assert [each.did for each in of(LoopSeeded, stage.events)] == ["created", "created"]
    assert stage.repairs() == []
    await stage.broker.delete(app.names.roster)
    await program_of(app, stage.broker, stage.clock).seeding.adopt()
    assert stage.repairs() == [("_supervision", "adopted"), ("task", "adopted")]


@pytest.mark.parametrize("error", [ImportError, KeyError, OSError])
def test_a_user_may_have_no_name(monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    def nobody() -> str:
        raise error

    monkeypatch.setattr(getpass, "getuser", nobody)
    monkeypatch.setattr("os.getuid", lambda: 1234, raising=False)
    assert user_here() == "1234"
    assert operator_here().startswith("1234@")
