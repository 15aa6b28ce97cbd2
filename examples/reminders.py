"""Messages for later: each appointment sends its own reminders.

Run it with no broker at all:

    scheduler dev examples/reminders.py:app

Every three seconds an appointment is made. Each of them sends two messages at once: one to
arrive after ten seconds, one at a moment. Until then they wait in the broker, not in a processor.
The longer one does not hold up the shorter one that was sent after it:

    12:23:50.502 INFO    book #0  appointment 1 made
    12:23:57.506 INFO    remind 2917396e  appointment 1 is soon
    12:24:00.506 INFO    remind a5ecbb10  appointment 1 is now
"""

import logging
from datetime import timedelta

from scheduler import Context, Scheduler

app = Scheduler("reminders")


@app.task()
async def remind(text: str) -> None:
    logging.info(text)


@app.periodic(every="3s")
async def book(ctx: Context) -> None:
    name = f"appointment {ctx.seq + 1}"
    logging.info("%s made", name)
    await remind.send_later("10s", f"{name} is now")
    await remind.send_at(ctx.started_at + timedelta(seconds=7), f"{name} is soon")
