"""How many runs may go on at once."""

import asyncio
from collections.abc import Callable

from scheduler.tasks.tasks import TaskSpec


class Capacity:
    """What a processor has room for.

    Args:
        concurrency: how many runs may go on at once, over all tasks.
    """

    def __init__(self, concurrency: int) -> None:
        self._free = asyncio.Semaphore(concurrency)

    async def take(self, task: TaskSpec) -> Callable[[], None]:
        """Wait until there is room for a run of a task; returns what makes it free again."""
        if task.builtin:  # supervision does not wait for the runs that it supervises
            return _nothing
        await self._free.acquire()
        return self._free.release

    def let_through(self, waiting: int) -> None:
        """Have as many as may be waiting go on, to find that the processor stops."""
        for _ in range(waiting):
            self._free.release()


def _nothing() -> None: ...
