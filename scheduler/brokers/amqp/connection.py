"""A connection to RabbitMQ that comes back.

aiormq connects and speaks the protocol; it does not reconnect. Here a keeper task holds the
connection: when it goes, it is made again, with exponential backoff.
"""

import asyncio
import itertools
import logging
import ssl
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, cast

import aiormq
import pamqp.decode
import pamqp.encode
from aiormq.abc import AbstractChannel, AbstractConnection
from aiormq.exceptions import (
    AMQPError,
    ChannelAccessRefused,
    ChannelInvalidStateError,
    ChannelLockedResource,
    ChannelNotFoundEntity,
    ChannelPreconditionFailed,
    ConnectionNotAllowed,
    DeliveryError,
    InvalidFrameError,
    ProbableAuthenticationError,
    PublishError,
)
from yarl import URL

from scheduler.brokers.amqp.tls import Tls, refusal
from scheduler.brokers.contract import DEFAULT_TIMEOUT, BrokerInfo
from scheduler.brokers.credentials import user_of
from scheduler.errors import (
    AccessRefused,
    BrokerError,
    BrokerUnavailable,
    IncompatibleBroker,
    Locked,
    NoReplica,
    QueueNotFound,
    Rejected,
    SchedulerError,
    SettingsError,
    Unconfirmed,
    Unroutable,
)
from scheduler.events import Connected, ConnectionLost, ConnectionRetried, Emit

dice = Random()  # not the one that a program may have seeded


CONNECT_TIMEOUT = timedelta(seconds=10)
LAST_WORDS = timedelta(seconds=1)
BACKOFF_FIRST = 0.1
BACKOFF_LAST = 3.0
ANSWER_S = 20.0  # before whoever asked gives up, and leaves a connection that is of no use

# aiormq logs a traceback for every connection that goes, and a line for every refused connect;
# the same is told once, in a line, by ConnectionLost and ConnectionRetried.
if logging.getLogger("aiormq").level == logging.NOTSET:
    logging.getLogger("aiormq").setLevel(logging.CRITICAL)

# aiormq drops its answer to a channel that the broker closes when this many frames wait to be
# written; the broker then keeps the channel, and closes the connection over its number's next use.
aiormq.Connection.FRAME_BUFFER_SIZE = 100_000


def tolerant_timestamp(value: bytes) -> tuple[int, datetime]:
    """A timestamp as the broker sends it, whatever its publisher wrote.

    pamqp raises on one that no calendar has, inside aiormq's reader: one such message of somebody
    else would cost us the connection, again and again.
    """
    try:
        return plain_timestamp(value)
    except (ValueError, OverflowError, OSError):
        return 8, datetime.fromtimestamp(0, UTC)


def exact_table_value(value: Any) -> bytes:
    """A value of a header as it is: pamqp would cut a float down to 32 bits."""
    if isinstance(value, float):
        return b"d" + pamqp.encode.double(value)
    return plain_table_value(value)


plain_table_value = pamqp.encode.encode_table_value
pamqp.encode.encode_table_value = exact_table_value
plain_timestamp = pamqp.decode.timestamp
pamqp.decode.METHODS["timestamp"] = tolerant_timestamp
pamqp.decode.TABLE_MAPPING[b"T"] = tolerant_timestamp


# A stream is read where it has a replica. One of a node that comes back is not there at once.
NO_REPLICA = "replica on the local node"


def backoff() -> Iterator[float]:
    """Seconds to wait before each further try: doubling, with jitter, up to a few seconds."""
    delay = BACKOFF_FIRST
    while True:
        yield delay * dice.uniform(0.5, 1)
        delay = min(delay * 2, BACKOFF_LAST)


async def cancelled(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait for its end.

    aiormq may answer a cancellation with the error of a channel that closes at that moment, which
    the task takes for one to recover from: so it is told again.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=0.5)


