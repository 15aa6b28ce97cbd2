"""Which broker the settings mean.

Each broker is imported when one of its kind is made: the driver takes long to load, and most of
what a program or a command does needs no broker.
"""

from functools import partial

from scheduler.brokers.contract import Broker
from scheduler.brokers.credentials import broker_url, is_embedded
from scheduler.events import Emit
from scheduler.settings import Settings


def broker_of(settings: Settings, *, emit: Emit, patient: bool = False) -> Broker:
    """The broker of these settings, not yet connected.

    Args:
        patient: keep trying to connect, instead of failing at once.

    Raises:
        SettingsError: its URL cannot be used, or a file of the settings cannot be read.
    """
    if is_embedded(settings):
        from scheduler.brokers.memory.broker import MemoryBroker

        return MemoryBroker()
    return _amqp_broker(settings, emit=emit, patient=patient)


def _amqp_broker(settings: Settings, *, emit: Emit, patient: bool) -> Broker:
    from scheduler.brokers.amqp.broker import AmqpBroker
    from scheduler.brokers.amqp.tls import Tls

    return AmqpBroker(
        partial(broker_url, settings),
        tls=Tls(
            settings.tls_ca_file,
            settings.tls_cert_file,
            settings.tls_key_file,
            settings.tls_verify,
        ),
        emit=emit,
        patient=patient,
        heartbeat=settings.heartbeat,
    )
