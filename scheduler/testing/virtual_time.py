"""Run an event loop whose time passes only while all its tasks are waiting."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple

R = TypeVar("R")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")

RESOLUTION_S = 1e-7


class JumpingSelector(selectors.DefaultSelector):
    """Jump to the next timer instead of waiting for it.

    It does wait for threads: the clock stands until they have ended. And before the clock moves,
    tasks in `idle` learn how far it would move.
    """

    now = 0.0
    threads = 0

    def __init__(self) -> None:
        super().__init__()
        self.idle: list[asyncio.Future[float | None]] = []

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self.threads and timeout:
            return super().select(None)
        is_idle = bool(self.idle) and timeout != 0 and not self.threads
        ready = super().select(None if timeout is None and not is_idle else 0)
        if is_idle and not ready:
            self._notify(timeout)
        elif not ready and timeout:
            self.now += timeout
        return ready

    def _notify(self, pause: float | None) -> None:
        idle, self.idle = self.idle, []
        for waiting in idle:
            if not waiting.done():
                waiting.set_result(pause)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Run an event loop whose time passes only while all its tasks are waiting."""

    def __init__(self) -> None:
        self._jumping = JumpingSelector()
        super().__init__(self._jumping)
        # Years from zero, a float's steps are longer than the resolution of a clock: then the loop
        # would wait forever for a moment that it cannot pass.
        self._clock_resolution = RESOLUTION_S

    def time(self) -> float:
        return self._jumping.now

    async def idle(self) -> float | None:
        """Wait until no task can proceed before time passes, and no thread works.

        Returns:
            Seconds until a task can proceed, at least; None: never.
        """
        waiting: asyncio.Future[float | None] = self.create_future()
        self._jumping.idle.append(waiting)
        return await waiting

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        ended = super().run_in_executor(executor, func, *args)
        self._jumping.threads += 1
        ended.add_done_callback(self._note_end)
        return ended

    def _note_end(self, _: object) -> None:
        self._jumping.threads -= 1


def run_virtually(main: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine in virtual time, as `asyncio.run` does in real time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
