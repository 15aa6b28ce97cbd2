"""RabbitMQ's management API, of which only policies are read."""

import asyncio
import base64
import http.client
import json
import ssl
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from scheduler.brokers.credentials import broker_urls, is_embedded
from scheduler.errors import AccessRefused, BrokerUnavailable, SettingsError
from scheduler.protocol.policies import Policy
from scheduler.settings import Settings

if TYPE_CHECKING:
    from yarl import URL

TIMEOUT_S = 5.0
KINDS = {"policies": False, "operator-policies": True}
FORM = "http://host:15672 or https://host:15671"


class Management:
    """The management API of a broker.

    Args:
        url: with user and password.
        context: for `https://`.
    """

    def __init__(self, url: "URL", context: ssl.SSLContext | None = None) -> None:
        self._url = url
        self._context = context
        self._address = str(url.with_user(None).with_password(None))

    async def policies(self, vhost: str) -> list[Policy]:
        """Read the policies of a virtual host, operator policies included.

        Raises:
            BrokerUnavailable: the API does not answer.
            AccessRefused: this user may not read them.
        """
        return await asyncio.to_thread(self._policies, vhost)

    def _policies(self, vhost: str) -> list[Policy]:
        found = list[Policy]()
        for path, is_operator in KINDS.items():
            found += _parsed(self._get(f"api/{path}/{quote(vhost, safe='')}"), is_operator)
        return found

    def _get(self, path: str) -> Any:
        try:
            status, body = self._answer(f"{self._url.raw_path.rstrip('/')}/{path}")
            if status in (401, 403):
                raise AccessRefused(
                    f"{self._address} refused user {self._url.user!r}, who needs the tag "
                    "'management' and a right in the virtual host."
                )
            if status != 200:
                raise BrokerUnavailable(f"{self._address} answered {status} to {path}.")
            return json.loads(body)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise BrokerUnavailable(f"{self._address} does not answer: {error}.") from None

    def _answer(self, path: str) -> tuple[int, bytes]:
        host, port = self._url.host or "", self._url.port
        if self._context is None:
            connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
        else:
            connection = http.client.HTTPSConnection(
                host, port, timeout=TIMEOUT_S, context=self._context
            )
        try:
            secret = f"{self._url.user}:{self._url.password}".encode()
            authorization = f"Basic {base64.b64encode(secret).decode()}"
            connection.request("GET", path, headers={"Authorization": authorization})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


def management_of(settings: Settings) -> Management | None:
    """Return the management API that the settings name; None: they name none.

    Raises:
        SettingsError: its URL cannot be used, or a file of the settings cannot be read.
    """
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


def _parsed(policies: Iterable[dict[str, Any]], is_operator: bool) -> list[Policy]:
    return [
        Policy(
            each["name"],
            each["pattern"],
            each["definition"],
            each["apply-to"],
            each["priority"],
            is_operator,
        )
        for each in policies
    ]
