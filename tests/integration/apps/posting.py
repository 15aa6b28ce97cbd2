"""A program that sends numbered messages, and goes on where it was when it was killed.

`python posting.py SENT COUNT` appends what became of each to the file SENT: its number, and
confirmed, stored or raised. The task appends each run to the file RUNS.
"""

import asyncio
import os
import sys
from collections.abc import Iterable
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

from scheduler import Context, NotSent, Scheduler
from scheduler.queues import outbox

outbox.CLAIM = timedelta(seconds=10)  # what a process that was killed has claimed is waited for
app = Scheduler(os.environ["NAMESPACE"], fallback=os.environ.get("FALLBACK"))


@app.task(concurrency=100)
async def work(ctx: Context, n: int) -> None:
    append(Path(os.environ["RUNS"]), f"{n} {ctx.message.message_id}")


def append(path: Path, line: str) -> None:
    with path.open("a") as file:
        file.write(f"{line}\n")


def left_of(sent: Path, count: int) -> list[int]:
    done = {int(line.split()[0]) for line in sent.read_text().splitlines()} if sent.exists() else ()
    return [n for n in range(count) if n not in done]


async def send(sent: Path, numbers: Iterable[int]) -> None:
    left = iter(numbers)

    async def send_some() -> None:
        for n in left:
            try:
                sending = work.options(message_id=f"m-{n}", deadline="2s").send(n)
                became = "stored" if (await sending).stored else "confirmed"
            except NotSent:
                became = "raised"
            append(sent, f"{n} {became}")
            await asyncio.sleep(float(os.environ["PAUSE"]))

    # With a fallback, a program may connect while the broker is away.
    async with app if app.fallback else nullcontext():
        await asyncio.gather(*(send_some() for _ in range(int(os.environ["SIDE_BY_SIDE"]))))


if __name__ == "__main__":
    file = Path(sys.argv[1])
    asyncio.run(send(file, left_of(file, int(sys.argv[2]))))
