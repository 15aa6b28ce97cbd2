"""A lock that the broker keeps, and frees when its holder dies: an exclusive queue.

Whoever has held it asks for it again sooner than others look whether it is free. So there is a
second one, for whoever is next: nobody takes the lock who was not next, and nobody is next twice
while another one is.

A cluster whose network was parted may keep the queue of a holder that is gone, until the node that
it was connected to is started again (seen on 4.3). Nobody can have that queue. A living holder's
takes what is published to it, and drops it, as it has expired; a kept one rejects it, on all
versions. If the lock is kept, whoever is next holds it by staying next, and leaves it to others
for a while when he has had it; if *next* is kept, whoever takes the lock holds it, after he has
looked once more that *next* is still kept.

What is held goes with the connection, so all of this is asked over one. A queue rejects also where
our node does not reach that of a living holder: then two may hold the lock until the network is
whole again, as where the other nodes have taken the holder's for dead.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import timedelta
from enum import Enum
from typing import NamedTuple

from scheduler.brokers.amqp.asking import asking
from scheduler.brokers.amqp.connection import Connection
from scheduler.brokers.amqp.publishing import Publisher
from scheduler.brokers.amqp.session import Session
from scheduler.errors import AccessRefused, BrokerError, BrokerUnavailable, Locked, Rejected
from scheduler.protocol.messages import Message
from scheduler.protocol.topology import next_to
from scheduler.timing.backoff import backoff

FIRST_PAUSE, LAST_PAUSE = timedelta(seconds=0.045), timedelta(seconds=0.75)
LAST_PAUSE_OF_THE_NEXT = timedelta(seconds=0.1)
KNOCK, KNOCK_TIMEOUT = Message(expiration=timedelta(0)), timedelta(seconds=1)
KNOCK_EVERY_S = 0.5  # longer than it takes to begin an epoch, or until all nodes know who has what
KNOCKS_UNANSWERED = 2  # in a row: one may be lost with a connection between nodes
DEFAULT_EXCHANGE = ""


class Holder(Enum):
    """Who has one of the two queues."""

    OURSELVES = "ourselves"
    ANOTHER = "another one, for as long as we waited"
    GONE = "one that is gone"


class Hold(NamedTuple):
    """The lock is ours, by this queue; and the other one, if that is kept."""

    queue: str
    kept: str | None = None


class Mutexes:
    """The locks that one connection may hold, by name."""

    def __init__(self, connection: Connection, publisher: Publisher) -> None:
        self._connection = connection
        self._publisher = publisher
        self._refuses_knocks: Session | None = None
        # The broker lets one connection declare its exclusive queue twice, so tasks of one process
        # take turns before the process does.
        self._turns: dict[str, asyncio.Lock] = {}

    @asynccontextmanager
    async def holding(self, name: str, timeout: timedelta) -> AsyncGenerator[str | None]:
        turn = self._turns.setdefault(name, asyncio.Lock())
        try:
            async with asyncio.timeout(timeout.total_seconds()):
                await turn.acquire()
        except TimeoutError:
            raise self._in_vain(name, timeout) from None
        try:
            async with self._locked(name, timeout) as kept:
                yield kept
        finally:
            turn.release()

    @asynccontextmanager
    async def _locked(self, name: str, timeout: timedelta) -> AsyncGenerator[str | None]:
        deadline = asyncio.get_running_loop().time() + timeout.total_seconds()
        hold = None
        async with AsyncExitStack() as in_the_end:
            # Also when cancelled in between; who does not hold it cannot free it.
            in_the_end.push_async_callback(self._free, name)
            try:
                hold = await self._taken(name, deadline)
            finally:
                if hold is not None and hold.queue == next_to(name):
                    # Nobody could be next: the others have to look once more.
                    in_the_end.push_async_callback(asyncio.sleep, LAST_PAUSE.total_seconds())
                    in_the_end.push_async_callback(self._free, next_to(name))
                else:
                    # Nobody waits for that in here.
                    freeing = asyncio.create_task(self._free(next_to(name)), name="mutex")
                    in_the_end.push_async_callback(asyncio.wait, [freeing])
            if hold is None:
                raise self._in_vain(name, timeout)
            yield hold.kept

    async def _taken(self, name: str, deadline: float) -> Hold | None:
        session = await self._connection.ready()
        while True:
            hold = await self._asked_for(name, session, deadline)
            await self._keep_to(session)
            if hold is not None or asyncio.get_running_loop().time() >= deadline:
                return hold
            await self._begin_anew(name)

    async def _asked_for(self, name: str, session: Session, deadline: float) -> Hold | None:
        next_ = await self._holder_of(next_to(name), session, deadline, LAST_PAUSE)
        if next_ is Holder.ANOTHER:
            return None
        match next_, await self._holder_of(name, session, deadline, LAST_PAUSE_OF_THE_NEXT):
            case Holder.OURSELVES, Holder.OURSELVES:
                return Hold(name)
            case Holder.OURSELVES, Holder.GONE:
                return Hold(next_to(name), kept=name)
            case Holder.GONE, Holder.OURSELVES if await self._is_kept(next_to(name)):
                # Otherwise somebody may be next again, and have found the lock kept.
                return Hold(name, kept=next_to(name))
            case _:
                return None

    async def _begin_anew(self, name: str) -> None:
        await self._free(name)
        await self._free(next_to(name))
        await asyncio.sleep(LAST_PAUSE.total_seconds())

    async def _holder_of(
        self, name: str, session: Session, deadline: float, last_pause: timedelta
    ) -> Holder:
        """Who has the queue, after we have tried to have it."""
        time = asyncio.get_running_loop().time
        knock_at, unanswered = time() + KNOCK_EVERY_S, 0
        pauses = backoff(FIRST_PAUSE, last_pause, factor=1.5, jitter=2 / 3)
        while not await self._declared(name):
            if time() >= knock_at:
                unanswered = unanswered + 1 if await self._is_kept(name) else 0
                knock_at = time() + KNOCK_EVERY_S
            if unanswered == KNOCKS_UNANSWERED:
                return Holder.GONE
            if time() >= deadline:
                return Holder.ANOTHER
            await asyncio.sleep(min(next(pauses), max(deadline - time(), 0)))
            await self._keep_to(session)
        return Holder.OURSELVES

    async def _keep_to(self, session: Session) -> None:
        if await self._connection.ready() is not session:
            raise BrokerUnavailable(
                f"The connection to {self._connection.address} was lost while a lock was asked "
                "for, and with it our place. Nothing was changed; try again."
            )

    async def _is_kept(self, name: str) -> bool:
        """Whether the queue is there, and of a holder that is gone, as far as we may know."""
        session = await self._connection.ready()
        if session is self._refuses_knocks:
            return False
        try:
            await self._publisher.publish(KNOCK, DEFAULT_EXCHANGE, name, KNOCK_TIMEOUT)
        except Rejected:
            return True
        except AccessRefused:
            self._refuses_knocks = session
        except BrokerError:
            ...  # it is free, or the connection is lost
        return False

    async def _free(self, name: str) -> None:
        if self._connection.connected:  # a connection that is gone has freed it already
            with suppress(BrokerError):
                await self._delete(name)

    async def _declared(self, name: str) -> bool:
        try:
            async with asking(self._connection) as channel:
                await channel.queue_declare(
                    name, exclusive=True, arguments={"x-queue-type": "classic"}
                )
        except Locked:
            return False
        return True

    async def _delete(self, name: str) -> None:
        async with asking(self._connection) as channel:
            await channel.queue_delete(name)

    def _in_vain(self, name: str, timeout: timedelta) -> Locked:
        return Locked(
            f"Somebody else held the lock {name!r} of {self._connection.address} for "
            f"{timeout.total_seconds():g} s. Nothing was changed; try again. If it stays so, "
            "`scheduler doctor` says what may be wrong."
        )
