"""A reminder of each appointment, which moves when the appointment does, and goes with it.

Run it with no broker at all:

    scheduler dev examples/appointments.py:app

An appointment is made, told of twice, and moved. However often that happens, there is one reminder
of its name:

    00:57:49.505 INFO    front_desk #0  reminder of Ann: created
    00:57:52.506 INFO    front_desk #1  reminder of Ann: unchanged
    00:57:55.509 INFO    front_desk #2  reminder of Ann: rescheduled
    00:57:56.504 INFO    remind.Ann #0  Ann, your appointment is in a minute
"""

import logging
from datetime import datetime, timedelta

from scheduler import Context, Scheduler

app = Scheduler("appointments")


@app.task()
async def remind(ctx: Context, minutes: int) -> None:
    logging.info("%s, your appointment is in %s", ctx.key, "a minute" if minutes == 1 else minutes)


@app.periodic(every="3s")
async def front_desk(ctx: Context) -> None:
    made_at = datetime.fromisoformat(ctx.carried or ctx.started_at.isoformat())
    ctx.carry(made_at.isoformat())
    match ctx.seq:
        case 0 | 1:  # told twice: somebody has pressed the button again
            at = made_at + timedelta(seconds=20)
        case 2:
            at = made_at + timedelta(seconds=7)
        case _:
            return
    did = await remind.once("Ann", at=at, args={"minutes": 1})
    logging.info("reminder of Ann: %s", did)
