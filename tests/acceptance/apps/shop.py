"""The app of most tests. Its namespace comes from the environment; its loops run when triggered."""

import asyncio
import gc
import logging
import os
import sys

from scheduler import Context, Retry, Scheduler

app = Scheduler(os.environ["SHOP_NAMESPACE"])


@app.periodic(every="1h")
async def report(ctx: Context, city: str = "Bonn") -> None:
    assert not any(each is app for each in gc.get_objects()), "collections spare what is imported"
    logging.info("reported %s", city)


@app.periodic(every="1h", retry=Retry(0))
async def sell() -> None:
    raise ValueError("sold out")


@app.periodic(cron="0 9 * * MON-FRI", tz="Europe/Berlin", timeout="1m")
async def wait_for_input() -> None:
    arrived = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin, arrived.set)
    logging.info("waiting for input")
    await arrived.wait()
    asyncio.get_running_loop().remove_reader(sys.stdin)
    logging.info("got input")
