"""A program that sends messages, and goes on where it was when it was killed.

`python -m tests.integration.apps.posting NAME COUNT` notes what became of each: confirmed, stored
or raised. It sends the last quarter when the file OUTAGE is there. The task notes each run.
"""

import asyncio
import os
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

from scheduler import Context, NotSent, Scheduler
from scheduler.queues import outbox
from tests.integration.record import note, notes

outbox.CLAIM = timedelta(seconds=10)  # what a process that was killed has claimed is waited for
app = Scheduler(os.environ["NAMESPACE"], fallback=os.environ.get("FALLBACK"))


@app.task(concurrency=100)
async def work(ctx: Context, name: str) -> None:
    note("ran", name=name, message_id=ctx.message.message_id)


def wait_for_outage() -> None:
    while not Path(os.environ["OUTAGE"]).exists():
        time.sleep(0.1)


async def send(names: Iterator[str], held: Collection[str]) -> None:
    async def send_some() -> None:
        for name in names:
            if name in held:
                await asyncio.to_thread(wait_for_outage)
            try:
                sending = work.options(message_id=name, deadline="2s").send(name)
                became = "stored" if (await sending).stored else "confirmed"
            except NotSent:
                became = "raised"
            note("sent", name=name, became=became)
            await asyncio.sleep(float(os.environ["PAUSE"]))

    # With a fallback, a program may connect while the broker is away.
    async with app if app.fallback else nullcontext():
        await asyncio.gather(*(send_some() for _ in range(int(os.environ["SIDE_BY_SIDE"]))))


if __name__ == "__main__":
    done = {each["name"] for each in notes() if each["what"] == "sent"}
    every = [f"{sys.argv[1]}-{number}" for number in range(int(sys.argv[2]))]
    held = every[len(every) * 3 // 4 :]
    asyncio.run(send((name for name in every if name not in done), held))
