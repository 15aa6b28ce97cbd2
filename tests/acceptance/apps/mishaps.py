"""Tasks that something happens to: they are triggered, but for the one that beats."""

import logging
import os
import time

from scheduler import Context, Retry, Scheduler

app = Scheduler(os.environ["SHOP_NAMESPACE"])


@app.periodic(every="300ms")
async def beat(ctx: Context) -> None:
    beats = (ctx.carried or 0) + 1
    logging.info("beat %d", beats)
    ctx.carry(beats)


@app.periodic(every="1h")
async def block() -> None:
    time.sleep(2)  # noqa: ASYNC251 - what no task should do


@app.periodic(cron="0 9 * * *", tz="Asia/Kolkata", retry=Retry(0))
async def fail() -> None:
    raise ValueError("sold out")
