"""Once a pause has returned, no run of the loop begins until it is resumed."""

import asyncio

from scheduler import Context, Scheduler
from tests.integration.lines.scene import Scene


def beating(scene: Scene) -> Scheduler:
    """An app with two loops: the runs of one take long."""
    app = scene.release()

    @app.periodic(every="500ms")
    async def beat(ctx: Context) -> None:
        await scene.diary.write(ctx)

    @app.periodic(every="200ms")
    async def slow(ctx: Context) -> None:
        await scene.diary.write(ctx, takes=2)

    return app


async def test_a_tick_that_is_due_does_not_run_once_its_loop_is_paused(scene: Scene) -> None:
    app = beating(scene)
    operator = scene.operator(app)
    await operator.seeding.seed()
    await scene.until_ready(app, "beat")
    await operator.verbs.pause(app.loop("beat"))
    async with scene.pod(app):
        await scene.diary.until(lambda: bool(scene.diary.of("slow")))
        await asyncio.sleep(1.5)
        assert scene.diary.seqs("beat") == []
        await operator.verbs.resume(app.loop("beat"))
        await scene.diary.until(lambda: len(scene.diary.of("beat")) > 2)
    assert scene.diary.seqs("beat")[:3] == [0, 1, 2]
