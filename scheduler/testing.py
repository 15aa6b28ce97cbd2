"""Time travel for tests: a year of a schedule in moments, on the embedded broker.

::

    from scheduler.testing import simulate

    def test_the_report_runs_on_working_days():
        events = simulate(app, "14d", start=datetime(2026, 6, 1, tzinfo=UTC))
        assert len([e for e in events if isinstance(e, RunStarted)]) == 10
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Executor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, TypeVarTuple

from scheduler.app import Scheduler
from scheduler.brokers.memory.broker import MemoryBroker
from scheduler.brokers.memory.server import MemoryServer
from scheduler.events import Event
from scheduler.program import Program, processor
from scheduler.timing.clock import LoopClock
from scheduler.timing.durations import Duration, parse_duration

R = TypeVar("R")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")

DEFAULT_START = datetime(2026, 1, 1, tzinfo=UTC)
RESOLUTION_S = 1e-7


class JumpingSelector(selectors.DefaultSelector):
    """Never waits: when everything waits for a timer, the clock moves to that timer.

    But for threads it does: the clock stands still until they have ended.
    """

    now = 0.0
    threads = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self.threads and timeout:
            return super().select(None)
        ready = super().select(0 if timeout is not None else None)
        if not ready and timeout:
            self.now += timeout
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes only while all its tasks are waiting."""

    def __init__(self) -> None:
        self._jumping = JumpingSelector()
        super().__init__(self._jumping)
        # Years from zero, a float's steps are longer than the resolution of a clock: then the loop
        # would wait for ever for a moment that it cannot get past.
        self._clock_resolution = RESOLUTION_S

    def time(self) -> float:
        return self._jumping.now

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


def simulate(app: Scheduler, span: Duration, *, start: datetime = DEFAULT_START) -> list[Event]:
    """Seed and run an app on an embedded broker for so long, in virtual time.

    Args:
        span: how much virtual time passes, such as "365d".
        start: the moment, aware, at which it begins.

    Returns:
        All events, in order.
    """
    return run_virtually(_simulate(app, parse_duration(span), start))


@contextmanager
def recording(app: Scheduler) -> Generator[list[Event]]:
    """The events of an app while the block runs, in a list that grows."""
    events: list[Event] = []
    with app.events.listening(events.append):
        yield events


async def _simulate(app: Scheduler, span: timedelta, start: datetime) -> list[Event]:
    clock = LoopClock(start)
    with recording(app) as events:
        async with MemoryBroker(MemoryServer(clock)) as broker:
            await Program(app, broker, clock).seeding.seed()
            simulated = processor(
                app,
                broker,
                clock,
                tasks=app.select(None),
                concurrency=app.settings.concurrency,
                grace=app.settings.shutdown_grace,
                supervises=False,
            )
            running = asyncio.create_task(simulated.run())
            await asyncio.wait([running], timeout=span.total_seconds())
            simulated.worker.stop()
            await running
    return events
