"""What a loop runs by is what was said last, whoever else lives, and wherever its token is."""

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from scheduler import Context, Scheduler
from scheduler.control.reports import Effect
from scheduler.sending import CallTask
from tests.integration.lines.scene import Run, Scene
from tests.tokens import lose

OLD, NEW = "300ms", "1500ms"
A, B = "report.a", "report.b"


def beating(scene: Scene, release: str, every: str, *also: str, takes: float = 0) -> Scheduler:
    """A release with a loop of this period, and others of these names."""
    app = scene.release()

    async def beat(ctx: Context) -> None:
        await scene.diary.write(ctx, release=release, takes=takes)

    for name in ("beat", *also):
        app.periodic(every=every, name=name)(beat)
    return app


def reporting(scene: Scene, takes: float = 0) -> tuple[Scheduler, CallTask[Any, Any, Any]]:
    """An app with a task for keyed loops."""
    app = scene.release()

    @app.task()
    async def report(ctx: Context, city: str = "nowhere") -> None:
        await scene.diary.write(ctx, city, takes=takes)

    return app, report


def waits(runs: list[Run]) -> list[float]:
    """How long it was from the end of each run to the next."""
    return [round(after.began - (before.ended or 0), 1) for before, after in pairwise(runs)]


@pytest.mark.embedded
async def test_a_loop_that_is_put_again_by_an_old_pod_keeps_the_new_schedule(scene: Scene) -> None:
    old, new = beating(scene, "old", OLD), beating(scene, "new", NEW)
    await scene.operator(old).seeding.seed()
    async with scene.pod(old):
        await scene.diary.until(lambda: len(scene.diary.runs) > 1)
        await scene.operator(new).seeding.seed()
        await scene.diary.until(lambda: len(scene.diary.runs) > 3)
        while not await lose(scene.broker, new.names, new.loop("beat").id):  # noqa: ASYNC110 - it moves
            await asyncio.sleep(0.05)
        before = len(scene.diary.runs)
        await scene.diary.until(lambda: len(scene.diary.runs) > before + 2)
    assert min(waits(scene.diary.runs[before:])) >= 1.4


@pytest.mark.embedded
async def test_a_loop_that_was_pruned_is_not_brought_back_by_an_old_pod(scene: Scene) -> None:
    old, new = beating(scene, "old", NEW, "gone"), beating(scene, "new", NEW)
    await scene.operator(old).seeding.seed()
    async with scene.pod(old):
        await scene.diary.until(lambda: bool(scene.diary.of("gone")))
        reports = await scene.operator(new).seeding.seed(prune=True)
        assert Effect.REMOVED in [report.did for report in reports if str(report.loop) == "gone"]
        runs = len(scene.diary.of("gone"))
        others = len(scene.diary.of("beat"))
        await scene.diary.until(lambda: len(scene.diary.of("beat")) > others + 3)
        assert len(scene.diary.of("gone")) == runs


@pytest.mark.embedded
async def test_stopped_and_started_at_once_a_loop_goes_on_as_it_was_started_last(
    scene: Scene,
) -> None:
    app, report = reporting(scene, takes=1)
    await scene.operator(app).seeding.seed()
    await report.start("a", every=NEW, args={"city": "Bonn"})
    await scene.until_ready(app, "report")
    assert await report.stop("a") is True
    await report.start("a", every=OLD, args={"city": "Ulm"})
    async with scene.pod(app):
        # The tick that was due may be the last of its kind.
        await scene.diary.until(lambda: len(scene.diary.runs) > 3)
    later = scene.diary.runs[1:]
    assert {run.facts for run in later} == {("Ulm",)}
    assert max(waits(later)) < 1.4


@pytest.mark.embedded
async def test_started_with_another_schedule_behind_a_tick_of_another_key_a_loop_takes_it(
    scene: Scene,
) -> None:
    app, report = reporting(scene)
    await scene.operator(app).seeding.seed()
    for key in ("a", "b"):
        await report.start(key, every=OLD, args={"city": "Bonn"})
        await scene.until_ready(app, "report", 1 if key == "a" else 2)
    assert await report.start("b", every=NEW, args={"city": "Ulm"}) is not Effect.UNCHANGED
    async with scene.pod(app):
        await scene.diary.until(lambda: len(scene.diary.of(B)) > 3)
    later = scene.diary.of(B)[1:]
    assert {run.facts for run in later} == {("Ulm",)}
    assert min(waits(later)) >= 1.4
    assert {run.facts for run in scene.diary.of(A)} == {("Bonn",)}


@pytest.mark.embedded
async def test_seeded_with_another_schedule_while_it_is_paused_during_a_run_a_loop_takes_it(
    scene: Scene,
) -> None:
    old, new = beating(scene, "old", OLD, takes=3), beating(scene, "new", NEW)
    await scene.operator(old).seeding.seed()
    async with scene.pod(old, grace=5):
        await scene.diary.until(lambda: bool(scene.diary.runs))
        await scene.operator(old).verbs.pause(old.loop("beat"))
        (report,) = await scene.operator(new).seeding.seed()
        assert report.did is not Effect.UNCHANGED
    await scene.operator(new).verbs.resume(new.loop("beat"))
    async with scene.pod(new):
        await scene.diary.until(lambda: len(scene.diary.runs) > 3)
    assert min(waits(scene.diary.runs[1:])) >= 1.4
