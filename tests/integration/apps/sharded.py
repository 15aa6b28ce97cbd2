"""A task with as many shards as the environment says, whose keyed loops write down their runs."""

import asyncio
import json
import os
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from scheduler import Context, Scheduler
from scheduler.brokers.amqp.broker import AmqpBroker

app = Scheduler(os.environ["NAMESPACE"])
RECORD = Path(os.environ["RECORD"])
left = int(os.environ.get("KILL_AFTER", "-1"))


def note(**facts: object) -> None:
    """Append a line; O_APPEND keeps the lines of many processes whole."""
    with RECORD.open("a") as file:
        file.write(json.dumps({"at": time.monotonic(), "pid": os.getpid()} | facts) + "\n")


@app.task(shards=int(os.environ.get("SHARDS", "1")))
async def poll(ctx: Context) -> None:
    note(what="start", loop=ctx.loop, seq=ctx.seq, redelivered=ctx.redelivered)
    await asyncio.sleep(0.01)
    note(what="end", loop=ctx.loop, seq=ctx.seq)


def deadly(step: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Kill this process, as `kill -9` does, once it has done so many steps."""

    async def done(*args: Any, **kwargs: Any) -> Any:
        global left
        result = await step(*args, **kwargs)
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    return done


if left > 0:
    for name in "declare", "unbind", "publish", "delete":
        setattr(AmqpBroker, name, deadly(getattr(AmqpBroker, name)))
