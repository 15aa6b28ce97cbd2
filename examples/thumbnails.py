"""Functions that block: a loop and a task that are plain `def`, each run in a thread.

    scheduler dev examples/thumbnails.py:app

The loop finds new pictures and sends a message for each. Shrinking one keeps a core busy for a
moment; the heartbeat beside it stays on time, as nothing holds up the event loop.
"""

import hashlib
import logging

from scheduler import Context, Scheduler

app = Scheduler("thumbnails")


@app.periodic(every="1s")
def find_pictures(ctx: Context) -> None:
    seen: int = ctx.carried or 0
    for number in range(seen, seen + 2):
        shrink.blocking.send(f"picture-{number}.jpg")
    ctx.carry(seen + 2)


@app.task(timeout="10s")
def shrink(name: str) -> None:
    digest = hashlib.pbkdf2_hmac("sha256", name.encode(), b"salt", 200_000)  # some work
    logging.info("shrunk %s to %s", name, digest.hex()[:8])


@app.periodic(every="100ms", mode="fixed_rate")
async def heartbeat(ctx: Context) -> None:
    late = ctx.started_at - ctx.scheduled_at
    if late.total_seconds() > 0.05:
        logging.warning("late by %d ms", late.total_seconds() * 1000)
