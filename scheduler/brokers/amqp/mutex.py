"""A lock that the broker keeps, and frees when its holder dies: an exclusive queue."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta

from scheduler.brokers.amqp.connection import Connection
from scheduler.errors import BrokerError, Locked
from scheduler.timing.backoff import backoff

FIRST_PAUSE, LAST_PAUSE = timedelta(seconds=0.045), timedelta(seconds=0.75)


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
            raise self._locked(name, timeout) from None
        try:
            async with self._exclusive_queue(name, timeout):
                yield
        finally:
            turn.release()

    @asynccontextmanager
    async def _exclusive_queue(self, name: str, timeout: timedelta) -> AsyncGenerator[None]:
        time = asyncio.get_running_loop().time
        deadline = time() + timeout.total_seconds()
        pauses = backoff(FIRST_PAUSE, LAST_PAUSE, factor=1.5, jitter=2 / 3)
        while not await self._declared(name):
            if time() >= deadline:
                raise self._locked(name, timeout)
            await asyncio.sleep(min(next(pauses), max(deadline - time(), 0)))
        try:
            yield
        finally:
            if self._connection.connected:  # a connection that is gone has freed it already
                with suppress(BrokerError):
                    await self._delete(name)

    async def _declared(self, name: str) -> bool:
        try:
            async with self._connection.brief_channel() as channel:
                await channel.queue_declare(
                    name, exclusive=True, arguments={"x-queue-type": "classic"}
                )
        except Locked:
            return False
        return True

    async def _delete(self, name: str) -> None:
        async with self._connection.brief_channel() as channel:
            await channel.queue_delete(name)

    def _locked(self, name: str, timeout: timedelta) -> Locked:
        return Locked(
            f"Somebody else held the lock {name!r} of {self._connection.address} for "
            f"{timeout.total_seconds():g} s. Nothing was changed; try again."
        )
