"""Create the broker, and its management API, that the settings select.

Each broker is imported when it is created: the driver loads slowly, and most commands and programs
need no broker.
"""

import asyncio
import base64
import http.client
import json
import ssl
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

from scheduler.brokers.contract import Broker
from scheduler.brokers.credentials import Tls, broker_urls, is_embedded, parsed
from scheduler.errors import AccessRefused, BrokerUnavailable, SettingsError
from scheduler.events import Emit
from scheduler.protocol.administration import BrokerPolicy
from scheduler.settings import Settings

if TYPE_CHECKING:
    from yarl import URL

    from scheduler.brokers.memory.server import MemoryServer


TIMEOUT_S = 5.0
KINDS = {"policies": False, "operator-policies": True}
MANAGEMENT_FORM = "http://host:15672 or https://host:15671"


class Management:
    """Call the management API of a broker, at a URL with user and password."""

    def __init__(self, url: "URL", context: ssl.SSLContext | None = None) -> None:
        self._user, secret = url.user, f"{url.user}:{url.password}".encode()
        self._headers = {"Authorization": f"Basic {base64.b64encode(secret).decode()}"}
        self._address = str(url.with_user(None).with_password(None))
        self._context = context

    async def policies(self, vhost: str) -> list[BrokerPolicy]:
        """Read the policies of a virtual host, operator policies included.

        Raises:
            BrokerUnavailable: the API does not respond.
            AccessRefused: this user may not read them.
        """
        found = [
            (is_operator, each)
            for kind, is_operator in KINDS.items()
            for each in await asyncio.to_thread(self._get, f"api/{kind}/{quote(vhost, safe='')}")
        ]
        try:
            return [
                BrokerPolicy(
                    each["name"],
                    each["pattern"],
                    each["definition"],
                    each["apply-to"],
                    each["priority"],
                    is_operator,
                )
                for is_operator, each in found
            ]
        except (LookupError, TypeError):
            raise self._another_server() from None

    def _get(self, path: str) -> list[Any]:
        from urllib.request import HTTPHandler, HTTPSHandler, OpenerDirector, Request

        # Neither proxies nor redirections: they would see the password.
        opener = OpenerDirector()
        opener.add_handler(HTTPHandler())
        opener.add_handler(HTTPSHandler(context=self._context))
        request = Request(f"{self._address.rstrip('/')}/{path}", headers=self._headers)
        try:
            with opener.open(request, timeout=TIMEOUT_S) as answer:
                if answer.status in (401, 403):
                    raise AccessRefused(
                        f"{self._address} refused user {self._user!r}, who needs the tag "
                        "'management' and a right in the virtual host."
                    )
                if answer.status != 200:
                    raise BrokerUnavailable(f"{self._address} answered {answer.status} to {path}.")
                if not isinstance(found := json.load(answer), list):
                    raise self._another_server()
                return cast("list[Any]", found)
        except (OSError, http.client.HTTPException, ValueError) as error:
            why = getattr(error, "reason", error)
            raise BrokerUnavailable(f"{self._address} does not answer: {why}.") from None

    def _another_server(self) -> BrokerUnavailable:
        return BrokerUnavailable(
            f"{self._address} is not RabbitMQ's management API: check SCHEDULER_MANAGEMENT_URL."
        )


def management_of(settings: Settings) -> Management | None:
    if settings.management_url is None or is_embedded(settings):
        return None
    url, broker = parsed(settings.management_url.get_secret_value()), broker_urls(settings)[0]
    if url is None or url.scheme not in ("http", "https") or not url.host:
        raise SettingsError(f"SCHEDULER_MANAGEMENT_URL must be {MANAGEMENT_FORM}.")
    if url.user is None:
        url = url.with_user(broker.user or "guest").with_password(broker.password or "guest")
    if url.scheme == "http":
        return Management(url)
    return Management(url, tls_of(settings).context(url.with_scheme("amqps")))


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


def tls_of(settings: Settings) -> Tls:
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
