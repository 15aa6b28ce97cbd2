"""The end of a task that somebody else has begun."""

import asyncio
from datetime import timedelta
from typing import Any

BEFORE_TELLING_AGAIN = timedelta(seconds=0.5)


async def cancelled(task: asyncio.Future[Any]) -> None:
    """Cancel a task and wait for its end.

    aiormq may answer a cancellation with the error of a channel that closes at that moment, which
    the task takes for one to recover from: so it is told again.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=BEFORE_TELLING_AGAIN.total_seconds())
    if not task.cancelled():
        task.exception()  # or asyncio logs that nobody has asked for it
