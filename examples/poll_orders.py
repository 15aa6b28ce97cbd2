"""A real job on real input: poll a web shop for new orders, with a cursor that travels.

Start the shop, and the loop on the embedded broker, in two terminals:

    python examples/orders_api.py
    scheduler dev examples/poll_orders.py:app

You see the new orders every two seconds. Now break the shop, and heal it after ten seconds:

    curl -X POST http://127.0.0.1:8085/fail
    curl -X POST http://127.0.0.1:8085/heal

You see each tick tried three times, then parked. The loop goes on, and as soon as the shop is well
it takes up at the order where it was: a failed run does not move the cursor.

On RabbitMQ (see heartbeat.py) the parked ticks can be looked at and run again:

    scheduler failed list examples/poll_orders.py:app
    scheduler failed replay examples/poll_orders.py:app --all

A replayed tick has the cursor it had when it failed, so it meets orders that were stored since:
storing is idempotent, as every task that runs *at least* once should be.
"""

import asyncio
import json
import logging
import os
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from scheduler import Context, Retry, Scheduler

SHOP = os.environ.get("SHOP_URL", "http://127.0.0.1:8085")
STORE = Path(os.environ.get("ORDERS_DIR", "/tmp/orders"))

app = Scheduler("shop")


@app.periodic(every="2s", retry=Retry(2, delays=["500ms", "1s"], jitter=0), timeout="10s")
async def poll_orders(ctx: Context) -> None:
    cursor = ctx.carried or 0
    for order in await asyncio.to_thread(fetch_orders, cursor):
        is_new = store(order)
        logging.info(
            "order %d: %s%s", order["number"], order["item"], "" if is_new else " (known already)"
        )
        cursor = order["number"]
    ctx.carry(cursor)


def fetch_orders(after: int) -> list[dict[str, Any]]:
    with urlopen(f"{SHOP}/orders?after={after}", timeout=5) as answer:
        return json.load(answer)


def store(order: dict[str, Any]) -> bool:
    """Keep an order; False if it was kept before."""
    STORE.mkdir(parents=True, exist_ok=True)
    try:
        with (STORE / f"{order['number']}.json").open("x") as file:
            json.dump(order, file)
    except FileExistsError:
        return False
    return True
