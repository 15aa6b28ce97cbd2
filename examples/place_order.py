"""A shop that knows nothing of the scheduler: it publishes paid orders to the exchange `orders`.

    export SCHEDULER_BROKER_URL=amqp://guest:guest@localhost:5672/
    python examples/place_order.py tea honey

prints a line for each order that the broker has confirmed. Who listens is in order_service.py,
which must have been seeded: until then there is no exchange to publish to.
"""

import argparse
import asyncio
import json
import os

import aiormq
from aiormq.exceptions import ChannelNotFoundEntity, PublishError
from pamqp.commands import Basic

BROKER = os.environ.get("SCHEDULER_BROKER_URL", "amqp://guest:guest@localhost:5672/")


async def place(items: list[str]) -> None:
    connection = await aiormq.connect(BROKER)
    try:
        channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
        for number, item in enumerate(items, start=1):
            await channel.basic_publish(
                json.dumps({"number": number, "item": item}).encode(),
                exchange="orders",
                routing_key="order.paid",
                mandatory=True,
                properties=Basic.Properties(content_type="application/json", delivery_mode=2),
            )
            print(f"order {number} placed: {item}", flush=True)
    finally:
        await connection.close()


def main() -> None:
    options = argparse.ArgumentParser(description="Publish paid orders.")
    options.add_argument("items", nargs="+", help="what is ordered: an order for each")
    try:
        asyncio.run(place(options.parse_args().items))
    except (ChannelNotFoundEntity, PublishError):
        raise SystemExit(
            "Nobody listens to the exchange 'orders': nothing was placed. Run\n"
            "    scheduler seed examples/order_service.py:app"
        ) from None


if __name__ == "__main__":
    main()
