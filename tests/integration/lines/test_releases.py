"""What a loop runs by is what was said last, whoever else lives, and wherever its token is."""

import asyncio
from itertools import pairwise

import pytest

from scheduler import Context, Scheduler
from scheduler.control.reports import Effect
from tests.integration.lines.scene import Run, Scene
from tests.tokens import lose

OLD, NEW = "300ms", "1500ms"


def beating(scene: Scene, release: str, every: str, *also: str) -> Scheduler:
    """A release with a loop of this period, and others of these names."""
    app = scene.release()

    async def beat(ctx: Context) -> None:
        await scene.diary.write(ctx, release=release)

    for name in ("beat", *also):
        app.periodic(every=every, name=name)(beat)
    return app


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