class Connection:
    """Keeps a session open from `open` to `close`.

    Args:
        read_url: looks where the broker is, and who we are there; called again for each connect.
        patient: `open` keeps trying while the broker cannot be reached, instead of raising.

    Raises:
        SettingsError: there is no such URL.
    """

    def __init__(
        self,
        read_url: Callable[[], URL],
        *,
        tls: Tls,
        heartbeat: timedelta,
        emit: Emit,
        patient: bool,
    ) -> None:
        self.emit = emit
        self._read_url = read_url
        self._url = read_url()
        self._tls = tls
        self._heartbeat = str(int(heartbeat.total_seconds()))
        self._patient = patient
        self._session: Session | None = None
        self._connected = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        """The URL without password and options."""
        bare = self._url.with_user(None).with_password(None).with_query(None)
        return str(bare.with_user(self._url.user))

    @property
    def _who(self) -> str:
        user = user_of(self._url)
        return f"user {user!r}" if user else "the user that our certificate names"

    @property
    def info(self) -> BrokerInfo:
        if self._session is None:
            raise BrokerUnavailable(f"There is no connection to {self.address}.")
        return self._session.info

    @property
    def connected(self) -> bool:
        return self._connected.is_set()

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
            await asyncio.wait(self._closing, timeout=LAST_WORDS.total_seconds())
        if self._session is not None:
            await self._session.close()

    async def begin_anew(self, reason: str) -> None:
        """Give the connection up for another one, which may be to another node."""
        session = await self.ready()
        await session.give_up(reason)

    async def ready(self, timeout: timedelta = DEFAULT_TIMEOUT) -> "Session":
        """The open session, waited for if need be.

        Raises:
            BrokerUnavailable: there was none for the whole of the timeout.
        """
        if not self._connected.is_set():
            try:
                async with asyncio.timeout(timeout.total_seconds()):
                    await self._connected.wait()
            except TimeoutError:
                raise BrokerUnavailable(
                    f"There has been no connection to {self.address} for "
                    f"{timeout.total_seconds():g} s."
                ) from None
        assert self._session is not None
        return self._session

    @asynccontextmanager
    async def throwaway_channel(self) -> AsyncGenerator[AbstractChannel]:
        """A channel of its own, because the broker answers a refusal by closing the channel."""
        session = await self.ready()
        with self.translated():
            channel = await session.open_channel(publisher_confirms=False)
            try:
                yield channel
            finally:
                await closed(channel)

    @asynccontextmanager
    async def brief_channel(self) -> AsyncGenerator[AbstractChannel]:
        """The same, for what is answered at once."""
        session = await self.ready()
        with session.awaiting_answer():
            async with self.throwaway_channel() as channel:
                yield channel

    def close_soon(self, channel: AbstractChannel) -> None:
        """Close a channel that nothing is expected of any more, and do not wait for it."""
        closing = asyncio.create_task(self._close(channel))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def _close(self, channel: AbstractChannel) -> None:
        with suppress(BrokerError), self.translated():
            await closed(channel)

    @contextmanager
    def translated(self) -> Generator[None]:
        """aiormq's errors as ours, inside the block."""
        try:
            yield
        except PublishError as error:
            raise Unroutable(
                f"{self.address} has no queue bound for the routing key {error.args[1]!r}."
            ) from None
        except DeliveryError:
            raise Rejected from None
        except ChannelLockedResource:
            raise Locked from None
        except ChannelNotFoundEntity as error:
            raise QueueNotFound(reply(error)) from None
        except ChannelPreconditionFailed as error:
            if NO_REPLICA in reply(error):
                raise NoReplica(
                    f"{self.address} refused: {reply(error)}. It may be starting; if this goes on, "
                    "`rabbitmq-streams add_replica` gives the node one."
                ) from None
            raise IncompatibleBroker(
                f"{self.address} refused: {reply(error)}. What exists was left as it is."
            ) from None
        except ChannelAccessRefused as error:
            raise AccessRefused(f"{self.address} refused: {reply(error)}.") from None
        except (AMQPError, ChannelInvalidStateError, ConnectionError, RuntimeError) as error:
            raise self._unconfirmed(error) from None
        except asyncio.CancelledError as error:
            # aiormq cancels what waits on a channel that closes; only a cancelled task means us.
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise self._unconfirmed(error) from None
        except Exception as error:
            # aiormq's word for what waited on a connection that ended without a reason.
            if type(error) is not Exception:
                raise
            raise self._unconfirmed(error) from None

    def _unconfirmed(self, error: BaseException) -> Unconfirmed:
        return Unconfirmed(
            f"The connection to {self.address} went before the answer came: {reply(error)}."
        )

    async def _connect(self) -> None:
        # Anew each time: a password or a certificate may have been changed meanwhile.
        self._url, context = await asyncio.to_thread(self._read)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT.total_seconds()):
                connection = await aiormq.connect(self._url, context=context)
        except (ProbableAuthenticationError, ConnectionNotAllowed) as error:
            raise AccessRefused(
                f"{self.address} refused access for {self._who}: {reply(error)}. "
                "Check the user, the password and the virtual host."
            ) from None
        except InvalidFrameError as error:
            # aiormq does not say that the broker closed the connection when it was opened.
            if "Connection.Close" not in reply(error):
                raise BrokerUnavailable(f"{self.address} does not speak AMQP 0-9-1.") from None
            raise AccessRefused(
                f"{self.address} refused access to the virtual host for {self._who}: "
                "it does not exist, or the user has no rights in it."
            ) from None
        except TimeoutError:
            raise BrokerUnavailable(
                f"{self.address} did not answer within {CONNECT_TIMEOUT.total_seconds():g} s."
            ) from None
        except (OSError, AMQPError, RuntimeError) as error:
            raise self._unreached(error) from None
        self._session = Session(connection)
        self._connected.set()

    def _read(self) -> tuple[URL, ssl.SSLContext | None]:
        url = self._read_url()
        if "heartbeat" not in url.query:
            url = url.update_query(heartbeat=self._heartbeat)
        return url, self._tls.context(url)

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
                return BrokerUnavailable(f"Cannot connect to {self.address}: {reply(error)}.")

    async def _reconnect(self, *tolerated: type[SchedulerError]) -> None:
        started = asyncio.get_running_loop().time()
        for attempt, delay in enumerate(backoff(), 1):
            try:
                await self._connect()
                break
            except tolerated as error:
                self.emit(
                    ConnectionRetried(self.address, str(error), attempt, timedelta(seconds=delay))
                )
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
            await asyncio.sleep(BACKOFF_FIRST)  # one that dies as soon as it lives
            # Who has been let in once is patient: a password may be in the middle of its rotation.
            await self._reconnect(BrokerError, SettingsError)


