"""The same messages by the bare driver, through the same timer queues, which ours has seeded.

Publish with a confirm to where the timers begin, consume, wait for what is left of the delay, ack.
"""

import asyncio
import json
import sys
import time
from datetime import datetime, timedelta

import aiormq
from aiormq.abc import DeliveredMessage
from pamqp.commands import Basic

from scheduler.cli.processing import fastest_loop
from scheduler.protocol.calls import task_key
from scheduler.protocol.hatchery import route
from tests.benchmarks.fleets.messages import send_all
from tests.benchmarks.fleets.ours_messages import app
from tests.benchmarks.fleets.record import URL, ran

LATER, DESTINATION = app.names.later, task_key("note")
READY = app.names.processor_queue("note")


async def send() -> None:
    connection = await aiormq.connect(URL)
    channel = await connection.channel()

    async def one(number: int, delay: timedelta, due_at: datetime) -> None:
        await channel.basic_publish(
            json.dumps({"number": number, "due": due_at.timestamp()}).encode(),
            exchange=LATER,
            routing_key=DESTINATION,
            mandatory=True,
            properties=Basic.Properties(delivery_mode=2, headers=dict(route(delay).headers)),
        )

    await send_all(one)


async def work() -> None:
    connection = await aiormq.connect(URL)
    channel = await connection.channel()

    async def run(message: DeliveredMessage) -> None:
        told = json.loads(message.body)
        if (early := told["due"] - time.time()) > 0:  # noqa: TID251
            await asyncio.sleep(early)
        ran(told["number"], told["due"])
        assert message.delivery_tag is not None
        await channel.basic_ack(message.delivery_tag)

    await channel.basic_qos(prefetch_count=2000)
    await channel.basic_consume(READY, run)
    await asyncio.Event().wait()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=fastest_loop()) as runner:
        runner.run({"send": send, "work": work}[sys.argv[1]]())
