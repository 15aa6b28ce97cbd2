"""One-off tasks that write down each of their runs. What they are is told by the environment."""

import os

from scheduler import Context, Retry, Scheduler
from scheduler.events import Event, MessageParked, RunEvent
from tests.integration.record import die, note

app = Scheduler(os.environ["NAMESPACE"])
app.module = "shop"  # as it is called by those that seed it


@app.task(concurrency=200)
async def work(ctx: Context, n: int) -> None:
    due, started = ctx.scheduled_at.timestamp(), ctx.started_at.timestamp()
    note("work", n=n, late=started - due, redelivered=ctx.redelivered)


@app.task(retry=Retry(2, delays=["100ms"], jitter=0))
async def fails(ctx: Context, n: int) -> None:
    note("fails", n=n, attempt=ctx.attempt)
    raise ValueError(f"boom {n}")


@app.listen
def die_at(event: Event) -> None:
    """Kill this process, as `kill -9` does, at the event that KILL_AT names, and its attempt."""
    moment, _, attempt = os.environ.get("KILL_AT", "").partition("@")
    if type(event).__name__ != moment:
        return
    if isinstance(event, MessageParked) or (
        isinstance(event, RunEvent) and event.attempt == int(attempt)
    ):
        note("killed")
        die()
