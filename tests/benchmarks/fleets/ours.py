"""Loops of this package: so many keyed ones of one task."""

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from scheduler import Every, Scheduler, Settings
from scheduler.brokers.amqp.broker import AmqpBroker
from tests.benchmarks.fleets.record import LOOPS, NAME, URL, offset_of, ran
from tests.stage import program_of

settings: dict[str, Any] = {
    "broker_url": URL or "memory://",
    "concurrency": 2000,
    "log_level": "warning",
}
app = Scheduler(NAME, Settings(**settings))


@app.task(concurrency=2000)
async def loop(number: int) -> None:
    ran(number)


def schedule_of(number: int) -> tuple[Every, Mapping[str, Any]]:
    offset = timedelta(seconds=offset_of(number)) // timedelta(milliseconds=1)
    every = Every("1s", mode="fixed_rate", offset=offset * timedelta(milliseconds=1))
    return every, {"number": number}


async def seed() -> None:
    async with AmqpBroker(URL) as broker:
        await program_of(app, broker).seeding.seed()
    async with app, asyncio.TaskGroup() as starting:
        for number in range(LOOPS):
            schedule, args = schedule_of(number)
            starting.create_task(loop.start(f"k{number}", schedule=schedule, args=args))


async def sweep() -> None:
    async with AmqpBroker(URL) as broker:
        queues = [queue.name for queue in app.topology().queues]
        listing = await program_of(app, broker).roster.read()
        for name in [*map(app.names.hatchery, listing), *queues]:
            await broker.delete(name)


if __name__ == "__main__":
    import sys

    asyncio.run({"seed": seed, "sweep": sweep}[sys.argv[1]]())
