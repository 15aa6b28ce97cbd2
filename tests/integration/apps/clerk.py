"""One-off tasks that write down each of their runs. What they are is told by the environment."""

import os

from scheduler import Context, Retry, Scheduler
from tests.integration.record import die_at, note

app = Scheduler(os.environ["NAMESPACE"])
app.module = "shop"  # as it is called by those that seed it
app.listen(die_at)


@app.task(concurrency=200)
async def work(ctx: Context, n: int) -> None:
    due, started = ctx.scheduled_at.timestamp(), ctx.started_at.timestamp()
    note("work", n=n, late=started - due, redelivered=ctx.redelivered)


@app.task(retry=Retry(2, delays=["100ms"], jitter=0))
async def fails(ctx: Context, n: int) -> None:
    note("fails", n=n, attempt=ctx.attempt)
    raise ValueError(f"boom {n}")
