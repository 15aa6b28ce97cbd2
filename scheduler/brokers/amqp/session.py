"""Manage one live connection and its channels."""

import asyncio
import itertools
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from operator import attrgetter
from typing import Any

from scheduler.brokers.amqp.driver import (
    DriverChannel,
    DriverConnection,
    closed,
    closing_of,
    lost_with,
    reason_of,
)
from scheduler.brokers.contract import IN_FLIGHT, BrokerInfo, cancelled
from scheduler.brokers.credentials import user_of
from scheduler.errors import BrokerUnavailable

ANSWER_TIMEOUT = timedelta(seconds=20)
"""Shorter than the timeouts of callers, so that a dead connection is closed first."""
LANE_HOLDS = 24
LANES = IN_FLIGHT // LANE_HOLDS
"""RabbitMQ blocks a channel with 32 unconfirmed messages to one quorum queue.

A few messages still share one channel: each further one costs broker and worker more.
"""
MOST_EXCHANGES = 256
"""Those to which channels are kept: a program may publish to any number of exchanges."""
MOST_ALONE = 4
"""The number of large messages in flight at once, each over a channel of its own."""


class Session:
    """Manage one live connection, with a channel to publish on and channels to get with.

    Attributes:
        large: limits the large messages in flight.
        unanswered: pending requests, and when they were made; the oldest first.
        largest_body: the broker's max_message_size, once it has refused a message for that; None:
            unknown, as the broker does not report it earlier.
    """

    def __init__(self, connection: DriverConnection) -> None:
        self.connection = connection
        self._opened_at = connection.loop.time()
        properties: Any = connection.server_properties
        self.info = BrokerInfo(
            str(properties["product"]),
            str(properties["version"]),
            connection.vhost,
            user_of(connection.url),
            str(properties.get("cluster_name", "")),
        )
        self.frame_max = connection.connection_tune.frame_max
        # Not as aiormq chooses them: a reused number can reach the broker before the confirmation
        # that its old channel is closed.
        self._most_channels = (connection.connection_tune.channel_max or 2047) - 1
        self._numbers = itertools.cycle(range(1, self._most_channels + 1))
        self.largest_body: int | None = None
        self.large = asyncio.Semaphore(MOST_ALONE)
        self._publishers: dict[str, list[Lease]] = {}
        self.idle_getters: list[Lease] = []
        self.unanswered: dict[RequestTimer, float] = {}
        self._watching: asyncio.Task[None] | None = None
        self._given_up_for: str | None = None
        self._abandoned = set[asyncio.Future[None]]()

    async def open_channel(self, *, publisher_confirms: bool = False) -> DriverChannel:
        """Open a new channel; if the caller is cancelled, close it once it is open.

        Raises:
            BrokerUnavailable: all channels of the connection are in use.
        """
        numbers = itertools.islice(self._numbers, self._most_channels)
        number = next((each for each in numbers if each not in self.connection.channels), None)
        if number is None:
            raise BrokerUnavailable(
                f"All {self._most_channels} channels of the connection to "
                f"{self.connection.url.host} are in use: raise channel_max in rabbitmq.conf."
            )
        channel = DriverChannel(self.connection, number, publisher_confirms=publisher_confirms)
        # aiormq loses the whole connection when it is interrupted half-way.
        opening = asyncio.ensure_future(self.connection.open(channel))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            # A broker that blocks the connection opens it once its alarm ends.
            abandoned = asyncio.ensure_future(_closed_once(opening))
            self._abandoned.add(abandoned)
            abandoned.add_done_callback(self._abandoned.discard)
            raise

    def publisher(self, exchange: str, *, in_order: bool) -> "Lease":
        """Return a channel to an exchange: the first, if messages keep their order; else one with
        room.

        RabbitMQ closes a channel when a message goes to an exchange that does not exist, so
        exchanges share none.
        """
        if (lanes := self._publishers.get(exchange)) is None:
            lanes = self._publishers[exchange] = [Lease(self, publisher_confirms=True)]
        if in_order:
            return lanes[0]
        for lane in lanes:
            if lane.in_flight < LANE_HOLDS:
                return lane
        if len(lanes) < LANES:
            lanes.append(Lease(self, publisher_confirms=True))
            return lanes[-1]
        return min(lanes, key=attrgetter("in_flight"))

    def spare_publishers(self) -> list[DriverChannel]:
        """Give up the unused channels to exchanges, if there are too many; return them."""
        if len(self._publishers) <= MOST_EXCHANGES:
            return []
        kept = self._publishers
        spare = [lane for lanes in kept.values() for lane in lanes if not lane.in_flight]
        self._publishers = {
            exchange: lanes
            for exchange, lanes in kept.items()
            if any(lane.in_flight for lane in lanes)
        }
        return [channel for lane in spare if (channel := lane.give_up()) is not None]

    @asynccontextmanager
    async def lone_channel(
        self, *, publisher_confirms: bool = False
    ) -> AsyncGenerator[DriverChannel]:
        """Open a channel inside the block for one operation that may make the broker close it."""
        channel = await self.open_channel(publisher_confirms=publisher_confirms)
        try:
            yield channel
        finally:
            await closed(channel)

    def borrow_getter(self) -> "Lease":
        if self.idle_getters:
            return self.idle_getters.pop()
        return Lease(self, publisher_confirms=False)

    async def renew_getters(self) -> None:
        """Get over new channels from here on.

        RabbitMQ (3.10 to 4.3) remembers the type of a queue on the channel of a `get`, and closes
        the connection (INTERNAL_ERROR) if the queue has another type later.
        """
        idle, self.idle_getters = self.idle_getters, []
        for lease in idle:
            if (channel := lease.give_up()) is not None:
                await closed(channel)

    def awaiting_answer(self) -> "RequestTimer":
        """Close the connection if, inside the block, the broker is silent for too long and no alarm
        blocks it.

        After a node of a cluster hung (seen on 3.10), RabbitMQ may never confirm earlier messages,
        without an error. Closing the connection requeues the unacked messages for other consumers.
        """
        return RequestTimer(self)

    def await_answer(self, question: "RequestTimer") -> None:
        """Register a pending request, until it is removed."""
        self.unanswered[question] = self.connection.loop.time()
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._until_all_answered(), name="answers")

    @property
    def age(self) -> timedelta:
        """Return for how long it has been open: the node is up for longer."""
        return timedelta(seconds=self.connection.loop.time() - self._opened_at)

    @property
    def silence(self) -> timedelta:
        """Return how long the broker has been silent while a request is pending."""
        if not self.unanswered:
            return timedelta(0)
        since = max(next(iter(self.unanswered.values())), self.connection.heard_at)
        return timedelta(seconds=asyncio.get_running_loop().time() - since)

    async def find_alarm(self) -> str:
        """Find out why the broker blocks publishers; empty: it does not.

        RabbitMQ tells a connection that begins to publish, and reads nothing more from a blocked
        one. So this connection cannot be used afterwards, and is closed.
        """
        alarm = self.connection.alarm
        try:
            with self.awaiting_answer():
                (await self.open_channel()).begin_publishing()
                answer = asyncio.create_task(self.open_channel())
                await asyncio.wait([answer, alarm], return_when=asyncio.FIRST_COMPLETED)
            if alarm.done():  # it does not read a regular close
                self.connection.transport.abort()
                await asyncio.gather(answer, return_exceptions=True)
                return alarm.result()
            await answer
            return ""
        finally:
            await self.close()

    async def _until_all_answered(self) -> None:
        loop, patience = asyncio.get_running_loop(), ANSWER_TIMEOUT.total_seconds()
        while self.unanswered:
            oldest, asked_at = next(iter(self.unanswered.items()))
            if (left := asked_at + patience - loop.time()) > 0:
                await asyncio.sleep(left)
                continue
            while self.connection.is_blocked:
                await self.connection.ready()
                await asyncio.sleep(patience)
            if oldest in self.unanswered:
                return await self.give_up(
                    f"the broker did not respond for {patience:g} s, and no alarm blocks it"
                )

    async def give_up(self, reason: str) -> None:
        """Close the connection, with this reason."""
        if self._given_up_for is None:
            self._given_up_for = reason
            await self.connection.close(ConnectionError())

    async def ended(self) -> str:
        """Wait until the connection is gone; return why."""
        closing = closing_of(self.connection)
        await asyncio.wait([closing])
        if self._given_up_for is not None:
            return self._given_up_for
        return reason_of(closing)

    async def close(self) -> None:
        if self._watching is not None and self._given_up_for is None:
            await cancelled(self._watching)
        # The connection cannot be used any more, whatever closing it may raise.
        with suppress(Exception):
            await self.connection.written()
            await self.connection.close()
            await self.connection.left()


