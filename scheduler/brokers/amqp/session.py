"""One live connection, and the channels of it that are kept."""

import asyncio
import itertools
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any

from scheduler.brokers.amqp.driver import (
    DriverChannel,
    DriverConnection,
    closed,
    closing_of,
    lost_with,
    reason_of,
)
from scheduler.brokers.contract import BrokerInfo, cancelled
from scheduler.brokers.credentials import user_of

ANSWER_TIMEOUT = timedelta(seconds=20)
"""Before whoever asked gives up, and leaves a connection that is of no use."""
MOST_ALONE = 4
"""Large messages that are in flight at once, each over a channel of its own."""


class Session:
    """One live connection, with a channel to publish on and channels to get with.

    Attributes:
        unanswered: what the broker was asked, and when; the oldest first.
        largest_body: the broker's max_message_size, once it has refused a message for that; None:
            not known yet, as the broker does not tell it before.
    """

    def __init__(self, connection: DriverConnection) -> None:
        self.connection = connection
        properties: Any = connection.server_properties
        self.info = BrokerInfo(
            str(properties["product"]),
            str(properties["version"]),
            connection.vhost,
            user_of(connection.url),
            str(properties.get("cluster_name", "")),
        )
        self.frame_max = connection.connection_tune.frame_max
        # Not as aiormq chooses them: a number that is used again at once can reach the broker
        # before the answer to the closing of the channel that had it.
        self._numbers = itertools.cycle(range(1, connection.connection_tune.channel_max or 2047))
        self.largest_body: int | None = None
        self._alone = asyncio.Semaphore(MOST_ALONE)
        self._publishers: dict[tuple[str, int], Lease] = {}
        self.idle_getters: list[Lease] = []
        self.unanswered: dict[Question, float] = {}
        self._watching: asyncio.Task[None] | None = None
        self._given_up_for: str | None = None

    async def open_channel(self, *, publisher_confirms: bool = False) -> DriverChannel:
        """A new channel, opened to the end even when the caller is cancelled meanwhile."""
        number = next(number for number in self._numbers if number not in self.connection.channels)
        channel = DriverChannel(self.connection, number, publisher_confirms=publisher_confirms)
        # aiormq loses the whole connection when it is interrupted half-way.
        opening = asyncio.ensure_future(self.connection.open(channel))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            await closed(await opening)
            raise

    def publisher(self, exchange: str, lane: int) -> "Lease":
        """Return the channel of a lane to an exchange.

        RabbitMQ closes a channel over which something is published to an exchange that does not
        exist, so exchanges share none. It holds up a channel with 32 messages that one quorum queue
        has not confirmed, so lanes share none.
        """
        if (lease := self._publishers.get((exchange, lane))) is None:
            lease = self._publishers[exchange, lane] = Lease(self, publisher_confirms=True)
        return lease

    @asynccontextmanager
    async def lone_publisher(self) -> AsyncGenerator[DriverChannel]:
        """Inside the block, a channel for one message, which the broker may close it for."""
        async with self._alone:
            channel = await self.open_channel(publisher_confirms=True)
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

        RabbitMQ (3.10 to 4.3) remembers on a channel of what type the queue was that one got from,
        and breaks off the connection (INTERNAL_ERROR) when that name is of another type meanwhile.
        """
        idle, self.idle_getters = self.idle_getters, []
        for lease in idle:
            if (channel := lease.give_up()) is not None:
                await closed(channel)

    def awaiting_answer(self) -> "Question":
        """Inside the block, the connection is given up if the broker is silent for too long, and no
        alarm blocks it.

        After a node of a cluster stood still (seen on 3.10), RabbitMQ may never confirm what was
        published over it, and say nothing. With the connection, what is in hand goes back to its
        queue, and is settled by whoever gets it next.
        """
        return Question(self)

    def await_answer(self, question: "Question") -> None:
        """Expect an answer, until it is forgotten."""
        self.unanswered[question] = self.connection.loop.time()
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._until_all_answered(), name="answers")

    @property
    def silence(self) -> timedelta:
        """For how long the broker has sent nothing, though an answer is waited for."""
        if not self.unanswered:
            return timedelta(0)
        since = max(next(iter(self.unanswered.values())), self.connection.heard_at)
        return timedelta(seconds=asyncio.get_running_loop().time() - since)

    async def find_alarm(self) -> str:
        """Find out why the broker blocks publishers; empty: it does not.

        It tells who has begun to publish, and reads nothing more of a connection that it blocks. So
        this one is of no further use, and is closed.
        """
        alarm = self.connection.alarm
        try:
            with self.awaiting_answer():
                (await self.open_channel()).begin_publishing()
                answer = asyncio.create_task(self.open_channel())
                await asyncio.wait([answer, alarm], return_when=asyncio.FIRST_COMPLETED)
            if alarm.done():  # it does not read a farewell
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
                    f"it left us without an answer for {patience:g} s, and no alarm blocks it"
                )

    async def give_up(self, reason: str) -> None:
        """Close the connection, and have that told as why it ended."""
        if self._given_up_for is None:
            self._given_up_for = reason
            await self.connection.close(ConnectionError())

    async def ended(self) -> str:
        """Wait until the connection is gone; says why."""
        closing = closing_of(self.connection)
        await asyncio.wait([closing])
        if self._given_up_for is not None:
            return self._given_up_for
        return reason_of(closing)

    async def close(self) -> None:
        if self._watching is not None and self._given_up_for is None:
            await cancelled(self._watching)
        # Whatever closing it may raise, the connection is of no further use.
        with suppress(Exception):
            await self.connection.written()
            await self.connection.close()
            await self.connection.left()


class Question:
    """Something that the broker was asked, inside a `with` block."""

    __slots__ = ("_session",)

    def __init__(self, session: Session) -> None:
        self._session = session

    def __enter__(self) -> None:
        self._session.await_answer(self)

    def __exit__(self, *exception: object) -> None:
        del self._session.unanswered[self]


class Lease:
    """A channel that is opened when it is first used, and again after it was closed.

    Attributes:
        is_kept: whether what came over it is in hand, and nobody else may have it.
    """

    def __init__(self, session: Session, *, publisher_confirms: bool) -> None:
        self._session = session
        self._publisher_confirms = publisher_confirms
        self._opening = asyncio.Lock()
        self._channel: DriverChannel | None = None
        self.lost: asyncio.Future[None] | None = None
        self.is_kept = False

    @property
    def usable(self) -> DriverChannel | None:
        """The channel, if it is open."""
        return None if self._channel is None or self._channel.ends else self._channel

    def release(self) -> None:
        """Let the next one have it who gets."""
        self.is_kept = False
        if self.usable and self not in self._session.idle_getters:
            self._session.idle_getters.append(self)

    def give_up(self) -> DriverChannel | None:
        """Have a new channel opened at the next use; returns the one that is given up."""
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
