"""Loops of this package: so many keyed ones of one task."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, TypeVar

from scheduler import Context, Every, Scheduler, Settings
from scheduler.brokers.amqp.broker import AmqpBroker
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


def schedule_of(number: int) -> tuple[Every, Mapping[str, Any]]:
    offset = timedelta(seconds=offset_of(number)) // timedelta(milliseconds=1)
    period = timedelta(seconds=EVERY)
    every = Every(period, mode="fixed_rate", offset=offset * timedelta(milliseconds=1))
    return every, {"number": number}


async def each(items: Iterable[T], act: Callable[[T], Awaitable[object]]) -> None:
    """So many side by side."""
    left = iter(items)

    async def go_on() -> None:
        for item in left:
            await act(item)

    await asyncio.gather(*(go_on() for _ in range(AT_ONCE)))


async def start(number: int) -> None:
    schedule, args = schedule_of(number)
    await loop.start(f"k{number}", schedule=schedule, args=args)


async def seed() -> None:
    async with AmqpBroker(URL) as broker:
        await program_of(app, broker).seeding.seed()
    async with app:
        await each(range(LOOPS), start)


async def sweep() -> None:
    """Delete all that a seed can have made, also one that was cut short."""
    await clear(URL, app.topology())


if __name__ == "__main__":
    import sys

    asyncio.run({"seed": seed, "sweep": sweep}[sys.argv[1]]())
