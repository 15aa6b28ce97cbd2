"""What is in the broker of what an app needs, and making the rest exist."""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import timedelta

from scheduler.brokers.contract import Broker
from scheduler.control.concurrency import side_by_side
from scheduler.control.loops import hatchery_of
from scheduler.errors import BrokerUnavailable
from scheduler.protocol.topology import Topology
from scheduler.queues.roster import Listing
from scheduler.tasks.loops import Loop
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
        """Those of these queues that do not exist."""
        names = list(queues)
        depths = await side_by_side(self._broker.depth, names)
        return [name for name, depth in zip(names, depths, strict=True) if depth is None]

    async def everything(self) -> set[str]:
        """Declare all that the code needs; returns the queues that were not there."""
        wanted = self._app.topology()
        gone = await self.absent(queue.name for queue in wanted.queues)
        await self._declare(wanted)
        return set(gone)

    async def what_is_gone(self, listing: Listing) -> set[str]:
        """Declare those queues that are not there, with what leads to them; returns them.

        Those of loops that were removed stay away.

        Raises:
            AccessRefused: this user may not declare.
        """
        wanted, names = self._app.topology(), self._app.names
        removed = {names.hatchery(loop) for loop, listed in listing.items() if listed.is_gone}
        stay = {queue.name for queue in wanted.queues} - removed
        return await self._missing_of(wanted.only(stay))

    async def roster(self) -> set[str]:
        """Declare the roster, with what leads to it; returns its name, if it was not there."""
        return await self._missing_of(self._app.topology().only({self._app.names.roster}))

    async def keyed_slots(self, loops: Sequence[Loop]) -> set[str]:
        """Declare the hatchery queues of keyed loops that are gone; returns their names."""
        keyed = [loop for loop in loops if loop.id.key]
        return await self.slots(await self.without_slot(keyed))

    async def without_slot(self, loops: Iterable[Loop]) -> list[Loop]:
        """Those of these loops whose hatchery queue is not there."""
        slots = {self._app.names.hatchery(loop.id): loop for loop in loops}
        return [slots[name] for name in await self.absent(slots)]

    async def slots(self, loops: Iterable[Loop]) -> set[str]:
        """Declare the hatchery queues of loops that have none; returns their names."""
        wanted = sum((hatchery_of(self._app, loop.id) for loop in loops), Topology())
        if wanted.queues:
            await self._declare(wanted)
        return {queue.name for queue in wanted.queues}

    async def renew_slot(self, loop: Loop) -> None:
        """Make the hatchery queue of a loop anew, without what was in it.

        Raises:
            AccessRefused: this user may not declare.
        """
        await self.remove_slot(loop)
        await self._declare(hatchery_of(self._app, loop.id))

    async def remove_slot(self, loop: Loop) -> None:
        """Delete the hatchery queue of a loop, with what is in it, if it is there.

        Raises:
            AccessRefused: this user may not delete it.
        """
        await self._broker.delete(self._app.names.hatchery(loop.id))

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
                await self._declare_the_rest(wanted)
            raise  # with the connection went the mutex, if it was held

    async def _declare_the_rest(self, wanted: Topology) -> None:
        """Declare to the end what was begun: a queue that is there is taken for bound."""
        async with asyncio.timeout(LONGEST_ABSENCE.total_seconds()):
            for pause in backoff(FIRST_PAUSE, LAST_PAUSE):
                await asyncio.sleep(pause)
                with suppress(BrokerUnavailable):
                    return await self._broker.declare(wanted)
