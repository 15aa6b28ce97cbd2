"""Two tasks that listen to one business exchange: one works, the other fails at first.

An exchange needs a broker, so this runs on RabbitMQ:

    export SCHEDULER_BROKER_URL=amqp://guest:guest@localhost:5672/
    scheduler seed examples/order_service.py:app
    scheduler run examples/order_service.py:app

and, in another terminal with the same variable, orders are placed:

    python examples/place_order.py tea honey

Each order is confirmed at once. The warehouse does not answer at first, so `ship` is tried again
after one second, and after two more. The retried message comes back to `ship` alone: no order is
confirmed twice.

The exchange is declared here, because the third value says its type. Leave that out for an exchange
that somebody else declares.
"""

import logging

from pydantic import BaseModel

from scheduler import Context, Retry, Scheduler

PAID = ("orders", "order.paid", "topic")

app = Scheduler("order-service")


class Order(BaseModel):
    number: int
    item: str


class WarehouseAsleep(Exception):
    pass


@app.task(subscribe=[PAID])
async def confirm(order: Order) -> None:
    logging.info("order %d confirmed: %s", order.number, order.item)


@app.task(subscribe=[PAID], retry=Retry(3, delays=["1s", "2s"], jitter=0))
async def ship(ctx: Context, order: Order) -> None:
    if ctx.attempt <= 2:
        raise WarehouseAsleep(f"nobody takes order {order.number}")
    logging.info("order %d shipped, as %s asked", order.number, ctx.routing_key)
