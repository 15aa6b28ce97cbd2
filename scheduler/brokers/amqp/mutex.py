"""A lock that the broker keeps, and frees when its holder dies: an exclusive queue.

Whoever has held it asks for it again sooner than others look whether it is free. So there is a
second one, for whoever is next: nobody takes the lock who was not next, and nobody is next twice
while another one is.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import timedelta

from scheduler.brokers.amqp.asking import asking
from scheduler.brokers.amqp.connection import Connection
from scheduler.errors import BrokerError, Locked
from scheduler.protocol.topology import next_to
from scheduler.timing.backoff import backoff

FIRST_PAUSE, LAST_PAUSE = timedelta(seconds=0.045), timedelta(seconds=0.75)
LAST_PAUSE_OF_THE_NEXT = timedelta(seconds=0.1)


class Mutexes:
    """The locks that one connection may hold, by name."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        # The broker lets one connection declare its exclusive queue twice, so tasks of one process
        # take turns before the process does.
        self._turns: dict[str, asyncio.Lock] = {}

    @asynccontextmanager
    async def holding(self, name: str, timeout: timedelta) -> AsyncGenerator[None]:
        turn = self._turns.setdefault(name, asyncio.Lock())
        try:
            async with asyncio.timeout(timeout.total_seconds()):
                await turn.acquire()
        except TimeoutError:
            raise self._in_vain(name, timeout) from None
        try:
            async with self._locked(name, timeout):
                yield
        finally:
            turn.release()

    @asynccontextmanager
    async def _locked(self, name: str, timeout: timedelta) -> AsyncGenerator[None]:
        deadline = asyncio.get_running_loop().time() + timeout.total_seconds()
        async with AsyncExitStack() as in_the_end:
            # Also when cancelled in between; who does not hold it cannot free it.
            in_the_end.push_async_callback(self._free, name)
            try:
                is_next = await self._declared_by(next_to(name), deadline, LAST_PAUSE)
                is_taken = is_next and await self._declared_by(
                    name, deadline, LAST_PAUSE_OF_THE_NEXT
                )
            finally:
                # Nobody waits for that in here.
                freeing = asyncio.create_task(self._free(next_to(name)), name="mutex")
                in_the_end.push_async_callback(asyncio.wait, [freeing])
            if not is_taken:
                raise self._in_vain(name, timeout)
            yield

    async def _declared_by(self, name: str, deadline: float, last_pause: timedelta) -> bool:
        time = asyncio.get_running_loop().time
        pauses = backoff(FIRST_PAUSE, last_pause, factor=1.5, jitter=2 / 3)
        while not await self._declared(name):
            if time() >= deadline:
                return False
            await asyncio.sleep(min(next(pauses), max(deadline - time(), 0)))
        return True

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
