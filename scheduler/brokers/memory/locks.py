"""Who holds which lock."""

import asyncio
from datetime import timedelta

from scheduler.brokers.memory.connection import MemoryConnection
from scheduler.errors import Locked


class Locks:
    """The locks of one server."""

    def __init__(self) -> None:
        self._locks: dict[str, asyncio.Lock] = {}
        self._holders: dict[str, tuple[MemoryConnection, object]] = {}

    async def acquire(self, name: str, connection: MemoryConnection, timeout: timedelta) -> object:
        lock = self._locks.setdefault(name, asyncio.Lock())
        try:
            async with asyncio.timeout(timeout.total_seconds()):
                await lock.acquire()
        except TimeoutError:
            raise Locked(f"Somebody else held the lock {name!r} for {timeout}.") from None
        claim = object()
        self._holders[name] = connection, claim
        return claim

    def release(self, name: str, claim: object) -> None:
        """Free the lock, unless the broker has freed it before."""
        if name in self._holders and self._holders[name][1] is claim:
            del self._holders[name]
            self._locks[name].release()

    def release_all(self, connection: MemoryConnection) -> None:
        for name, (holder, claim) in tuple(self._holders.items()):
            if holder is connection:
                self.release(name, claim)
