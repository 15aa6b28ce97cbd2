"""An operator who does all that can be done to loops, and writes down what he was told."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

from scheduler import Scheduler
from scheduler.brokers.amqp.broker import AmqpBroker
from scheduler.control.reports import Report
from scheduler.tasks.registration import schedule_of
from tests.chaos.storm import (
    KEYS,
    PAUSED,
    PAUSED_AND_RESUMED,
    RESCHEDULED,
    TRIGGERED,
    app,
    body_of,
    insist,
    keyed,
    note,
    side_by_side,
    written,
)
from tests.stage import program_of

SCHEDULES = [schedule_of(every=every) for every in ("300ms", "400ms", "600ms", "900ms")]


class Operator:
    """Does verbs, each of which he insists on, and notes it before and after."""

    def __init__(self, broker: AmqpBroker) -> None:
        self._broker = broker
        self._program = program_of(app, broker)
        self._verbs = self._program.verbs

    async def pause(self, loop: str) -> None:
        await self._do("pausing", "paused", loop, lambda: self._verbs.pause(app.loop(loop)))

    async def resume(self, loop: str) -> None:
        await self._do("resuming", "resumed", loop, lambda: self._verbs.resume(app.loop(loop)))

    async def trigger(self, loop: str) -> None:
        await self._do("triggering", "triggered", loop, lambda: self._verbs.trigger(app.loop(loop)))

    async def reschedule(self, loop: str) -> None:
        """Seed a code that has but this loop, with another schedule."""
        schedule = random.choice(SCHEDULES)
        code = Scheduler(app.namespace, app.settings)
        code.module = app.module
        code.periodic(schedule=schedule, name=loop)(body_of(loop))
        seeding = program_of(code, self._broker).seeding

        async def seed() -> Report:
            (report,) = [each for each in await seeding.seed() if str(each.loop) == loop]
            return report

        await self._do("seeding", "seeded", loop, seed, written(schedule))

    async def start(self, key: str) -> None:
        """Start a keyed loop, or give it another schedule."""
        loop = keyed(key, schedule := random.choice(SCHEDULES))
        seeding = self._program.seeding
        await self._do(
            "starting", "started", str(loop), lambda: seeding.start(loop), written(schedule)
        )

    async def stop(self, key: str) -> None:
        loop = keyed(key, SCHEDULES[0])
        removal = self._program.removal
        await self._do("stopping", "stopped", str(loop), lambda: removal.remove(loop))

    async def _do(
        self,
        before: str,
        after: str,
        loop: str,
        verb: Callable[[], Awaitable[Report]],
        schedule: str = "",
    ) -> None:
        note(before, loop=loop, schedule=schedule)
        report = await insist(verb, "refused")
        listing = await insist(self._program.roster.read, "refused")
        epoch = listing.known(report.loop.id)
        facts: Any = {"schedule": schedule, "epoch": epoch, "silent": len(report.silent)}
        note(after, loop=loop, detail=report.did.value, **facts)


async def repeat(
    stopped: asyncio.Event, loop: str, *verbs: Callable[[str], Awaitable[None]]
) -> None:
    while not stopped.is_set():
        for verb in verbs:
            await verb(loop)
            await some_time(stopped)


async def come_and_go(operator: Operator, key: str, stopped: asyncio.Event) -> None:
    """Start it, change it, stop it; and at times start it again at once."""
    while True:
        await operator.start(key)
        if stopped.is_set():
            return
        await some_time(stopped)
        if random.random() < 0.3:
            await operator.start(key)
            await some_time(stopped)
        await operator.stop(key)
        if stopped.is_set():
            return
        if random.random() < 0.5:
            await some_time(stopped)


async def some_time(stopped: asyncio.Event) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(random.uniform(0.5, 4)):
            await stopped.wait()


def activities(operator: Operator, stopped: asyncio.Event) -> list[Coroutine[Any, Any, None]]:
    """What he does, side by side."""
    return [
        *(repeat(stopped, loop, operator.pause, operator.resume) for loop in PAUSED_AND_RESUMED),
        *(repeat(stopped, loop, operator.trigger) for loop in TRIGGERED),
        *(repeat(stopped, loop, operator.reschedule) for loop in RESCHEDULED),
        *(come_and_go(operator, key, stopped) for key in KEYS),
    ]


async def main() -> None:
    settings = app.settings
    url = settings.broker_url.get_secret_value()
    broker = AmqpBroker(url, emit=app.events.emit, patient=True, heartbeat=settings.heartbeat)
    async with broker:
        operator = Operator(broker)
        await operator.pause(PAUSED)
        await side_by_side(partial(activities, operator))


if __name__ == "__main__":
    asyncio.run(main())
