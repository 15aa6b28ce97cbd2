"""A loop and a task that write down each of their runs, before they are renamed or after."""

import json
import os
import signal
from pathlib import Path

from scheduler import Context, Retry, Scheduler
from scheduler.events import Event, MessageConfirmed

app = Scheduler(os.environ["NAMESPACE"])
RECORD = Path(os.environ["RECORD"])
IS_NEW = os.environ.get("VERSION") == "new"
left = int(os.environ.get("KILL_AFTER", "-1"))


def note(**facts: object) -> None:
    """Append a line; O_APPEND keeps the lines of many processes whole."""
    with RECORD.open("a") as file:
        file.write(json.dumps(facts) + "\n")


@app.periodic(
    every="100ms", name="counter" if IS_NEW else "count", aliases=["count"] if IS_NEW else []
)
async def count(ctx: Context) -> None:
    carried = ctx.carried or 0
    note(what="tick", task=ctx.task, seq=ctx.seq, carried=carried)
    ctx.carry(carried + 1)


@app.task(
    name="render" if IS_NEW else "render_pdf",
    aliases=["render_pdf"] if IS_NEW else [],
    retry=Retry(0),
)
async def render(ctx: Context, page: int) -> None:
    note(what="call", task=ctx.task, page=page)
    if page < 0:
        raise ValueError(f"no page {page}")


@app.listen
def die(event: Event) -> None:
    """Kill this process, as `kill -9` does, when the broker has confirmed so many messages."""
    global left
    if isinstance(event, MessageConfirmed):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
