"""Loops of all sorts: fast and slow ones, one that fails, one that can be paused by many tests."""

import os
from datetime import timedelta

from scheduler import Context, Retry, Scheduler
from scheduler.dashboard import routes

BEAT = timedelta(seconds=float(os.environ.get("CLINIC_BEAT_S", "1")))
routes.PACE_S = BEAT.total_seconds()  # of live pages
app = Scheduler(os.environ.get("CLINIC_NAMESPACE", "clinic"))


@app.periodic(every=BEAT)
async def pulse(ctx: Context) -> None:
    ctx.carry({"beats": ctx.seq})


for number in range(int(os.environ.get("CLINIC_WARDS", "0"))):

    @app.periodic(name=f"ward-{number}", every=BEAT)
    async def ward() -> None: ...


for number in range(int(os.environ.get("CLINIC_VISITS", "0"))):

    @app.periodic(name=f"visit-{number}", every="1h")
    async def visit() -> None: ...


@app.periodic(every=2 * BEAT, retry=Retry(0))
async def lab() -> None:
    raise RuntimeError("the centrifuge is out of balance")


@app.periodic(cron="30 2 * * *", tz="Europe/Berlin", args={"ward": "north"})
async def night_round(ward: str) -> None: ...


@app.periodic(every="1h")
async def rounds() -> None: ...


@app.periodic(every="1h")
async def drill() -> None: ...


@app.task(retry=Retry(0))
async def letter(to: str) -> None:
    if "@" not in to:
        raise ValueError(f"no address: {to!r}")


@app.periodic(every="1h")
async def post() -> None:
    for to in ("anna", "bert", "carla"):
        await letter.send(to)
