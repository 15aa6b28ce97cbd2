"""A whole schedule at once: a year of it in moments."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from scheduler.app import Scheduler
from scheduler.brokers.memory.broker import MemoryBroker
from scheduler.brokers.memory.server import MemoryServer
from scheduler.errors import UsageError
from scheduler.events import Event
from scheduler.program import Program, processor
from scheduler.testing.virtual_time import run_virtually
from scheduler.timing.clock import LoopClock
from scheduler.timing.durations import Duration, parse_duration

DEFAULT_START = datetime(2026, 1, 1, tzinfo=UTC)


def simulate(app: Scheduler, span: Duration, *, start: datetime = DEFAULT_START) -> list[Event]:
    """Seed and run an app on an embedded broker for so long, in virtual time.

    Args:
        span: how much virtual time passes, such as "365d".
        start: the moment, aware, at which it begins.

    Returns:
        All events, in order.
    """
    return run_virtually(_simulate(app, parse_duration(span), in_utc("start", start)))


@contextmanager
def recording(app: Scheduler) -> Generator[list[Event]]:
    """The events of an app while the block runs, in a list that grows."""
    events: list[Event] = []
    with app.events.listening(events.append):
        yield events


def in_utc(name: str, moment: datetime) -> datetime:
    """A moment in UTC: by that of another zone, Python would count what its clocks on walls show.

    Raises:
        UsageError: it is not aware.
    """
    if moment.tzinfo is None:
        raise UsageError(f"The {name} is an aware datetime, got {moment.isoformat()} without zone.")
    return moment.astimezone(UTC)


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
