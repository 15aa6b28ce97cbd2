"""Declare what an app needs in the broker, or what is missing of it."""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta

from scheduler.brokers.contract import Broker
from scheduler.control.concurrency import side_by_side
from scheduler.errors import BrokerUnavailable
from scheduler.protocol.topology import Topology
from scheduler.tasks.registry import App
from scheduler.timing.backoff import backoff

FIRST_PAUSE, LAST_PAUSE = timedelta(seconds=0.1), timedelta(seconds=3)
LONGEST_ABSENCE = timedelta(minutes=5)


class Declaring:
    """Declares what an app needs."""

    def __init__(self, app: App, broker: Broker) -> None:
        self._app = app
        self._broker = broker

    async def absent(self, queues: Iterable[str]) -> list[str]:
        """Return those of these queues that do not exist."""
        names = list(queues)
        depths = await side_by_side(self._broker.depth, names)
        return [name for name, depth in zip(names, depths, strict=True) if depth is None]

    async def everything(self) -> set[str]:
        """Declare all that the code needs; return the queues that were not there."""
        wanted = self._app.topology()
        gone = await self.absent(queue.name for queue in wanted.queues)
        await self._declare(wanted)
        return set(gone)

    async def what_is_gone(self) -> set[str]:
        """Declare those queues that are not there, with what leads to them; return them.

        Raises:
            AccessRefused: this user may not declare.
        """
        return await self._missing_of(self._app.topology())

    async def roster(self) -> set[str]:
        """Declare the roster, with what leads to it; return its name if it was not there."""
        return await self._missing_of(self._app.topology().only({self._app.names.roster}))

    async def _missing_of(self, wanted: Topology) -> set[str]:
        gone = set(await self.absent(queue.name for queue in wanted.queues))
        if gone:
            await self._declare(wanted.only(gone))
        return gone

    async def _declare(self, wanted: Topology) -> None:
        try:
            await self._broker.declare(wanted)
        except BrokerUnavailable:
            with suppress(TimeoutError):
                return await self._declare_the_rest(wanted)
            raise

    async def _declare_the_rest(self, wanted: Topology) -> None:
        """Declare to the end what was begun: a queue that exists is taken for bound."""
        async with asyncio.timeout(LONGEST_ABSENCE.total_seconds()):
            for pause in backoff(FIRST_PAUSE, LAST_PAUSE):
                await asyncio.sleep(pause)
                with suppress(BrokerUnavailable):
                    return await self._broker.declare(wanted)
