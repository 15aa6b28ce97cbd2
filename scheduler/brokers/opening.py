"""Which broker a URL means."""

from datetime import timedelta

from scheduler.brokers import Broker
from scheduler.brokers.amqp import AmqpBroker
from scheduler.brokers.memory import MemoryBroker
from scheduler.events import Emit


def broker_at(
    url: str, *, emit: Emit, patient: bool = False, heartbeat: timedelta = timedelta(seconds=20)
) -> Broker:
    """The broker at a URL, not yet connected.

    Args:
        url: `amqp://`, `amqps://`, or `memory://` for one that lives in this process.
        patient: keep trying to connect, instead of failing at once.

    Raises:
        SettingsError: it is no such URL.
    """
    if url.startswith("memory:"):
        return MemoryBroker()
    return AmqpBroker(url, emit=emit, patient=patient, heartbeat=heartbeat)
