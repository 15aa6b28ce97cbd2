"""One-off tasks that write down each of their runs. What they are is told by the environment."""

import json
import os
import signal
from pathlib import Path

from scheduler import Context, Retry, Scheduler
from scheduler.events import Event, MessageParked, RunEvent

app = Scheduler(os.environ["NAMESPACE"])
app.module = "shop"  # as it is called by those that seed it
RECORD = Path(os.environ["RECORD"])


def note(**facts: object) -> None:
    """Append a line; O_APPEND keeps the lines of many processes whole."""
    with RECORD.open("a") as file:
        file.write(json.dumps({"pid": os.getpid(), **facts}) + "\n")


@app.task(concurrency=200)
async def work(ctx: Context, n: int) -> None:
    due, started = ctx.scheduled_at.timestamp(), ctx.started_at.timestamp()
    note(what="work", n=n, late=started - due, redelivered=ctx.redelivered)


@app.task(retry=Retry(2, delays=["100ms"], jitter=0))
async def fails(ctx: Context, n: int) -> None:
    note(what="fails", n=n, attempt=ctx.attempt)
    raise ValueError(f"boom {n}")


@app.listen
def die(event: Event) -> None:
    """Kill this process, as `kill -9` does, at the event that KILL_AT names, and its attempt."""
    moment, _, attempt = os.environ.get("KILL_AT", "").partition("@")
    if type(event).__name__ != moment:
        return
    if isinstance(event, MessageParked) or (
        isinstance(event, RunEvent) and event.attempt == int(attempt)
    ):
        note(what="killed")
        os.kill(os.getpid(), signal.SIGKILL)