async def _closed_once(opening: asyncio.Future[DriverChannel]) -> None:
    """Close a channel once it is open, unless the connection is lost before."""
    with suppress(Exception):
        await closed(await opening)


class RequestTimer:
    """Time one request to the broker, inside a `with` block."""

    __slots__ = ("_session",)

    def __init__(self, session: Session) -> None:
        self._session = session

    def __enter__(self) -> None:
        self._session.await_answer(self)

    def __exit__(self, *exception: object) -> None:
        del self._session.unanswered[self]


class Lease:
    """Lease a channel that is opened at its first use, and again after it was closed.

    Attributes:
        is_kept: whether its deliveries are unacked, so that no other caller may have it.
        in_flight: the number of messages that are published over it.
    """

    def __init__(self, session: Session, *, publisher_confirms: bool) -> None:
        self._session = session
        self._publisher_confirms = publisher_confirms
        self._opening = asyncio.Lock()
        self._channel: DriverChannel | None = None
        self.lost: asyncio.Future[None] | None = None
        self.is_kept = False
        self.in_flight = 0

    @property
    def usable(self) -> DriverChannel | None:
        return None if self._channel is None or self._channel.ends else self._channel

    def release(self) -> None:
        """Release the channel for the next `get`."""
        self.is_kept = False
        if self.usable and self not in self._session.idle_getters:
            self._session.idle_getters.append(self)

    def give_up(self) -> DriverChannel | None:
        """Open a new channel at the next use; return the old one."""
        channel, self._channel = self._channel, None
        return channel

    async def channel(self) -> DriverChannel:
        if (channel := self.usable) is not None:
            return channel
        async with self._opening:
            if (channel := self.usable) is None:
                channel = self._channel = await self._session.open_channel(
                    publisher_confirms=self._publisher_confirms
                )
                self.lost = lost_with(channel)
            return channel
