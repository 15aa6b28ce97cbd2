"""What may be done to the loop `task`."""

from collections.abc import Awaitable, Callable
from typing import Any

from scheduler.protocol.tokens import LoopId
from scheduler.tasks.loops import Loop
from tests.stage import Stage

TASK = LoopId("task")
Deed = Callable[[Stage], Awaitable[Any]]


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
