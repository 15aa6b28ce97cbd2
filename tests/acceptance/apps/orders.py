"""A task that is sent what somebody else publishes, tells all that it sees of it, and fails."""

import json
import logging
import os

from scheduler import Context, Retry, Scheduler

NAMESPACE = os.environ["SHOP_NAMESPACE"]
app = Scheduler(NAMESPACE)


@app.task(
    subscribe=[(f"{NAMESPACE}.orders", "order.#", "topic")],
    retry=Retry(2, delays=["100ms"], jitter=0),
)
async def audit(ctx: Context, order: bytes) -> None:
    message = ctx.message
    seen = {
        "attempt": ctx.attempt,
        "body": order.decode(),
        "headers": dict(message.headers),
        "message_id": message.message_id,
        "correlation_id": message.correlation_id,
        "type": message.type,
        "routing_key": ctx.routing_key,
    }
    logging.info("saw %s", json.dumps(seen))
    raise ValueError("sold out")
