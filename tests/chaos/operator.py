"""An operator who pauses loops and resumes them, and writes down what he was told."""

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress

from scheduler.brokers.amqp.broker import AmqpBroker
from scheduler.control.reports import Report
from scheduler.errors import BrokerError
from scheduler.program import Program
from tests.chaos.storm import HELD, MOODY, app, note
from tests.stage import program_of

AGAIN = 0.3


async def main() -> None:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    settings = app.settings
    url = settings.broker_url.get_secret_value()
    broker = AmqpBroker(url, emit=app.events.emit, patient=True, heartbeat=settings.heartbeat)
    async with broker:
        program = program_of(app, broker)
        await pause(program, HELD)
        note("ready")
        async with asyncio.TaskGroup() as moods:
            for loop in MOODY:
                moods.create_task(waver(program, loop, stopped))


async def waver(program: Program, loop: str, stopped: asyncio.Event) -> None:
    while not stopped.is_set():
        await pause(program, loop)
        await some_time(stopped)
        await resume(program, loop)
        await some_time(stopped)


async def pause(program: Program, loop: str) -> None:
    report = await insist(lambda: program.verbs.pause(app.loop(loop)))
    note("paused", loop=loop, detail=report.did.value)


async def resume(program: Program, loop: str) -> None:
    note("resuming", loop=loop)
    report = await insist(lambda: program.verbs.resume(app.loop(loop)))
    note("resumed", loop=loop, detail=report.did.value)


async def insist(verb: Callable[[], Awaitable[Report]]) -> Report:
    """As an operator does: until it works."""
    while True:
        try:
            return await verb()
        except BrokerError as error:
            note("refused", detail=str(error))
            await asyncio.sleep(AGAIN)


async def some_time(stopped: asyncio.Event) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(random.uniform(1, 4)):
            await stopped.wait()


if __name__ == "__main__":
    asyncio.run(main())
