"""An app that tells what the garbage collector of its processor is spared."""

import asyncio
import gc
import logging
import os

from scheduler import Scheduler

app = Scheduler(os.environ["SHOP_NAMESPACE"])


@app.periodic(every="200ms")
async def tell() -> None:
    await asyncio.sleep(0)
    logging.info("spared: %s", gc.get_freeze_count() > 10_000)
