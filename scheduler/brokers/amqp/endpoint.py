"""Where the broker is and who we are there: looked up anew for each connection."""

import asyncio
import ssl
from collections.abc import Callable
from datetime import timedelta

from aiormq.exceptions import (
    AMQPError,
    ConnectionNotAllowed,
    InvalidFrameError,
    ProbableAuthenticationError,
)
from yarl import URL

from scheduler.brokers.amqp import driver
from scheduler.brokers.amqp.refusals import reply
from scheduler.brokers.amqp.tls import Tls, refusal
from scheduler.brokers.credentials import user_of
from scheduler.errors import AccessRefused, BrokerError, BrokerUnavailable

DEFAULT_PLACE = ("localhost", 5672)
ADVICE = (
    " If RabbitMQ is elsewhere, set SCHEDULER_BROKER_URL; if it is nowhere, `docker run -d -p "
    "5672:5672 rabbitmq:4` starts one, and `scheduler dev` needs none."
)
CONNECT_TIMEOUT = timedelta(seconds=10)


class Endpoint:
    """What connections are made to.

    Args:
        read_url: looks where the broker is, and who we are there; called again for each connect.

    Attributes:
        address: the URL without password and options.

    Raises:
        SettingsError: there is no such URL.
    """

    def __init__(self, read_url: Callable[[], URL], *, tls: Tls, heartbeat: timedelta) -> None:
        self._read_url = read_url
        self._note(read_url())
        self._tls = tls
        self._heartbeat = str(int(heartbeat.total_seconds()))

    async def connect(self) -> driver.DriverConnection:
        """Connect once.

        Raises:
            BrokerUnavailable: the broker cannot be reached.
            AccessRefused: the broker does not let this user in.
            UntrustedBroker: its certificate does not show that it is the broker.
            SettingsError: the URL, a password or a certificate cannot be read.
        """
        # Anew each time: a password or a certificate may have been changed meanwhile.
        url, context = await asyncio.to_thread(self._read)
        self._note(url)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT.total_seconds()):
                return await driver.connect(url, context)
        except (OSError, AMQPError, RuntimeError) as error:
            raise self._refused(error) from None

    def _note(self, url: URL) -> None:
        bare = url.with_user(None).with_password(None).with_query(None)
        self._url, self.address = url, str(bare.with_user(url.user))

    @property
    def _who(self) -> str:
        user = user_of(self._url)
        return f"user {user!r}" if user else "the user that our certificate names"

    def _read(self) -> tuple[URL, ssl.SSLContext | None]:
        url = self._read_url()
        if "heartbeat" not in url.query:
            url = url.update_query(heartbeat=self._heartbeat)
        return url, self._tls.context(url)

    def _refused(self, error: Exception) -> BrokerError:
        match error:
            case ProbableAuthenticationError() | ConnectionNotAllowed():
                return AccessRefused(
                    f"{self.address} refused access for {self._who}: {reply(error)}. "
                    "Check the user, the password and the virtual host."
                )
            # aiormq does not say that the broker closed the connection when it was opened.
            case InvalidFrameError() if "Connection.Close" in reply(error):
                return AccessRefused(
                    f"{self.address} refused access to the virtual host for {self._who}: "
                    "it does not exist, or the user has no rights in it."
                )
            case InvalidFrameError():
                return BrokerUnavailable(f"{self.address} does not speak AMQP 0-9-1.")
            case TimeoutError():
                return BrokerUnavailable(
                    f"{self.address} did not answer within {CONNECT_TIMEOUT.total_seconds():g} s."
                )
            case _:
                return self._unreached(error)

    def _unreached(self, error: Exception) -> BrokerError:
        match error.__cause__:
            case ssl.SSLError() as cause:
                return refusal(cause, self.address, self._tls)
            case asyncio.IncompleteReadError() | ConnectionResetError():
                return BrokerUnavailable(
                    f"{self.address} closed the connection before it was open. "
                    f"{self._tls.suspicion(self._url)}"
                )
            case _:
                advice = ADVICE if (self._url.host, self._url.port or 5672) == DEFAULT_PLACE else ""
                return BrokerUnavailable(
                    f"Cannot connect to {self.address}: {reply(error)}.{advice}"
                )
