"""Look up the broker's address and the credentials for each connection."""

import asyncio
import random
import ssl
from collections.abc import Callable, Sequence
from datetime import timedelta

from aiormq.exceptions import (
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
SHORTEST_TIMEOUT = timedelta(seconds=3)
"""The least share of the timeout for each of several addresses."""


class Endpoint:
    """Connect to any node of the broker that responds.

    Attributes:
        address: of the last node reached, without password and options; before that, of all.
    """

    def __init__(
        self, read_urls: Callable[[], Sequence[URL]], *, tls: Tls, heartbeat: timedelta
    ) -> None:
        self._read_urls = read_urls
        self._tls = tls
        self._heartbeat = str(int(heartbeat.total_seconds()))
        self._last = ""
        self.address = _together(read_urls())

    async def connect(self) -> driver.DriverConnection:
        """Connect once, to the first node that responds: in random order, the last one used at the
        end.

        Raises:
            BrokerUnavailable: the broker cannot be reached.
            AccessRefused: the broker does not let this user in.
            UntrustedBroker: its certificate does not show that it is the broker.
            SettingsError: the URL, a password or a certificate cannot be read.
        """
        # Read each time: a password or a certificate may have changed.
        nodes = await asyncio.to_thread(lambda: [self._node(url) for url in self._read_urls()])
        random.shuffle(nodes)
        nodes.sort(key=lambda node: node.address == self._last)
        self.address = _together([node.url for node in nodes])
        timeout, refusals = max(CONNECT_TIMEOUT / len(nodes), SHORTEST_TIMEOUT), list[BrokerError]()
        for node in nodes:
            try:
                connection = await node.connect(timeout)
            except BrokerError as error:
                refusals.append(error)
            else:
                self._last = self.address = node.address
                return connection
        raise _summed_up(refusals)

    def _node(self, url: URL) -> "Node":
        if "heartbeat" not in url.query:
            url = url.update_query(heartbeat=self._heartbeat)
        return Node(url, self._tls)


def _together(urls: Sequence[URL]) -> str:
    return " or ".join(sorted(map(_bare, urls)))


def _bare(url: URL) -> str:
    bare = url.with_user(None).with_password(None).with_query(None)
    return str(bare.with_user(url.user))


def _summed_up(refusals: Sequence[BrokerError]) -> BrokerError:
    """Combine the errors of all nodes: a refusal if one is, as all have the same users."""
    if len(refusals) == 1:
        return refusals[0]
    reasons = " ".join(sorted(map(str, refusals)))
    kind = next(
        (type(each) for each in refusals if not isinstance(each, BrokerUnavailable)),
        BrokerUnavailable,
    )
    return kind(f"None of the {len(refusals)} addresses of the broker can be used. {reasons}")


class Node:
    """Connect to one address of the broker."""

    def __init__(self, url: URL, tls: Tls) -> None:
        self.url, self.address = url, _bare(url)
        self._tls, self._context = tls, tls.context(url)

    async def connect(self, timeout: timedelta) -> driver.DriverConnection:
        seconds = timeout.total_seconds()
        try:
            async with asyncio.timeout(seconds):
                return await driver.connect(self.url, self._context)
        except Exception as error:  # aiormq raises all kinds of errors
            raise self._refused(error, seconds) from None

    @property
    def _who(self) -> str:
        user = user_of(self.url)
        return f"user {user!r}" if user else "the user that our certificate names"

    def _refused(self, error: Exception, seconds: float) -> BrokerError:
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
                return BrokerUnavailable(f"{self.address} did not answer within {seconds:.2g} s.")
            case StopAsyncIteration():  # before anything was read of it
                return self._hung_up()
            case _:
                return self._unreached(error)

    def _unreached(self, error: Exception) -> BrokerError:
        match error.__cause__:
            case ssl.SSLError() as cause:
                return refusal(cause, self.address, self._tls)
            case asyncio.IncompleteReadError() | ConnectionResetError():
                return self._hung_up()
            case _:
                advice = ADVICE if (self.url.host, self.url.port or 5672) == DEFAULT_PLACE else ""
                return BrokerUnavailable(
                    f"Cannot connect to {self.address}: {reply(error)}.{advice}"
                )

    def _hung_up(self) -> BrokerUnavailable:
        return BrokerUnavailable(
            f"{self.address} closed the connection before it was open. "
            f"{self._tls.suspicion(self.url)}"
        )
