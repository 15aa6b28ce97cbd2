"""Loops that write down each of their runs. What they are is told by the environment."""

import asyncio
import json
import os
import signal
import time
from pathlib import Path

from scheduler import Context, Scheduler
from scheduler.events import Event, RunEvent, TicksSkipped
from scheduler.tasks.registration import schedule_of
from scheduler.tasks.tasks import SUPERVISION

app = Scheduler(os.environ["NAMESPACE"])
RECORD = Path(os.environ["RECORD"])
TAKES = float(os.environ.get("TAKES", "0.01"))


def note(**facts: object) -> None:
    """Append a line; O_APPEND keeps the lines of many processes whole."""
    with RECORD.open("a") as file:
        file.write(json.dumps({"at": time.monotonic(), "pid": os.getpid()} | facts) + "\n")


async def recorded(ctx: Context) -> None:
    run = {"loop": ctx.loop, "seq": ctx.seq, "attempt": ctx.attempt}
    due = {"scheduled_at": ctx.scheduled_at.timestamp(), "started_at": ctx.started_at.timestamp()}
    note(what="start", redelivered=ctx.redelivered, **run, **due)
    try:
        await asyncio.sleep(TAKES)
    except asyncio.CancelledError:
        note(what="cancelled", **run)
        raise
    note(what="end", **run)


for number in range(int(os.environ.get("LOOPS", "1"))):
    app.periodic(
        schedule=schedule_of(
            every=os.environ.get("EVERY", "1s"), mode=os.environ.get("MODE", "fixed_delay")
        ),
        name=f"loop{number}",
        timeout=os.environ.get("TIMEOUT", "10m"),
    )(recorded)


@app.listen
def die(event: Event) -> None:
    """Kill this process, as `kill -9` does, at the event, and seq if any, that KILL_AT names."""
    moment, _, seq = os.environ.get("KILL_AT", "").partition("@")
    if type(event).__name__ != moment or not isinstance(event, RunEvent):
        return
    if event.loop != SUPERVISION and seq in ("", str(event.seq)):
        note(what="killed", seq=event.seq)
        os.kill(os.getpid(), signal.SIGKILL)


@app.listen
def tell(event: Event) -> None:
    if isinstance(event, TicksSkipped):
        note(what="skipped", loop=str(event.loop), count=event.count)
