"""A program that sends one-off messages, and writes down each one that was confirmed.

Named ones it asks for twice: they are to be there once.
"""

import asyncio
import itertools
import random
from collections.abc import Iterator
from datetime import timedelta
from functools import partial

from scheduler.errors import NotSent
from scheduler.protocol.tokens import LoopId
from scheduler.timing.moments import SystemClock
from tests.chaos.storm import app, fussy, insist, note, post, remember, side_by_side

STREAMS = 3
PAUSE = 0.4
NAMED = 1.5


async def main() -> None:
    numbers = itertools.count(1)
    async with app:
        await side_by_side(
            lambda stopped: [
                *(send(numbers, stopped) for _ in range(STREAMS)),
                name(numbers, stopped),
            ]
        )


async def send(numbers: Iterator[int], stopped: asyncio.Event) -> None:
    while not stopped.is_set():
        number = next(numbers)
        task = fussy if number % 4 == 0 else post
        try:
            if number % 2:
                message = await task.send(number)
            else:
                message = await task.send_later(f"{random.randint(1, 30) * 100}ms", number)
        except NotSent as error:
            note("not sent", detail=str(error))
        else:
            note("sent", message=message)
        await asyncio.sleep(PAUSE * random.uniform(0.5, 1.5))


async def name(numbers: Iterator[int], stopped: asyncio.Event) -> None:
    while not stopped.is_set():
        loop = LoopId("remember", f"n{next(numbers)}")
        at = SystemClock().now() + timedelta(seconds=random.uniform(0, 3))
        for _ in range(2):
            await insist(partial(remember.once, loop.key, at=at), "not named")
            await asyncio.sleep(NAMED * random.uniform(0.5, 1.5))
        note("sent", message=str(loop))


if __name__ == "__main__":
    asyncio.run(main())
