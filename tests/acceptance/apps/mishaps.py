"""A task that fails, in a zone of its own."""

import os

from scheduler import Retry, Scheduler

app = Scheduler(os.environ["SHOP_NAMESPACE"])


@app.periodic(cron="0 9 * * *", tz="Asia/Kolkata", retry=Retry(0))
async def fail() -> None:
    raise ValueError("sold out")
