"""Loops and one-off messages of this package: `python -m tests.benchmarks.fleets.ours seed`."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime, timedelta
from typing import Any, TypeVar

from scheduler import Context, Every, Scheduler, Settings
from scheduler.brokers.amqp.broker import AmqpBroker
from scheduler.cli.processing import fastest_loop
from tests.benchmarks.fleets.messages import send_all
from tests.benchmarks.fleets.record import EVERY, LOOPS, NAME, URL, offset_of, ran
from tests.stage import program_of
from tests.sweep import clear

T = TypeVar("T")
AT_ONCE = 100
settings: dict[str, Any] = {
    "broker_url": URL or "memory://",
    "concurrency": 2000,
    "log_level": "warning",
}
app = Scheduler(NAME, Settings(**settings))


@app.task(concurrency=2000)
async def loop(ctx: Context, number: int) -> None:
    ran(number, ctx.scheduled_at.timestamp())


@app.task(concurrency=2000, history="FLEET_HISTORY" in os.environ)
async def note(number: int, due: float) -> None:
    ran(number, due)


async def each(
    items: Iterable[T], act: Callable[[T], Awaitable[object]], at_once: int = AT_ONCE
) -> None:
    """Do it with all items, so many side by side."""
    left = iter(items)

    async def go_on() -> None:
        for item in left:
            await act(item)

    await asyncio.gather(*(go_on() for _ in range(at_once)))


async def start(number: int) -> None:
    offset = timedelta(milliseconds=int(offset_of(number) * 1000))
    every = Every(timedelta(seconds=EVERY), mode="fixed_rate", offset=offset)
    await loop.start(f"k{number}", schedule=every, args={"number": number})


async def seed() -> None:
    async with AmqpBroker(URL) as broker:
        await program_of(app, broker).seeding.seed()
    async with app:
        await each(range(LOOPS), start)


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
