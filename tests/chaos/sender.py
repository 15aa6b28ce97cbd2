"""A program that sends one-off messages, and writes down each one that was confirmed."""

import asyncio
import itertools
import random
import signal
from collections.abc import Iterator

from scheduler.errors import NotSent
from tests.chaos.storm import app, fussy, note, post

STREAMS = 3
PAUSE = 0.4


async def main() -> None:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    numbers = itertools.count(1)
    async with app:
        note("ready")
        async with asyncio.TaskGroup() as streams:
            for _ in range(STREAMS):
                streams.create_task(send(numbers, stopped))


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


if __name__ == "__main__":
    asyncio.run(main())
