"""A loop whose function blocks, in a thread or a process; each step is written down."""

import json
import os
import time
from pathlib import Path

from scheduler import Context, Retry, Scheduler

RECORD = Path(os.environ["RECORD"])


def note(what: str, **facts: object) -> None:
    """Append a line; O_APPEND keeps the lines of many processes whole."""
    with RECORD.open("a") as file:
        file.write(json.dumps({"what": what, "pid": os.getpid(), **facts}) + "\n")


app = Scheduler(os.environ["NAMESPACE"])


@app.periodic(
    every="100ms",
    name="loop0",
    timeout=os.environ.get("TIMEOUT", "300ms"),
    retry=Retry(5, initial="10ms", maximum="10ms"),
    executor="process" if "PROCESS" in os.environ else None,
)
def work(ctx: Context) -> None:
    note("start", seq=ctx.seq, attempt=ctx.attempt)
    time.sleep(float(os.environ.get("TAKES", "0.01")))
    note("end", seq=ctx.seq, attempt=ctx.attempt)
