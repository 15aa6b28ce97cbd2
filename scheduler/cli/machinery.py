"""What commands work with in a broker, put together in one place."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from scheduler.app import Scheduler
from scheduler.brokers.contract import Broker
from scheduler.brokers.credentials import is_embedded
from scheduler.brokers.opening import broker_of
from scheduler.control.doctor import telling_rights
from scheduler.control.status import Survey
from scheduler.control.verbs import Control
from scheduler.errors import SettingsError
from scheduler.protocol.rights import Rights, rights_to_process
from scheduler.queues.failed import FailedQueues
from scheduler.queues.journal import Journal
from scheduler.timing.clock import Clock, SystemClock


@dataclass(frozen=True, slots=True)
class Machinery:
    """All that works on one app in one broker."""

    broker: Broker
    clock: Clock
    control: Control
    survey: Survey
    journal: Journal
    failed_queues: FailedQueues


def machinery_of(app: Scheduler, broker: Broker) -> Machinery:
    clock = SystemClock()
    return Machinery(
        broker,
        clock,
        Control(app, broker, clock),
        Survey(app, broker, clock),
        Journal(broker, app.names),
        FailedQueues(broker, app.names, clock),
    )


@asynccontextmanager
async def connected(app: Scheduler, rights: Rights | None = None) -> AsyncGenerator[Machinery]:
    """The machinery in the broker of the settings, for as long as a command takes.

    Args:
        rights: what the command needs to be allowed to do; as a processor, unless given.
    """
    async with remote_broker(app) as broker:
        with telling_rights(broker, rights or rights_to_process(app.names)):
            yield machinery_of(app, broker)


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
