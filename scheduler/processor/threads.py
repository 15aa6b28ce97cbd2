"""Run blocking functions, each in a thread.

A thread cannot be stopped from outside. So a run that timed out keeps its message until its thread
has ended: no other run of its loop starts before. If the processor ends earlier, its message stays
unacked, and goes to another processor when the connection ends.
"""

import asyncio
import inspect
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from typing import Any

from scheduler.processor.shutdown import Shutdown
from scheduler.user_code import UserCode, log_of


class Unfinished(Exception):
    """The work was stopped before it had finished."""


class Threads:
    """Manage the threads of a processor's runs, up to a number, and one that starts processes.

    That one may wait for long, without blocking the threads of other runs.

    Attributes:
        going: how many have not ended.
    """

    def __init__(self, size: int, shutdown: Shutdown) -> None:
        self.size = size
        self.going = 0
        self._pool = ThreadPoolExecutor(size, thread_name_prefix="run")
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="start")
        self._shutdown = shutdown

    def begin(self, work: Callable[[], Any], *, starts: bool = False) -> asyncio.Future[Any]:
        """Run a function in a thread, in a copy of this context; return a future of its end.

        No other caller may be waiting for a thread: the processor has as many slots as threads.
        Functions that start processes wait in order.
        """
        context, loop = copy_context(), asyncio.get_running_loop()
        threads = self._starter if starts else self._pool
        thread = loop.run_in_executor(threads, lambda: context.run(called, work))
        self.going += 1
        thread.add_done_callback(self._note_end)
        return thread

    async def result_of(
        self, thread: asyncio.Future[Any], *, stop: Callable[[], None] | None = None
    ) -> Any:
        """Return a thread's result, or raise its exception; after a cancellation, wait for its end,
        or an abort.

        Args:
            stop: makes the thread end soon, with `Unfinished` unless it has finished before;
                None: it cannot be stopped.
        """
        try:
            return await asyncio.shield(thread)
        except asyncio.CancelledError:
            if stop is None:
                await self.outlast(thread)
                raise
            stop()
            await self._ended(thread, unless=[])
            if isinstance(thread.exception(), Unfinished):
                raise
            return thread.result()

    async def outlast(self, thread: asyncio.Future[Any]) -> None:
        """Wait until a thread has ended, or an abort, despite cancellations."""
        aborted = self._shutdown.aborted
        if not (thread.done() or aborted.done()):
            log_of(__name__).warning(
                "timed out or cancelled, but its thread cannot be interrupted; its message will be "
                "settled when the thread ends"
            )
        await self._ended(thread, unless=[aborted])

    async def _ended(
        self, thread: asyncio.Future[Any], *, unless: Sequence[asyncio.Future[Any]]
    ) -> None:
        while not any(each.done() for each in (thread, *unless)):
            with suppress(asyncio.CancelledError):
                await asyncio.wait([thread, *unless], return_when=asyncio.FIRST_COMPLETED)

    def _note_end(self, thread: asyncio.Future[Any]) -> None:
        self.going -= 1
        if not thread.cancelled():
            thread.exception()  # a run that timed out ignores its result


def called(work: Callable[[], Any]) -> Any:
    """Return the result of a task's function, unless that is a coroutine."""
    with UserCode("the task"):
        result = work()
    return unless_coroutine(result, "it is a `def` that returned a coroutine: write `async def`")


def unless_coroutine(result: Any, problem: str) -> Any:
    """Return a result, unless it is a coroutine, which would never run."""
    if inspect.iscoroutine(result):
        result.close()
        raise TypeError(problem)
    return result
