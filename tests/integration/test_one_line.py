"""Whatever is done to a loop, it goes on in one line: its ticks run once each, none beside another.

Where runs take longer than waits, and two pods begin half a turn apart, two tokens of a loop would
never meet.
"""

import asyncio
from typing import Any

from scheduler import Context, Scheduler
from scheduler.sending import CallTask
from tests.integration.scene import Scene

TAKES, APART = 1, 0.5
A, B, C = (f"report.{key}" for key in "abc")


def reporting(scene: Scene) -> tuple[Scheduler, CallTask[Any, Any, Any]]:
    """An app with a task for keyed loops: the runs of `a` take long."""
    app = scene.release()

    @app.task(concurrency=1)
    async def report(ctx: Context) -> None:
        await scene.diary.write(ctx, takes=TAKES if ctx.key == "a" else 0.1)

    return app, report


async def work_with_two_pods(scene: Scene, app: Scheduler, loop: str) -> None:
    """Have two pods work, until a loop has had its turn some times."""
    before = len(scene.diary.of(loop))
    async with scene.pod(app, grace=5):
        await scene.diary.until(lambda: len(scene.diary.of(loop)) > before)
        await asyncio.sleep(APART)
        async with scene.pod(app, grace=5):
            await scene.diary.until(lambda: len(scene.diary.of(loop)) > before + 3)


async def test_a_tick_whose_pod_died_before_its_ack_is_not_run_again_behind_other_messages(
    scene: Scene,
) -> None:
    app, report = reporting(scene)
    operator = scene.operator(app)
    await operator.seeding.seed()
    await report.start("a", every="1s")
    for key in ("b", "c"):
        await report.start(key, every="1h")
    async with scene.pod(app, unacked="report") as pod:
        await pod.connection.dead.wait()
        await pod.die()
    for loop in (B, C):  # which are ready before what follows the tick
        await operator.verbs.trigger(await operator.loops.find(loop))
    await scene.until_ready(app, "report", 4)
    await work_with_two_pods(scene, app, A)
    assert scene.diary.overlaps(A) == []
    ticks = scene.diary.seqs(A)
    assert sorted(set(ticks)) == sorted(ticks)
