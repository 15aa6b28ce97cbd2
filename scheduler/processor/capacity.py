"""How many runs may go on at once."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, nullcontext

from scheduler.tasks.tasks import TaskSpec


class Capacity:
    """What a processor has room for.

    Args:
        concurrency: how many runs may go on at once, over all tasks.
    """

    def __init__(self, concurrency: int) -> None:
        self._free = asyncio.Semaphore(concurrency)

    @asynccontextmanager
    async def taken(self, task: TaskSpec) -> AsyncGenerator[None]:
        """Wait until the processor's concurrency lets a run of a task start."""
        # Supervision does not wait for the runs that it supervises.
        async with nullcontext() if task.builtin else self._free:
            yield

    def let_through(self, waiting: int) -> None:
        """Have as many as may be waiting go on, to find that the processor stops."""
        for _ in range(waiting):
            self._free.release()
