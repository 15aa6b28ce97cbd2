"""What is rolled out: loops and calls that write down their runs, and a call that takes long."""

import asyncio

from scheduler import Context
from tests.integration.apps.recorder import app, note


@app.task(concurrency=20)
async def work(ctx: Context, n: int) -> None:
    note(what="work", n=n, redelivered=ctx.redelivered)


@app.task(timeout="1m")
async def plod(ctx: Context, seconds: float) -> None:
    note(what="plodding", redelivered=ctx.redelivered)
    await asyncio.sleep(seconds)
    note(what="plodded")
