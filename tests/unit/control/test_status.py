"""Where the token of each loop is, as an operator is told."""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest

from scheduler import Context, Every, Retry
from scheduler.control.loops import Where
from scheduler.control.status import Choice, Status
from scheduler.errors import Unconfirmed
from scheduler.protocol.tokens import Ending, LoopId
from scheduler.queues.roll_call import Answers
from tests.faulty import FaultyBroker
from tests.stage import START, Stage, looping, new_app, program_of
from tests.unit.control.conftest import TASK, Deed, delete_roster, lose, nothing, pause

OPTIONS: dict[str, Any] = {"every": "1m", "supervision_interval": "1h"}


async def status(stage: Stage) -> Status:
    (found,) = await stage.survey.status()
    return found


async def wait(stage: Stage) -> None:
    await asyncio.sleep(61)


async def lose_and_wait(stage: Stage) -> None:
    await lose(stage)
    await asyncio.sleep(70)


async def delete_queue(stage: Stage) -> None:
    await stage.broker.delete(stage.app.names.processor_queue("task"))


async def test_a_run_that_just_ended_is_not_lost(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stage.seed(looping(takes=30, **OPTIONS))
    ask = stage.program.roll_call.ask_all

    async def after_the_run(loops: Mapping[LoopId, int]) -> Answers:
        await asyncio.sleep(25)
        return await ask(loops)

    async with stage.processor():
        await asyncio.sleep(80)
        monkeypatch.setattr(stage.program.roll_call, "ask_all", after_the_run)
        assert (await status(stage)).where is Where.WAITING


@pytest.mark.parametrize(
    ("deed", "processors", "where"),
    [
        (nothing, 0, Where.WAITING),
        (pause, 0, Where.PAUSED),
        (wait, 0, Where.READY),
        (lose_and_wait, 0, Where.UNATTENDED),
        (delete_queue, 0, Where.UNSEEDED),
        (delete_roster, 0, Where.UNSEEDED),
        (nothing, 2, Where.WAITING),
        (pause, 2, Where.PAUSED),
        (wait, 2, Where.RUNNING),
        (lose, 2, Where.WAITING),
        (lose_and_wait, 2, Where.LOST),
    ],
)
async def test_the_place_of_a_loop_follows_from_roster_journal_queue_and_processors(
    stage: Stage, deed: Deed, processors: int, where: Where
) -> None:
    await stage.seed(looping(takes=10, **OPTIONS))
    async with AsyncExitStack() as started:
        for _ in range(processors):
            await started.enter_async_context(stage.supervised())
        await asyncio.sleep(1)
        await deed(stage)
        found = await status(stage)
        assert (found.where, found.processors) == (where, processors)


async def test_a_token_is_probably_running_if_processors_are_silent_or_not_asked(
    stage: Stage,
) -> None:
    await stage.seed(looping(**OPTIONS))
    mute = FaultyBroker(stage.server)
    mute.on("publish", key=stage.app.names.roll_call).fails(Unconfirmed())
    async with stage.supervised(over=mute), FaultyBroker(stage.server) as broker:
        await lose_and_wait(stage)
        found = await status(stage)
        told = "no answer from an unknown processor (1)"
        assert (found.where, found.reason) == (Where.RUNNING, f"as far as is known: {told}")
        broker.blocks_for = "low on disk"
        program = program_of(stage.app, broker, stage.clock)
        (found,) = await program.survey.status()
        told = "processors were not asked: the broker blocks publishers (low on disk)"
        assert (found.where, found.reason) == (Where.RUNNING, f"as far as is known: {told}")
        running = await program.cancellation.running()
        assert (running.expected, running.complete, running.alarm) == (1, False, "low on disk")
        findings = {each.about: each for each in await program.doctor.examine()}
        assert findings["messages"].verdict == "problem"
        assert told in findings["processors"].detail
        assert (await program.survey.counts(0, [])).alarm == "low on disk"
        assert not any(call.operation == "publish" for call in broker.calls)
        broker.calls.clear()
        report = await program.verbs.pause(stage.app.loop("task"))
        assert report.silent == ["an unknown processor (1)"]
        assert len([call for call in broker.calls if call.operation == "depth"]) < 20


@pytest.mark.parametrize("deed", [nothing, lose])
async def test_the_status_is_the_same_while_a_token_is_lost(stage: Stage, deed: Deed) -> None:
    app = looping(takes=2, raised=ValueError("boom"), retry=Retry(0), **OPTIONS)
    await stage.seed(app)
    async with stage.supervised():
        await asyncio.sleep(70)
        await deed(stage)
        found = await status(stage)
        assert (found.seq, found.attempt, found.reason) == (1, 1, None)
        assert found.due_at == START + timedelta(seconds=122)
        assert found.last is not None
        assert (found.last.ending, found.last.error) == (Ending.ESCALATED, "ValueError: boom")
        assert found.last.scheduled_at == START + timedelta(seconds=60)
        assert found.last.late == timedelta(0)
        assert found.last.duration == timedelta(seconds=2)


async def test_the_checkpoint_tells_what_the_journal_has_forgotten(stage: Stage) -> None:
    app = new_app(supervision_interval="1h", journal_max_age="1h")

    @app.periodic(every="7d")
    async def task(ctx: Context) -> None: ...

    await stage.seed(app)
    async with stage.supervised():
        await asyncio.sleep(timedelta(days=7, hours=3).total_seconds())
    await asyncio.sleep(timedelta(days=8).total_seconds())
    found = await status(stage)
    assert (found.where, found.seq) == (Where.UNATTENDED, 1)
    assert found.due_at == START + timedelta(days=14)


async def test_short_waits_after_a_noted_long_one_count(stage: Stage) -> None:
    app = new_app(supervision_interval="10m")

    @app.periodic(cron="0-9 9 * * *")
    async def task(ctx: Context) -> None: ...

    await stage.seed(app)
    async with stage.supervised():
        await asyncio.sleep(timedelta(days=1, hours=21, minutes=5, seconds=30).total_seconds())
        assert (await stage.listing())[TASK].checkpoint is not None
    await asyncio.sleep(1800)
    found = await status(stage)
    assert (found.where, found.seq) == (Where.UNATTENDED, 16)
    await pause(stage)
    assert (await status(stage)).seq == 16


async def test_overdue_loops_are_listed_first_and_some_can_be_chosen(stage: Stage) -> None:
    @stage.app.periodic(every="1h")
    async def report(ctx: Context) -> None: ...

    @stage.app.task
    async def other() -> None: ...

    await stage.seed()
    hourly = Every("1h")
    await report.start_many({f"b{n}": hourly for n in range(20)})
    await other.start_many({"b1": hourly, "c1": hourly})
    in_order = ["report", *sorted(f"report.b{n}" for n in range(20)), "other.b1", "other.c1"]
    assert [str(each.loop) for each in await stage.survey.status()] == in_order
    late = LoopId("report", "b7")
    await report.start("b7", every="10s")
    await stage.verbs.pause(await stage.program.loops.find("other.c1"))
    await stage.lose(late)
    stage.expects_none(late)
    await asyncio.sleep(20)

    async def shown(**choice: Any) -> tuple[list[str], int]:
        page = await stage.survey.page(Choice(**choice))
        assert page.total == 23
        return [str(each.loop) for each in page.loops], page.more

    found, more = await shown(limit=5)
    assert (found[:2], len(found), more) == ([str(late), "report"], 5, 18)
    assert sorted((await shown(key="?1"))[0]) == ["other.b1", "other.c1", "report.b1"]
    assert await shown(task="other", key="c*") == (["other.c1"], 0)
    assert await shown(state=Where.PAUSED, limit=2) == (["other.c1"], 0)
    assert (await shown(state=Where.UNATTENDED, limit=5))[0] == [str(late)]
    await stage.verbs.pause(await stage.loops.find("other", or_whole=True))
    assert await shown(task="other", key="b1", state=Where.PAUSED) == (["other.b1"], 0)
