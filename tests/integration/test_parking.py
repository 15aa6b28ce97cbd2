"""A tick that kills each pod that takes it is parked once."""

import asyncio
from typing import Literal

import pytest

from scheduler import Context, Scheduler
from scheduler.control.loops import Where
from scheduler.protocol.epochs import Verb
from tests.integration.scene import Pod, Scene

DEADLY = 1  # the tick whose run kills its pod
LIMIT = 2
RESTART = 0.3


class Restarted:
    """A pod for a task, and another one whenever it has died."""

    def __init__(self, scene: Scene, app: Scheduler, task: str) -> None:
        self._scene = scene
        self._app = app
        self._task = task
        self._pod: Pod | None = None

    async def run(self) -> None:
        while True:
            async with self._scene.pod(self._app, tasks=[self._task]) as self._pod:
                await self._pod.connection.dead.wait()
            await asyncio.sleep(RESTART)

    async def kill(self) -> None:
        assert self._pod is not None
        await self._pod.die()


async def repairs_of(scene: Scene, app: Scheduler, loop: str) -> int:
    """How often the loop's token was put again, whether or not it was lost."""
    entries = scene.operator(app).journal.entries(loop=loop)
    return [entry.what async for entry in entries].count(Verb.REPAIR)


@pytest.mark.parametrize("after_failure", ["continue", "pause"])
async def test_a_tick_that_kills_its_pods_is_parked_once_and_never_run_again(
    scene: Scene, after_failure: Literal["continue", "pause"]
) -> None:
    app = scene.release(delivery_limit=LIMIT)
    restarted = Restarted(scene, app, "beat")

    @app.periodic(every="300ms", after_failure=after_failure)
    async def beat(ctx: Context) -> None:
        if ctx.seq == DEADLY:
            await scene.diary.write(ctx)
            await restarted.kill()
            await asyncio.Future()
        await scene.diary.write(ctx)

    @app.periodic(every="300ms")
    async def other(ctx: Context) -> None:
        await scene.diary.write(ctx)

    await scene.operator(app).seeding.seed()
    async with scene.pod(app, tasks=["other"]):
        working = asyncio.create_task(restarted.run())
        try:
            await scene.until_parked(app, "beat")
            deaths, others = scene.diary.seqs("beat").count(DEADLY), len(scene.diary.of("other"))
            # A repair puts another message in the place of the one that the broker has counted.
            assert deaths <= LIMIT * (1 + await repairs_of(scene, app, "beat"))
            # Some rounds of supervision.
            await scene.diary.until(lambda: len(scene.diary.of("other")) > others + 15)
            assert scene.diary.seqs("beat").count(DEADLY) == deaths
            (parked,) = await scene.parked(app)
            assert parked.loop == "beat"
            if after_failure == "continue":
                await scene.diary.until(lambda: max(scene.diary.seqs("beat")) > DEADLY + 2)
            else:
                assert await scene.where(app, "beat") is Where.PAUSED
                assert max(scene.diary.seqs("beat")) == DEADLY
        finally:
            working.cancel()
            await asyncio.wait([working])
