"""A loop and a task that write down each of their runs, before they are renamed or after."""

import os

from scheduler import Context, Retry, Scheduler
from tests.integration.record import note

app = Scheduler(os.environ["NAMESPACE"])
IS_NEW = os.environ.get("VERSION") == "new"


@app.periodic(
    every="100ms", name="counter" if IS_NEW else "count", aliases=["count"] if IS_NEW else []
)
async def count(ctx: Context) -> None:
    carried = ctx.carried or 0
    note("tick", task=ctx.task, seq=ctx.seq, carried=carried)
    ctx.carry(carried + 1)


@app.task(
    name="render" if IS_NEW else "render_pdf",
    aliases=["render_pdf"] if IS_NEW else [],
    retry=Retry(0),
)
async def render(ctx: Context, page: int) -> None:
    note("call", task=ctx.task, page=page)
    if page < 0:
        raise ValueError(f"no page {page}")
