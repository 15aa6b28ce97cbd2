"""Apps with loops of one kind, and what may be done to them."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from scheduler import Context, Retry, Scheduler
from scheduler.protocol.tokens import LoopId
from scheduler.tasks.loops import Loop
from tests.stage import Stage, new_app

TASK = LoopId("task")
Deed = Callable[[Stage], Awaitable[Any]]


def looping(
    *names: str,
    every: str = "1h",
    takes: float = 0,
    raised: Exception | None = None,
    **settings: Any,
) -> Scheduler:
    """An app with a loop of each name, or one, whose runs count up what they carry."""
    app = new_app(**settings)

    async def count(ctx: Context) -> None:
        await asyncio.sleep(takes)
        if raised:
            raise raised
        ctx.carry((ctx.carried or 0) + 1)

    for name in names or ("task",):
        app.periodic(every=every, name=name, retry=Retry(0))(count)
    return app


def the_loop(stage: Stage) -> Loop:
    return stage.app.loop("task")


async def nothing(stage: Stage) -> None: ...


async def pause(stage: Stage) -> None:
    await stage.verbs.pause(the_loop(stage), "stocktaking")


async def lose(stage: Stage) -> None:
    stage.expects_none(TASK)
    await stage.lose(TASK)


async def delete(stage: Stage, *queues: str) -> None:
    for queue in queues or [queue.name for queue in stage.app.topology().queues]:
        await stage.broker.delete(queue)


async def delete_roster(stage: Stage) -> None:
    await delete(stage, stage.app.names.roster, stage.app.names.snapshots)
