"""Schedules as data: who gets a digest, and when, is in a file beside the code.

    export SCHEDULER_BROKER_URL=amqp://guest:guest@localhost:5672/
    scheduler seed examples/digests.py:app
    scheduler run examples/digests.py:app

    scheduler sync examples/digests.py:app examples/digests.toml

Each table of examples/digests.toml is a loop now. Change the file, and say `sync` again: loops are
started, rescheduled and stopped, and those that stay as they are go on undisturbed. Processors need
no restart. The schedule of a loop of the code is changed without a release, until it is cleared:

    scheduler schedule set examples/digests.py:app count --every 5s
    scheduler schedule clear examples/digests.py:app count
"""

import logging

from scheduler import Context, Scheduler

app = Scheduler("digests")


@app.task
async def send_digest(ctx: Context, topic: str) -> None:
    logging.info("a digest of %s for %s", topic, ctx.key)


@app.periodic(every="1m")
async def count(ctx: Context) -> None:
    logging.info("%d digests are ordered", len(await send_digest.list()))
