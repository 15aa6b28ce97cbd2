"""How many runs may go on at once, and how fast they may start."""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager, nullcontext

from scheduler.brokers.contract import Delivery
from scheduler.processor.shutdown import Shutdown
from scheduler.tasks.tasks import TaskSpec
from scheduler.timing.rates import Pacer


class Capacity:
    """What a processor has room for.

    Args:
        concurrency: how many runs may go on at once, over all tasks.
    """

    def __init__(self, tasks: Iterable[TaskSpec], concurrency: int, shutdown: Shutdown) -> None:
        self._shutdown = shutdown
        self._free = asyncio.Semaphore(concurrency)
        self._pacers = {task.name: Pacer(task.rate) for task in tasks if task.rate}

    @asynccontextmanager
    async def taken(self, task: TaskSpec, delivery: Delivery) -> AsyncGenerator[None]:
        """Wait until the task's rate and the processor's concurrency let a run start."""
        if (pacer := self._pacers.get(task.name)) is not None:
            await self._shutdown.pause(delivery, pacer.turn())
        # Supervision does not wait for the runs that it supervises.
        async with nullcontext() if task.builtin else self._free:
            yield

    def let_through(self, waiting: int) -> None:
        """Have as many as may be waiting go on, to find that the processor stops."""
        for _ in range(waiting):
            self._free.release()
