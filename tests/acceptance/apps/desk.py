"""Tasks whose messages were parked. Nobody works: what is replayed waits in its queue."""

import os

from scheduler import Scheduler

NAMESPACE = os.environ["SHOP_NAMESPACE"]
app = Scheduler(NAMESPACE)


@app.task()
async def sms(phone: str, times: int = 1) -> None: ...


@app.task()
async def mail(to: str) -> None: ...


@app.task(subscribe=[(f"{NAMESPACE}.orders", "order.#", "topic")])
async def audit(order: bytes) -> None: ...
