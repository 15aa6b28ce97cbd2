"""A loop whose lifespan cannot be opened."""

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from scheduler import Scheduler


def connect() -> None:
    raise ConnectionRefusedError("no database")


@asynccontextmanager
async def open_pool(app: Scheduler) -> AsyncGenerator[None]:
    connect()
    yield


app = Scheduler(os.environ["NAMESPACE"], lifespan=open_pool)


@app.periodic(every="100ms", name="loop0")
async def work() -> None: ...
