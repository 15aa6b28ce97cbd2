"""Connect to a node of RabbitMQ, keep the connection, and reconnect.

aiormq connects and speaks the protocol; it does not reconnect. Here a keeper task holds the
connection, and replaces a lost one, with exponential backoff.

RabbitMQ serves a stream only from a node with a running replica. A node that was cut off may lack
one for many minutes (seen on 4.3), while its queues deliver as usual: a processor connected to it
receives messages, but cannot verify them. So such a node is left, and no new connection is used
until the missed streams can be read over it.
"""

import asyncio
import random
import ssl
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from copy import copy
from datetime import timedelta

from aiormq.exceptions import ConnectionNotAllowed, InvalidFrameError, ProbableAuthenticationError
from yarl import URL

from scheduler.brokers.amqp import driver
from scheduler.brokers.amqp.driver import DriverChannel, Translation, closed, reply
from scheduler.brokers.amqp.session import Lease, Session
from scheduler.brokers.contract import DEFAULT_TIMEOUT, BrokerInfo, Depth, cancelled
from scheduler.brokers.credentials import Tls, refusal, user_of
from scheduler.errors import (
    AccessRefused,
    BrokerError,
    BrokerUnavailable,
    NoReplica,
    QueueNotFound,
    SchedulerError,
)
from scheduler.events import Connected, ConnectionLost, ConnectionRetried, Emit
from scheduler.protocol.messages import summary_of
from scheduler.timing.pacing import backoff

DEFAULT_PLACE = ("localhost", 5672)
ADVICE = (
    " If RabbitMQ is elsewhere, set SCHEDULER_BROKER_URL; if it is nowhere, `docker run -d -p "
    "5672:5672 rabbitmq:4` starts one, and `scheduler dev` needs none."
)
CONNECT_TIMEOUT = timedelta(seconds=10)
SHORTEST_TIMEOUT = timedelta(seconds=3)
"""The least share of the timeout for each of several addresses."""
NOTHING = Depth(0, 0)
UNCOUNTED_AFTER_S = 0.24
"""RabbitMQ reports a quorum queue as empty and unused, without an error, if the queue does not
respond to it within 250 ms (`rabbit_quorum_queue:stat`; tried on 3.10, 4.0 and 4.3)."""
COUNTED_WITHIN = timedelta(seconds=20)


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


OFFSET = "x-stream-offset"
CLOSING_TIMEOUT = timedelta(seconds=1)
FIRST_PAUSE, LAST_PAUSE = timedelta(seconds=0.1), timedelta(seconds=3)
REPLICA_PATIENCE = timedelta(seconds=5)  # a replica that has another leader is restarted


def pauses() -> Iterator[float]:
    """Return the seconds to wait before each attempt to restore consumers and channels."""
    return backoff(FIRST_PAUSE, LAST_PAUSE)


