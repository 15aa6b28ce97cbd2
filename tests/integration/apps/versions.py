"""Two versions of one app: what a deploy changes. Which one it is, the environment tells."""

import os

from scheduler import Context, Scheduler
from tests.integration.record import note

app = Scheduler(os.environ["NAMESPACE"])
VERSION = os.environ["VERSION"]
IS_NEW = VERSION == "new"


def tell(ctx: Context, **facts: object) -> None:
    """Write down a run."""
    note(ctx.loop, version=VERSION, seq=ctx.seq, **facts)


@app.periodic(every="500ms")
async def kept(ctx: Context) -> None:
    ctx.carry((ctx.carried or 0) + 1)
    tell(ctx, carried=ctx.carried)


@app.periodic(every="300ms" if IS_NEW else "1h")
async def quickened(ctx: Context) -> None:
    tell(ctx)


if IS_NEW:

    @app.periodic(cron="* * * * * *", tz="Asia/Tokyo", name="moved")
    async def moved_to_tokyo(ctx: Context) -> None:
        tell(ctx)

    @app.periodic(every="300ms", args={"size": 3}, name="resized")
    async def resized_by_number(ctx: Context, size: int) -> None:
        tell(ctx, size=size)

    @app.periodic(every="300ms")
    async def added(ctx: Context) -> None:
        tell(ctx)

else:

    @app.periodic(cron="0 4 * * *", tz="Europe/Berlin", name="moved")
    async def moved_from_berlin(ctx: Context) -> None:
        tell(ctx)

    @app.periodic(every="300ms", args={"size": "small"}, name="resized")
    async def resized_by_name(ctx: Context, size: str) -> None:
        tell(ctx, size=size)

    @app.periodic(every="300ms")
    async def removed(ctx: Context) -> None:
        tell(ctx)
