"""Which broker the settings mean.

Each broker is imported when one of its kind is made: the driver takes long to load, and most of
what a program or a command does needs no broker.
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
    """The broker of these settings, not yet connected.

    Args:
        patient: keep trying to connect, instead of failing at once.
        embedded: what `memory://` leads to; None: to a new one.
    """
    if is_embedded(settings):
        from scheduler.brokers.memory.broker import MemoryBroker

        return MemoryBroker(embedded() if embedded else None)
    return _amqp_broker(settings, partial(broker_urls, settings), emit=emit, patient=patient)


def nodes_of(settings: Settings) -> Sequence[Broker]:
    """A broker for each address of RabbitMQ that the settings name, not yet connected."""
    return [
        _amqp_broker(settings, lambda url=url: [url], emit=lambda _: None, patient=False)
        for url in broker_urls(settings)
    ]


def tls_of(settings: Settings) -> "Tls":
    """Return how the settings have connections made with TLS."""
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
