"""Loops that run often, for `scheduler dev`."""

import logging

from scheduler import Context, Retry, Scheduler

app = Scheduler("quick")


@app.periodic(every="200ms")
async def beat(ctx: Context) -> None:
    count = (ctx.carried or 0) + 1
    logging.info("beat %d", count)
    ctx.carry(count)


@app.periodic(every="200ms", retry=Retry(0), after_failure="pause")
async def fail() -> None:
    raise ValueError("sold out")
