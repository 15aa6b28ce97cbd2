"""While a task is paused, none of its calls and loops is run, whatever becomes of processors."""

import asyncio
from typing import Any

import pytest

from scheduler import Context, Scheduler
from scheduler.control.loops import Where
from scheduler.events import LoopRepaired
from scheduler.program import Program
from scheduler.sending import CallTask
from tests.integration.scene import Scene

CALLS = 12
AT_ONCE = 4


async def billing(
    scene: Scene, takes: float = 0, **options: Any
) -> tuple[Scheduler, CallTask[..., ..., Any], Program]:
    """An app with one task, seeded."""
    app = scene.release()

    @app.task(**({} if "ordered" in options else {"concurrency": AT_ONCE}), **options)
    async def bill(ctx: Context, order: int = -1) -> None:
        await scene.diary.write(ctx, order, takes=takes)

    operator = scene.operator(app)
    await operator.seeding.seed()
    return app, bill, operator


@pytest.mark.parametrize("options", [{}, {"ordered": True}, {"rate": "50/s"}], ids=str)
async def test_a_pause_lets_runs_end_and_returns_what_has_not_begun(
    scene: Scene, options: dict[str, Any]
) -> None:
    app, bill, operator = await billing(scene, takes=0.5, **options)
    whole, diary = await operator.loops.find("bill", or_whole=True), scene.diary
    await bill.send_many({"order": n} for n in range(CALLS))
    async with scene.pod(app, concurrency=AT_ONCE):
        for _ in range(2):
            begun = min(len(diary.runs), CALLS - 1)  # on a busy machine, all may have run by now
            await diary.until(lambda begun=begun: len(diary.runs) > begun)
            assert (await operator.verbs.pause(whole)).silent == ()
            begun = len(diary.runs)
            await diary.until(lambda: all(run.ended for run in diary.runs))
            await asyncio.sleep(1)
            assert len(diary.runs) == begun
            await scene.until_ready(app, "bill", CALLS - begun)
            await operator.verbs.resume(whole)
        await diary.until(lambda: len(diary.runs) == CALLS)
    assert sorted(run.facts for run in diary.runs) == [(n,) for n in range(CALLS)]
    at_once = 1 if "ordered" in options else AT_ONCE
    for run in diary.runs:
        others = [each for each in diary.runs if each.began <= run.began < (each.ended or 0)]
        assert len(others) <= at_once


async def test_a_run_that_outlasts_a_pause_still_counts_against_concurrency(scene: Scene) -> None:
    app, bill, operator = await billing(scene, takes=1.5)
    whole, diary = await operator.loops.find("bill", or_whole=True), scene.diary
    await bill.send_many({"order": n} for n in range(AT_ONCE + 1))
    async with scene.pod(app, grace=10):
        await diary.until(lambda: len(diary.runs) == AT_ONCE)
        await operator.verbs.pause(whole)
        await operator.verbs.resume(whole)
        await diary.until(lambda: len(diary.runs) == AT_ONCE + 1)
        assert any(run.ended for run in diary.runs)


async def test_keyed_loops_wait_with_their_paused_task_and_keep_their_own_pause(scene: Scene):
    app, bill, operator = await billing(scene)
    for key in "ab":
        await bill.start(key, every="500ms")
    whole, diary = await operator.loops.find("bill", or_whole=True), scene.diary
    async with scene.pod(app):
        await diary.until(lambda: len(diary.of("bill.a")) > 1 < len(diary.of("bill.b")))
        await operator.verbs.pause(await operator.loops.find("bill.a"), "no customer")
        await operator.verbs.pause(whole, "stocktaking")
        begun = len(diary.runs)
        await asyncio.sleep(3)  # some rounds of supervision, and ticks
        assert len(diary.runs) == begun
        reasons = {str(each.loop): each.reason for each in await operator.survey.status()}
        assert reasons == {"bill.a": "no customer", "bill.b": "its task is paused: stocktaking"}
        await operator.verbs.resume(whole)
        await diary.until(lambda: len(diary.runs) > begun + 2)
        assert await scene.where(app, "bill.a") is Where.PAUSED
    assert diary.seqs("bill.b") == list(range(len(diary.of("bill.b"))))
    assert {run.loop for run in diary.runs[begun:]} == {"bill.b"}
    assert [each for each in scene.events if isinstance(each, LoopRepaired)] == []
