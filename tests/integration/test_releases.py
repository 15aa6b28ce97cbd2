"""A loop follows what was declared last, though pods of an old release work on."""

import asyncio
from itertools import pairwise

from scheduler import Context, Scheduler
from scheduler.control.reports import Effect
from tests.integration.scene import Run, Scene
from tests.tokens import lose

OLD, NEW = "300ms", "1s"


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


async def test_a_loop_that_an_old_pod_repairs_keeps_the_new_schedule(scene: Scene) -> None:
    old, new = beating(scene, "old", OLD), beating(scene, "new", NEW)
    await scene.operator(old).seeding.seed()
    async with scene.pod(old):
        await scene.diary.until(lambda: len(scene.diary.runs) > 1)
        await scene.operator(new).seeding.seed()
        await scene.diary.until(lambda: len(scene.diary.runs) > 3)
    while not await lose(scene.broker, new.names, new.loop("beat").id):  # noqa: ASYNC110
        await asyncio.sleep(0.05)  # it moves from timer to timer
    before = len(scene.diary.runs)
    async with scene.pod(old):
        await scene.diary.until(lambda: len(scene.diary.runs) > before + 2)
    assert min(waits(scene.diary.runs[before:])) >= 0.9


async def test_an_old_pod_does_not_revive_a_pruned_loop(scene: Scene) -> None:
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
