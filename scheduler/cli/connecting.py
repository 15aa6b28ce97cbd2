"""Reaching the broker that the settings of an app name."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from scheduler.app import Scheduler
from scheduler.brokers.contract import Broker
from scheduler.brokers.credentials import is_embedded
from scheduler.brokers.opening import broker_of
from scheduler.control.doctor import explaining_refusals
from scheduler.errors import SettingsError
from scheduler.program import Program
from scheduler.protocol.rights import Rights, rights_to_process
from scheduler.timing.clock import SystemClock


@asynccontextmanager
async def connected(app: Scheduler, rights: Rights | None = None) -> AsyncGenerator[Program]:
    """What serves the app in the broker of the settings, for as long as a command takes.

    Args:
        rights: what the command needs to be allowed to do; as a processor, unless given.
    """
    async with remote_broker(app) as broker:
        with explaining_refusals(broker, rights or rights_to_process(app.names)):
            yield Program(app, broker, SystemClock())


def remote_broker(app: Scheduler, *, patient: bool = False) -> Broker:
    """The broker of the settings, not yet connected.

    Raises:
        SettingsError: it is the embedded one, which no other process can reach.
    """
    if is_embedded(app.settings):
        raise SettingsError(
            "memory:// lives within one process, so there is nothing to seed, run or ask beside "
            "it: use `scheduler dev`, or set SCHEDULER_BROKER_URL to a RabbitMQ."
        )
    return broker_of(app.settings, emit=app.events.emit, patient=patient)
