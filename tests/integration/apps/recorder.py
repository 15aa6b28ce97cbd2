"""Loops that write down each of their runs. What they are is told by the environment."""

import asyncio
import os
import time
from typing import Any

from scheduler import Context, Retry, Scheduler
from tests.integration.record import die_at, note

app = Scheduler(os.environ["NAMESPACE"])
app.listen(die_at)
TAKES = float(os.environ.get("TAKES", "0.01"))


async def recorded(ctx: Context) -> None:
    run = {"loop": ctx.loop, "seq": ctx.seq, "attempt": ctx.attempt}
    due = {"scheduled_at": ctx.scheduled_at.timestamp(), "started_at": ctx.started_at.timestamp()}
    note("start", redelivered=ctx.redelivered, **run, **due)
    try:
        await asyncio.sleep(TAKES)
    except asyncio.CancelledError:
        note("cancelled", **run)
        raise
    note("end", **run)


def blocking(ctx: Context) -> None:
    run = {"seq": ctx.seq, "attempt": ctx.attempt}
    note("start", **run)
    time.sleep(TAKES)
    note("end", **run)


every: Any = {"every": os.environ.get("EVERY", "1s"), "timeout": "1h"}
if "SHARDS" in os.environ:
    app.task(name="poll", shards=int(os.environ["SHARDS"]))(recorded)
elif "EXECUTOR" in os.environ:
    every |= {"executor": os.environ["EXECUTOR"], "retry": Retry(5, delays=["10ms"])}
    app.periodic(name="loop0", **every)(blocking)
else:
    for number in range(int(os.environ.get("LOOPS", "1"))):
        app.periodic(name=f"loop{number}", **every)(recorded)
