"""A loop whose runs share what a lifespan opens; each step is written down."""

import asyncio
import json
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from scheduler import Context, Scheduler
from scheduler.events import RunSettled

RECORD = Path(os.environ["RECORD"])


def note(what: str, **facts: object) -> None:
    """Append a line; O_APPEND keeps the lines of many processes whole."""
    with RECORD.open("a") as file:
        file.write(json.dumps({"what": what, "pid": os.getpid()} | facts) + "\n")


def connect() -> None:
    if "BROKEN" in os.environ:
        raise ConnectionRefusedError("no database")


@asynccontextmanager
async def open_pool(app: Scheduler) -> AsyncGenerator[str]:
    note("opening")
    connect()
    await asyncio.sleep(0.1)
    note("open")
    yield f"pool of {os.getpid()}"
    await asyncio.sleep(0.1)
    note("closed")


app = Scheduler(os.environ["NAMESPACE"], lifespan=open_pool)


@app.periodic(every="100ms", name="loop0")
async def work(ctx: Context[str]) -> None:
    note("start", state=ctx.state)
    await asyncio.sleep(float(os.environ.get("TAKES", "0.01")))
    note("end", state=ctx.state)


@app.listen
def settled(event: object) -> None:
    if isinstance(event, RunSettled) and event.loop.task == "loop0":
        note("settled")
