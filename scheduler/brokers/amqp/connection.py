"""A connection to RabbitMQ that comes back.

aiormq connects and speaks the protocol; it does not reconnect. Here a keeper task holds the
connection: when it goes, it is made again, with exponential backoff.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta

from scheduler.brokers.amqp.channels import DriverChannel, closed
from scheduler.brokers.amqp.endpoint import Endpoint
from scheduler.brokers.amqp.refusals import Translation
from scheduler.brokers.amqp.replicas import Replicas
from scheduler.brokers.amqp.session import Session
from scheduler.brokers.cancellation import cancelled
from scheduler.brokers.contract import DEFAULT_TIMEOUT, BrokerInfo
from scheduler.errors import (
    BrokerError,
    BrokerUnavailable,
    NoReplica,
    SchedulerError,
)
from scheduler.events import Connected, ConnectionLost, ConnectionRetried, Emit
from scheduler.protocol.messages import summary_of
from scheduler.timing.backoff import backoff

CLOSING_TIMEOUT = timedelta(seconds=1)
FIRST_PAUSE, LAST_PAUSE = timedelta(seconds=0.1), timedelta(seconds=3)


def pauses() -> Iterator[float]:
    """Seconds to wait before each further try to get back what a lost connection took."""
    return backoff(FIRST_PAUSE, LAST_PAUSE)


class Connection:
    """Keeps a session open from `open` to `close`.

    Args:
        patient: `open` keeps trying while the broker cannot be reached, instead of raising.

    Attributes:
        translated: the driver's errors as ours, inside a block.
    """

    def __init__(self, endpoint: Endpoint, *, emit: Emit, patient: bool) -> None:
        self.emit = emit
        self.translated = Translation(endpoint.address)
        self._endpoint = endpoint
        self._patient = patient
        self._session: Session | None = None
        self._connected = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._replicas = Replicas()

    @property
    def address(self) -> str:
        return self._endpoint.address

    @property
    def info(self) -> BrokerInfo:
        if self._session is None:
            raise BrokerUnavailable(f"There is no connection to {self.address}.")
        return self._session.info

    @property
    def connected(self) -> bool:
        return self._connected.is_set()

    @property
    def is_blocked(self) -> bool:
        return self._session is not None and self._session.connection.is_blocked

    async def open(self) -> None:
        """Connect, and stay connected.

        Raises:
            BrokerUnavailable: the broker cannot be reached, and this is not patient.
            AccessRefused: the broker does not let this user in.
            UntrustedBroker: its certificate does not show that it is the broker.
            SettingsError: the URL, a password or a certificate cannot be read.
        """
        try:
            await self._connect()
        except BrokerUnavailable:
            if not self._patient:
                raise
            await self._reconnect(BrokerUnavailable)
        self._keeper = asyncio.create_task(self._keep_connected(), name="amqp connection")

    async def close(self) -> None:
        """Disconnect, and stay so."""
        if self._keeper is not None:
            await cancelled(self._keeper)
        self._connected.clear()
        if self._closing:
            await asyncio.wait(self._closing, timeout=CLOSING_TIMEOUT.total_seconds())
        if self._session is not None:
            await self._session.close()

    @asynccontextmanager
    async def beginning_to_read(self, stream: str) -> AsyncGenerator[None]:
        """Inside the block a stream is begun to be read; a node that lacks it for long is left."""
        try:
            with self._replicas.beginning_to_read(stream):
                yield
        except NoReplica as error:
            if self._replicas.are_missed_for_long:
                session = await self.ready()
                await session.give_up(str(error))
            raise

    async def ready(self, timeout: timedelta | None = DEFAULT_TIMEOUT) -> Session:
        """The open session, waited for if need be.

        Raises:
            BrokerUnavailable: there was none for the whole of the timeout.
        """
        if not self._connected.is_set():
            seconds = None if timeout is None else timeout.total_seconds()
            try:
                async with asyncio.timeout(seconds):
                    await self._connected.wait()
            except TimeoutError:
                raise BrokerUnavailable(
                    f"There has been no connection to {self.address} for {seconds:g} s."
                ) from None
        assert self._session is not None
        return self._session

    @asynccontextmanager
    async def brief_channel(self) -> AsyncGenerator[DriverChannel]:
        """A channel of its own, for what is answered at once: a refusal closes it."""
        session = await self.ready()
        with session.awaiting_answer(), self.translated:
            channel = await session.open_channel()
            try:
                yield channel
            finally:
                await closed(channel)

    def close_soon(self, channel: DriverChannel) -> None:
        """Close a channel that nothing is expected of any more, and do not wait for it."""
        closing = asyncio.create_task(self._close(channel))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def _close(self, channel: DriverChannel) -> None:
        with suppress(BrokerError), self.translated:
            await closed(channel)

    async def _connect(self) -> None:
        session = Session(await self._endpoint.connect())
        try:
            await self._replicas.check(session, self.translated)
        except BaseException:
            await session.close()
            raise
        self._session = session
        self._connected.set()

    async def _reconnect(self, tolerated: type[Exception]) -> None:
        started = asyncio.get_running_loop().time()
        for attempt, delay in enumerate(pauses(), 1):
            try:
                await self._connect()
                break
            except tolerated as error:
                told = str(error) if isinstance(error, SchedulerError) else summary_of(error)
                self.emit(ConnectionRetried(self.address, told, attempt, timedelta(seconds=delay)))
                await asyncio.sleep(delay)
        elapsed = timedelta(seconds=asyncio.get_running_loop().time() - started)
        self.emit(Connected(self.address, self.info.version, elapsed))

    async def _keep_connected(self) -> None:
        while True:
            assert self._session is not None
            reason = await self._session.ended()
            self._connected.clear()
            self.emit(ConnectionLost(self.address, reason))
            await self._session.close()
            await asyncio.sleep(FIRST_PAUSE.total_seconds())  # one that dies as soon as it lives
            # Who has been let in once is patient, whatever comes: a password may be in the middle
            # of its rotation; and a processor that has given up would live on, and do nothing.
            await self._reconnect(Exception)
