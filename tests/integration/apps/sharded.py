"""A task with as many shards as the environment says, whose keyed loops write down their runs."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any

from scheduler import Context, Scheduler
from scheduler.brokers.amqp.broker import AmqpBroker
from tests.integration.record import die, note

app = Scheduler(os.environ["NAMESPACE"])
left = int(os.environ.get("KILL_AFTER", "-1"))


@app.task(shards=int(os.environ.get("SHARDS", "1")))
async def poll(ctx: Context) -> None:
    note("start", loop=ctx.loop, seq=ctx.seq, redelivered=ctx.redelivered)
    await asyncio.sleep(0.01)
    note("end", loop=ctx.loop, seq=ctx.seq)


def deadly(step: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Kill this process, as `kill -9` does, once it has done so many steps."""

    async def done(*args: Any, **kwargs: Any) -> Any:
        global left
        result = await step(*args, **kwargs)
        left -= 1
        if left == 0:
            die()
        return result

    return done


if left > 0:
    for name in "declare", "unbind", "publish", "delete":
        setattr(AmqpBroker, name, deadly(getattr(AmqpBroker, name)))