class Session:
    """One live connection, with a channel to publish on and channels to get with."""

    def __init__(self, connection: aiormq.Connection) -> None:
        self.connection = connection
        properties: Any = connection.server_properties
        self.info = BrokerInfo(
            str(properties["product"]),
            str(properties["version"]),
            connection.vhost,
            user_of(connection.url),
        )
        self.frame_max = connection.connection_tune.frame_max
        # Not as aiormq chooses them: a number that is used again at once can reach the broker
        # before the answer to the closing of the channel that had it.
        self._numbers = itertools.cycle(range(1, connection.connection_tune.channel_max or 2047))
        self._publishers: dict[str, Lease] = {}
        self._idle_getters: list[Lease] = []
        self._given_up_for: str | None = None

    async def open_channel(self, *, publisher_confirms: bool) -> AbstractChannel:
        """A new channel, opened to the end even when the caller is cancelled meanwhile.

        aiormq loses the whole connection when it is interrupted half-way.
        """
        number = next(number for number in self._numbers if number not in self.connection.channels)
        opening = asyncio.ensure_future(
            self.connection.channel(number, publisher_confirms=publisher_confirms)
        )
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            await closed(await opening)
            raise

    def publisher(self, exchange: str) -> "Lease":
        """The channel to publish to an exchange on: one each, because the broker closes the channel
        over which somebody publishes to an exchange that does not exist."""
        if exchange not in self._publishers:
            self._publishers[exchange] = Lease(self, publisher_confirms=True)
        return self._publishers[exchange]

    def borrow_getter(self) -> "Lease":
        if self._idle_getters:
            return self._idle_getters.pop()
        return Lease(self, publisher_confirms=False)

    def return_getter(self, lease: "Lease") -> None:
        if lease.usable and lease not in self._idle_getters:
            self._idle_getters.append(lease)

    @contextmanager
    def awaiting_answer(self) -> Generator[None]:
        """Give the connection up if the broker is silent for too long, and no alarm blocks it.

        After a node of a cluster stood still (seen on 3.10), RabbitMQ may never confirm what was
        published over it, and say nothing. With the connection, what is in hand goes back to its
        queue, and is settled by whoever gets it next; and a lock is free again.
        """
        doubting: asyncio.Task[None] | None = None

        def doubt() -> None:
            nonlocal doubting
            doubting = asyncio.create_task(self._despair(), name="no answer")

        timer = asyncio.get_running_loop().call_later(ANSWER_S, doubt)
        try:
            yield
        finally:
            timer.cancel()
            if doubting is not None and self._given_up_for is None:
                doubting.cancel()

    async def _despair(self) -> None:
        while await self._is_blocked():
            await self.connection.ready()
            await asyncio.sleep(ANSWER_S)
        silence = f"it left us without an answer for {ANSWER_S:g} s, and no alarm blocks it"
        await self.give_up(silence)

    async def give_up(self, reason: str) -> None:
        """Close the connection, and have that told as why it ended."""
        if self._given_up_for is None:
            self._given_up_for = reason
            await self.connection.close(ConnectionError())

    async def _is_blocked(self) -> bool:
        try:
            async with asyncio.timeout(0.1):
                await self.connection.ready()
        except TimeoutError:
            return True
        return False

    async def ended(self) -> str:
        """Wait until the connection is gone; says why."""
        closing = closing_of(self.connection)
        await asyncio.wait([closing])
        if self._given_up_for is not None:
            return self._given_up_for
        return reason_of(closing)

    async def close(self) -> None:
        # Whatever closing it may raise, the connection is of no further use.
        with suppress(Exception):
            await self.connection.close()


