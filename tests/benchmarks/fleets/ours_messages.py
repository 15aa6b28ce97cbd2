"""One-off messages of this package, to one task."""

import asyncio
import os
import sys
from datetime import datetime, timedelta
from typing import Any

from scheduler import Scheduler, Settings
from scheduler.brokers.amqp.broker import AmqpBroker
from scheduler.cli.processing import fastest_loop
from tests.benchmarks.fleets.messages import send_all
from tests.benchmarks.fleets.record import NAME, URL, ran
from tests.stage import program_of
from tests.sweep import clear

settings: dict[str, Any] = {
    "broker_url": URL or "memory://",
    "concurrency": 2000,
    "log_level": "warning",
}
app = Scheduler(NAME, Settings(**settings))


@app.task(concurrency=2000, history="FLEET_HISTORY" in os.environ)
async def note(number: int, due: float) -> None:
    ran(number, due)


async def seed() -> None:
    async with AmqpBroker(URL) as broker:
        await program_of(app, broker).seeding.seed()


async def send() -> None:
    async def one(number: int, delay: timedelta, due_at: datetime) -> None:
        await note.send_later(delay, number=number, due=due_at.timestamp())

    async with app:
        await send_all(one)


async def sweep() -> None:
    """Delete all that a seed can have made, also one that was cut short."""
    await clear(URL, app.topology())


if __name__ == "__main__":
    main = {"seed": seed, "send": send, "sweep": sweep}[sys.argv[1]]
    with asyncio.Runner(loop_factory=fastest_loop()) as runner:
        runner.run(main())
