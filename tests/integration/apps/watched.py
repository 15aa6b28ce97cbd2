"""Loops for a processor that is watched from outside: one that beats, others to be triggered."""

import os
import time

from scheduler import Retry, Scheduler

app = Scheduler(os.environ["NAMESPACE"])


@app.periodic(every="600ms")
async def beat() -> None: ...


@app.periodic(every="30d")
async def block() -> None:
    time.sleep(60)  # noqa: ASYNC251 - what nobody should do


@app.periodic(every="30d", retry=Retry(1, delays=["1s"], jitter=0))
async def fail() -> None:
    raise ValueError("no")
