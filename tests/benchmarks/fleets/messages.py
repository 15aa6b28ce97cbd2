"""What the fleets of one-off messages share: how many, after which delays, when they are sent."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

MESSAGES = int(os.environ.get("FLEET_MESSAGES", "1"))
LONGEST = 30.0
AT_ONCE = 100  # what waits for more than these is late before it is sent
BEGIN, SENT = "begin", "sent"


def delays() -> list[timedelta]:
    """The same in all fleets: of 1 s to the longest, to the millisecond."""
    dice, longest_ms = Random(1), round(LONGEST * 1000)
    return [timedelta(milliseconds=dice.randrange(1000, longest_ms)) for _ in range(MESSAGES)]


def beside_records(name: str) -> Path:
    return Path(os.environ["FLEET_RECORDS"]).with_name(name)


def until_told() -> None:
    while not beside_records(BEGIN).exists():
        time.sleep(0.02)


async def send_all(send: Callable[[int, timedelta, datetime], Awaitable[object]]) -> None:
    """Once told to begin, send all, some at once; note how long it took; stay, to be measured.

    Args:
        send: takes number, delay and the moment that is meant.
    """
    await asyncio.to_thread(until_told)
    began, left = time.perf_counter(), iter(enumerate(delays()))

    async def send_some() -> None:
        for number, delay in left:
            now = datetime.fromtimestamp(time.time(), UTC)  # noqa: TID251
            await send(number, delay, now + delay)

    await asyncio.gather(*(send_some() for _ in range(AT_ONCE)))
    beside_records(SENT).write_text(str(time.perf_counter() - began))
    await asyncio.Event().wait()
