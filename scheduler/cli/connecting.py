"""Reaching the broker that the settings of an app name."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import tzinfo
from typing import TypeVar

from scheduler.app import Scheduler
from scheduler.brokers.contract import Broker
from scheduler.brokers.credentials import is_embedded
from scheduler.brokers.opening import broker_of
from scheduler.control.doctor import explaining_refusals
from scheduler.errors import BrokerError, SettingsError
from scheduler.program import Program
from scheduler.protocol.rights import Rights, rights_to_process
from scheduler.timing.clock import SystemClock
from scheduler.timing.schedules import zone_of

T = TypeVar("T")
Zones = Mapping[str, tzinfo | None]


def ask(
    app: Scheduler, question: Callable[[Program], Awaitable[T]], rights: Rights | None = None
) -> T:
    """Do something over a connection of its own, from its beginning to its end."""

    async def answer() -> T:
        async with connected(app, rights) as program:
            return await question(program)

    return asyncio.run(answer())


@asynccontextmanager
async def connected(app: Scheduler, rights: Rights | None = None) -> AsyncGenerator[Program]:
    """Connect to the broker of the settings, for as long as a command takes.

    Args:
        rights: what the command needs to be allowed to do; as a processor, unless given.
    """
    async with remote_broker(app) as broker:
        with explaining_refusals(broker, rights or rights_to_process(app.names)):
            yield Program(app, broker, SystemClock())


def remote_broker(app: Scheduler, *, patient: bool = False) -> Broker:
    """Return the broker of the settings, not yet connected.

    Raises:
        SettingsError: it is the embedded one, which no other process can reach.
    """
    if is_embedded(app.settings):
        raise SettingsError(
            "memory:// lives within one process, so there is nothing to seed, run or ask beside "
            "it: use `scheduler dev`, or set SCHEDULER_BROKER_URL to a RabbitMQ."
        )
    return broker_of(app.settings, emit=app.events.emit, patient=patient)


async def zones_of_loops(app: Scheduler, program: Program) -> Zones:
    """Read the zone of each loop's schedule, by its name; None: that of this machine."""
    try:
        known = await program.loops.all()
    except BrokerError:  # no reason to show less: without the roster, the code knows most
        known = list(app.loops.values())
    return {str(each): zone_of(each.schedule) for each in known}
