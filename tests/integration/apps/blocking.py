"""A loop whose function blocks, in a thread or a process; each step is written down."""

import os
import time

from scheduler import Context, Retry, Scheduler
from tests.integration.record import note

app = Scheduler(os.environ["NAMESPACE"])


@app.periodic(
    every="100ms",
    name="loop0",
    timeout="1h",
    retry=Retry(5, initial="10ms", maximum="10ms"),
    executor="process" if "PROCESS" in os.environ else None,
)
def work(ctx: Context) -> None:
    note("start", seq=ctx.seq, attempt=ctx.attempt)
    time.sleep(float(os.environ.get("TAKES", "0.01")))
    note("end", seq=ctx.seq, attempt=ctx.attempt)
