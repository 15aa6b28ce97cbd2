"""Which loops there are is known to the end, however haltingly the broker tells."""

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any

from scheduler import Context, Scheduler
from scheduler.brokers.contract import DEFAULT_QUIET, Since
from scheduler.brokers.memory.broker import MemoryBroker
from scheduler.brokers.memory.server import MemoryServer
from scheduler.protocol.messages import Message
from scheduler.sending import CallTask
from tests.stage import Stage, new_app, program_of

HALT = 2 * DEFAULT_QUIET
CITIES = [f"city{number}" for number in range(20)]


class HaltingBroker(MemoryBroker):
    """Keeps whoever reads the roster waiting before one entry, as on a busy machine.

    Who takes so long a silence for the end gets no more.
    """

    def __init__(self, server: MemoryServer, before: int) -> None:
        super().__init__(server)
        self._before = before

    async def read(
        self, stream: str, *, since: Since = None, quiet: timedelta = DEFAULT_QUIET
    ) -> AsyncGenerator[Message]:
        position = 0
        async for message in super().read(stream, since=since, quiet=quiet):
            if stream.endswith(".roster") and position == self._before:
                await asyncio.sleep(min(quiet, HALT).total_seconds())
                if quiet < HALT:
                    return
            yield message
            position += 1

    async def read_to_end(self, stream: str, **how: Any) -> AsyncGenerator[Message]:
        position = 0
        async for message in super().read_to_end(stream, **how):
            if stream.endswith(".roster") and position == self._before:
                await asyncio.sleep(HALT.total_seconds())
            yield message
            position += 1


async def an_office(stage: Stage) -> tuple[CallTask[Any, Any, Any], list[str]]:
    """A task with a loop for each city, and the cities of its runs."""
    app, cities = new_app(), list[str]()

    @app.task()
    async def report(ctx: Context) -> None:
        cities.append(ctx.key)

    await stage.seed(app)
    for city in CITIES:
        await report.start(city, every="1m")
    return report, cities


def over(broker: MemoryBroker, stage: Stage) -> Scheduler:
    """The app, whose tasks use this connection from now on."""
    stage.app.outbox.use(broker, stage.clock)
    return stage.app


async def test_a_loop_that_was_started_late_is_stopped(stage: Stage) -> None:
    report, cities = await an_office(stage)
    async with HaltingBroker(stage.server, before=10) as broker:
        app = over(broker, stage)
        assert await report.stop(CITIES[-1]) is True
        app.outbox.release(broker)
    async with stage.supervised():
        await asyncio.sleep(90)
    assert set(cities) == {*CITIES[:-1]}


async def test_all_loops_are_listed(stage: Stage) -> None:
    report, _ = await an_office(stage)
    async with HaltingBroker(stage.server, before=10) as broker:
        app = over(broker, stage)
        assert [loop.key for loop in await report.list()] == CITIES
        app.outbox.release(broker)


async def test_a_seed_does_not_bring_back_what_was_stopped(stage: Stage) -> None:
    report, cities = await an_office(stage)
    assert await report.stop(CITIES[0]) is True
    async with HaltingBroker(stage.server, before=10) as broker:
        await program_of(stage.app, broker, stage.clock).seeding.seed()
    async with stage.supervised():
        await asyncio.sleep(90)
    assert set(cities) == {*CITIES[1:]}
