"""Read policies from RabbitMQ's management API."""

import asyncio
import base64
import http.client
import json
import ssl
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from scheduler.brokers.credentials import broker_urls, is_embedded
from scheduler.errors import AccessRefused, BrokerUnavailable, SettingsError
from scheduler.protocol.policies import BrokerPolicy
from scheduler.settings import Settings

if TYPE_CHECKING:
    from yarl import URL

TIMEOUT_S = 5.0
KINDS = {"policies": False, "operator-policies": True}
FORM = "http://host:15672 or https://host:15671"


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
        return [
            BrokerPolicy(
                each["name"],
                each["pattern"],
                each["definition"],
                each["apply-to"],
                each["priority"],
                is_operator,
            )
            for kind, is_operator in KINDS.items()
            for each in await asyncio.to_thread(self._get, f"api/{kind}/{quote(vhost, safe='')}")
        ]

    def _get(self, path: str) -> Any:
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
                return json.load(answer)
        except (OSError, http.client.HTTPException, ValueError) as error:
            why = getattr(error, "reason", error)
            raise BrokerUnavailable(f"{self._address} does not answer: {why}.") from None


def management_of(settings: Settings) -> Management | None:
    """Return the management API of the settings; None: not set."""
    if settings.management_url is None or is_embedded(settings):
        return None
    from yarl import URL

    from scheduler.brokers.opening import tls_of

    url, broker = URL(settings.management_url.get_secret_value()), broker_urls(settings)[0]
    if url.scheme not in ("http", "https") or not url.host:
        raise SettingsError(f"SCHEDULER_MANAGEMENT_URL must be {FORM}.")
    if url.user is None:
        url = url.with_user(broker.user or "guest").with_password(broker.password or "guest")
    if url.scheme == "http":
        return Management(url)
    return Management(url, tls_of(settings).context(url.with_scheme("amqps")))
