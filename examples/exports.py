"""Long runs that tell how far they have come; one that does not get on is ended.

    scheduler dev examples/exports.py:app

Each export is a message, and says which page it is at. A loop looks after them: it asks what runs,
in all processors, and ends the export that is still where it was the last time:

    01:20:49.904 INFO    look_after #29  Moebius, page 1 of 4
    01:20:49.904 INFO    look_after #29  Ada, page 1 of 10
    01:20:50.905 INFO    look_after #30  Moebius, page 3 of 4
    01:20:50.905 INFO    look_after #30  Ada, page 4 of 10
    01:20:51.909 ERROR   export 23a3fa7a  failed in 2138 ms, attempt 1: RunCancelled: ...
    01:20:51.910 WARNING look_after #31  Moebius, page 3 of 4: escalated
    01:20:51.910 INFO    look_after #31  Ada, page 8 of 10
    01:20:52.787 INFO    export f52da91f  exported Ada

With RabbitMQ an operator does the same by hand, with `scheduler ps` and `scheduler cancel`.
"""

import asyncio
import logging

from scheduler import Context, Scheduler

app = Scheduler("exports")


@app.task(timeout="1h")
async def export(ctx: Context, customer: str, pages: int) -> None:
    for page in range(pages):
        ctx.progress(page / pages, f"{customer}, page {page + 1} of {pages}")
        await fetch(customer, page)
    logging.info("exported %s", customer)


async def fetch(customer: str, page: int) -> None:
    has_no_end = customer == "Moebius" and page == 2
    await asyncio.sleep(3600 if has_no_end else 0.3)


@app.periodic(every="10s")
async def order(ctx: Context) -> None:
    await export.send("Ada", pages=10)
    await export.send("Moebius", pages=4)


@app.periodic(every="1s")
async def look_after(ctx: Context) -> None:
    before: dict[str, str] = ctx.carried or {}
    running = await app.running()
    now = {run.id: run.text for run in running.runs if run.task == "export"}
    for message_id, text in now.items():
        if before.get(message_id) == text:
            report = await app.cancel(message_id, escalate=True)
            logging.warning("%s: %s", text, report.ending)
        else:
            logging.info(text)
    ctx.carry(now)
