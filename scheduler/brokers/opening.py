"""Create the broker that the settings select.

Each broker is imported when it is created: the driver loads slowly, and most commands and programs
need no broker.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from scheduler.brokers.contract import Broker
from scheduler.brokers.credentials import broker_urls, is_embedded
from scheduler.events import Emit
from scheduler.settings import Settings

if TYPE_CHECKING:
    from yarl import URL

    from scheduler.brokers.amqp.tls import Tls
    from scheduler.brokers.memory.server import MemoryServer


def broker_of(
    settings: Settings,
    *,
    emit: Emit,
    patient: bool = False,
    embedded: "Callable[[], MemoryServer] | None" = None,
) -> Broker:
    """Return the broker of these settings, not yet connected.

    Args:
        patient: keep trying to connect, instead of failing at once.
        embedded: the server for `memory://`; None: a new one.
    """
    if is_embedded(settings):
        from scheduler.brokers.memory.broker import MemoryBroker

        return MemoryBroker(embedded() if embedded else None)
    return _amqp_broker(settings, partial(broker_urls, settings), emit=emit, patient=patient)


def nodes_of(settings: Settings) -> Sequence[Broker]:
    """Return a broker for each RabbitMQ address of the settings, not yet connected."""
    return [
        _amqp_broker(settings, lambda url=url: [url], emit=lambda _: None, patient=False)
        for url in broker_urls(settings)
    ]


def tls_of(settings: Settings) -> "Tls":
    """Return the TLS configuration of the settings."""
    from scheduler.brokers.amqp.tls import Tls

    return Tls(
        settings.tls_ca_file,
        settings.tls_cert_file,
        settings.tls_key_file,
        settings.tls_verify,
    )


def _amqp_broker(
    settings: Settings, read_urls: "Callable[[], Sequence[URL]]", *, emit: Emit, patient: bool
) -> Broker:
    from scheduler.brokers.amqp.broker import AmqpBroker

    return AmqpBroker(
        read_urls,
        tls=tls_of(settings),
        emit=emit,
        patient=patient,
        heartbeat=settings.heartbeat,
    )
