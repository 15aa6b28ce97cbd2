"""A task with as many shards as the environment says, whose keyed loops write down their runs."""

import asyncio
import os

from scheduler import Context, Scheduler
from tests.integration.record import note

app = Scheduler(os.environ["NAMESPACE"])


@app.task(shards=int(os.environ.get("SHARDS", "1")))
async def poll(ctx: Context) -> None:
    note("start", loop=ctx.loop, seq=ctx.seq, redelivered=ctx.redelivered)
    await asyncio.sleep(0.01)
    note("end", loop=ctx.loop, seq=ctx.seq)