class Connection:
    """Keep a session open from `open` to `close`.

    Args:
        patient: `open` keeps trying while the broker cannot be reached, instead of raising.
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
        self._missed_streams: dict[str, float] = {}

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

    @property
    def silence(self) -> timedelta:
        return timedelta(0) if self._session is None else self._session.silence

    async def alarm(self) -> str:
        """Ask, over a separate connection, whether the broker blocks publishers.

        Unknown, and reported as none, if the broker limits this user to one connection.
        """
        with suppress(BrokerError), self.translated:
            return await Session(await copy(self._endpoint).connect()).find_alarm()
        return ""

    async def open(self) -> None:
        """Connect, and stay connected; raise as `Endpoint.connect` does, unless patient."""
        try:
            await self._connect()
        except BrokerUnavailable:
            if not self._patient:
                raise
            await self._reconnect(BrokerUnavailable)
        self._keeper = asyncio.create_task(self._keep_connected(), name="amqp connection")

    async def close(self) -> None:
        """Disconnect, and stay disconnected."""
        if self._keeper is not None:
            await cancelled(self._keeper)
        self._connected.clear()
        if self._closing:
            await asyncio.wait(self._closing, timeout=CLOSING_TIMEOUT.total_seconds())
        if self._session is not None:
            await self._session.close()

    @asynccontextmanager
    async def beginning_to_read(self, stream: str) -> AsyncGenerator[None]:
        """Begin to read a stream inside the block; leave a node that lacks it for long."""
        try:
            with self._noting_whether_read(stream):
                yield
        except NoReplica as error:
            now, patience = asyncio.get_running_loop().time(), REPLICA_PATIENCE.total_seconds()
            if any(now - since >= patience for since in self._missed_streams.values()):
                session = await self.ready()
                await session.give_up(str(error))
            raise

    async def ready(self, timeout: timedelta | None = DEFAULT_TIMEOUT) -> Session:
        """Wait for an open session, and return it."""
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
    async def lease(self, *, at_once: bool = True) -> AsyncGenerator[Lease]:
        """Lease a channel inside the block, for requests that the broker rarely refuses.

        The next caller gets it afterwards, unless it is kept. If the broker closes it, the next
        caller gets a new one.

        Args:
            at_once: the broker must respond immediately, unless the connection is dead.
        """
        session = await self.ready()
        lease = session.borrow_getter()
        patience = session.awaiting_answer() if at_once else nullcontext()
        try:
            with self.translated, patience:
                yield lease
        except asyncio.CancelledError:
            # aiormq closes the channel of a cancelled call with a delay.
            if (channel := lease.give_up()) is not None:
                self.close_soon(channel)
            raise
        finally:
            if not lease.is_kept:
                lease.release()

    async def depth(self, queue: str) -> Depth | None:
        time = asyncio.get_running_loop().time
        until = time() + COUNTED_WITHIN.total_seconds()
        round_trip = 0.0
        try:
            while time() < until:
                async with self.lease() as lease:
                    channel, asked_at = await lease.channel(), time()
                    depth = Depth(*await channel.depth(queue))
                    took = time() - asked_at
                    if depth != NOTHING or took < max(UNCOUNTED_AFTER_S, 1.5 * round_trip):
                        return depth
                    round_trip = await channel.round_trip()
        except QueueNotFound:
            return None
        raise BrokerUnavailable(
            f"The queue {queue!r} in {self.address} has not responded for "
            f"{COUNTED_WITHIN.total_seconds():g} s: the broker is overloaded, or the node that "
            "leads the queue hangs."
        )

    def close_soon(self, channel: DriverChannel) -> None:
        """Close an unused channel in the background."""
        closing = asyncio.create_task(self._close(channel))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def _close(self, channel: DriverChannel) -> None:
        with suppress(BrokerError), self.translated:
            await closed(channel)

    async def _connect(self) -> None:
        session = Session(await self._endpoint.connect())
        try:
            await self._see_missed_streams(session)
        except BaseException:
            await session.close()
            raise
        self._session = session
        self._connected.set()

    async def _see_missed_streams(self, session: Session) -> None:
        """Check that all missed streams that exist can be read over a session."""
        for stream in tuple(self._missed_streams):
            with suppress(QueueNotFound), self._noting_whether_read(stream), self.translated:
                async with session.lone_channel() as channel:
                    with session.awaiting_answer():
                        await channel.consume(
                            stream, lambda _: None, prefetch=1, arguments={OFFSET: "next"}
                        )

    @contextmanager
    def _noting_whether_read(self, stream: str) -> Generator[None]:
        try:
            yield
        except NoReplica:
            self._missed_streams.setdefault(stream, asyncio.get_running_loop().time())
            raise
        self._missed_streams.pop(stream, None)

    async def _reconnect(self, tolerated: type[Exception]) -> None:
        started = asyncio.get_running_loop().time()
        for attempt, delay in enumerate(pauses(), 1):
            try:
                await self._connect()
                break
            except tolerated as error:
                cause = str(error) if isinstance(error, SchedulerError) else summary_of(error)
                self.emit(ConnectionRetried(self.address, cause, attempt, timedelta(seconds=delay)))
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
            await asyncio.sleep(FIRST_PAUSE.total_seconds())  # one that dies at once
            # After a first login every error is retried: a password may be in the middle of its
            # rotation, and a processor that gave up would stay alive and do nothing.
            await self._reconnect(Exception)
