"""How many runs may go on at once."""

import asyncio
from collections.abc import Callable

from scheduler.tasks.tasks import TaskSpec


class Capacity:
    """What a processor has room for.

    Args:
        concurrency: how many runs may go on at once, over all tasks.
        threads: how many of them in threads.
    """

    def __init__(self, concurrency: int, threads: int) -> None:
        self._free = asyncio.Semaphore(concurrency)
        self._threads = asyncio.Semaphore(threads)

    async def take(self, task: TaskSpec) -> Callable[[], None]:
        """Wait until there is room for a run of a task; returns what makes it free again."""
        if task.builtin:  # supervision does not wait for the runs that it supervises
            return _nothing
        if not task.blocks:
            await self._free.acquire()
            return self._free.release
        await self._threads.acquire()
        try:
            await self._free.acquire()
        except BaseException:
            self._threads.release()
            raise
        return self._release_both

    def let_through(self, waiting: int) -> None:
        """Have as many as may be waiting go on, to find that the processor stops."""
        for _ in range(waiting):
            self._release_both()

    def _release_both(self) -> None:
        self._free.release()
        self._threads.release()


def _nothing() -> None: ...
