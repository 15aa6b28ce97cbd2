"""Two versions of one app: what a deploy changes. Which one it is, the environment tells."""

import json
import os
from pathlib import Path

from scheduler import Context, Scheduler

app = Scheduler(os.environ["NAMESPACE"])
RECORD = Path(os.environ["RECORD"])
VERSION = os.environ["VERSION"]
IS_NEW = VERSION == "new"


def write(line: dict[str, object]) -> None:
    """Append a line; O_APPEND keeps the lines of many processes whole."""
    with RECORD.open("a") as file:
        file.write(json.dumps(line) + "\n")


def note(ctx: Context, **facts: object) -> None:
    """Write down a run."""
    write({"what": ctx.loop, "version": VERSION, "seq": ctx.seq, **facts})


@app.periodic(every="500ms")
async def kept(ctx: Context) -> None:
    ctx.carry((ctx.carried or 0) + 1)
    note(ctx, carried=ctx.carried)


@app.periodic(every="300ms" if IS_NEW else "1h")
async def quickened(ctx: Context) -> None:
    note(ctx)


if IS_NEW:

    @app.periodic(cron="* * * * * *", tz="Asia/Tokyo", name="moved")
    async def moved_to_tokyo(ctx: Context) -> None:
        note(ctx)

    @app.periodic(every="300ms", args={"size": 3}, name="resized")
    async def resized_by_number(ctx: Context, size: int) -> None:
        note(ctx, size=size)

    @app.periodic(every="300ms")
    async def added(ctx: Context) -> None:
        note(ctx)

else:

    @app.periodic(cron="0 4 * * *", tz="Europe/Berlin", name="moved")
    async def moved_from_berlin(ctx: Context) -> None:
        note(ctx)

    @app.periodic(every="300ms", args={"size": "small"}, name="resized")
    async def resized_by_name(ctx: Context, size: str) -> None:
        note(ctx, size=size)

    @app.periodic(every="300ms")
    async def removed(ctx: Context) -> None:
        note(ctx)