class Lease:
    """A channel that is opened when it is first used, and again after it was closed."""

    def __init__(self, session: Session, *, publisher_confirms: bool) -> None:
        self._session = session
        self._publisher_confirms = publisher_confirms
        self._opening = asyncio.Lock()
        self._channel: AbstractChannel | None = None
        self.lost: asyncio.Future[None] | None = None

    @property
    def usable(self) -> bool:
        return self._channel is not None and not self._channel.is_closed

    def give_up(self) -> AbstractChannel | None:
        """Have a new channel opened at the next use; returns the one that is given up."""
        channel, self._channel = self._channel, None
        return channel

    async def channel(self) -> AbstractChannel:
        async with self._opening:
            if self._channel is None or self._channel.is_closed:
                self._channel = await self._session.open_channel(
                    publisher_confirms=self._publisher_confirms
                )
                self.lost = lost_with(self._channel)
            return self._channel


async def closed(channel: AbstractChannel) -> None:
    """Close a channel, to the end even when the caller is cancelled meanwhile."""
    if not channel.is_closed:
        await asyncio.shield(asyncio.ensure_future(channel.close()))


def closing_of(resource: AbstractConnection | AbstractChannel) -> asyncio.Future[Any]:
    """Done when a connection or channel of aiormq is gone."""
    return cast(asyncio.Future[Any], resource.closing)  # pyright: ignore[reportUnknownMemberType, reportAttributeAccessIssue]


def lost_with(channel: AbstractChannel) -> asyncio.Future[None]:
    """Done when the channel is gone, and with it what was delivered over it."""
    lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def lose(_: asyncio.Future[Any]) -> None:
        if not lost.done():
            lost.set_result(None)

    closing_of(channel).add_done_callback(lose)
    return lost


def reason_of(closed: asyncio.Future[Any]) -> str:
    """Why a connection or channel is gone, in the broker's words if it gave any."""
    error = None if closed.cancelled() else closed.exception()
    return "closed" if error is None else reply(error)


def reply(error: BaseException) -> str:
    """The words of an error of aiormq, without its wrapping."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if words := [str(word) for word in error.args if isinstance(word, str) and word]:
        return " ".join(words).rstrip(".")
    wordless = type(error) in (Exception, asyncio.CancelledError)
    return "closed" if wordless else type(error).__name__
