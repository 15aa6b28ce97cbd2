"""What is done about loops whose token is lost, doubled, or kept back: their epoch ends.

A repair may be wrong: then the token that was overlooked is void. It goes on as the roster says,
with what the journal heard last, once no older run goes on.
"""

import asyncio
from collections.abc import Collection
from contextlib import suppress
from datetime import timedelta

from scheduler.control.beginnings import Beginnings
from scheduler.control.concurrency import side_by_side
from scheduler.control.declaring import Declaring
from scheduler.control.location import Locator, Sighting
from scheduler.control.loops import as_listed
from scheduler.errors import Rejected
from scheduler.events import LoopRepaired
from scheduler.protocol.epochs import Verb, Watch
from scheduler.protocol.tokens import LoopId, Token
from scheduler.queues.hatchery import Hatchery
from scheduler.queues.roster import Listing, Roster
from scheduler.tasks.loops import Loop
from scheduler.tasks.registry import App

BETWEEN_LOOKS = 1.0
DONE = {
    "lost": "its token was put again",
    "doubled": "a node of the broker handed its token out twice: it goes on with one",
}


class Repairs:
    """The repairs of an app's loops.

    Args:
        patience: how long to wait for others who create tokens.
    """

    def __init__(
        self,
        app: App,
        declaring: Declaring,
        hatchery: Hatchery,
        roster: Roster,
        locator: Locator,
        beginnings: Beginnings,
        patience: timedelta,
    ) -> None:
        self._app = app
        self._declaring = declaring
        self._hatchery = hatchery
        self._roster = roster
        self._locator = locator
        self._beginnings = beginnings
        self._patience = patience

    async def sightings(self, loops: Collection[Loop], listing: Listing) -> dict[LoopId, Sighting]:
        """Where the tokens of these loops are; those that are missed are looked for once more."""
        epochs = {loop.id: listing.known(loop.id) for loop in loops}
        found = await self._locator.find(epochs)
        missing = {loop: epochs[loop] for loop, seen in found.items() if seen.is_lost}
        if missing:
            await asyncio.sleep(BETWEEN_LOOKS)
            found |= await self._locator.find(missing)
        return found

    async def repair(self, watched: Collection[tuple[Loop, Watch]], kind: str) -> None:
        """Begin an epoch of loops that are lost or doubled.

        A loop of which a later epoch has begun meanwhile is left alone. One whose slot takes
        nothing keeps no other one waiting.
        """
        async with self._hatchery.mutex(self._patience):
            listing = await self._roster.compacted()
            still = [loop for loop, watch in watched if watch.epoch == listing.known(loop.id)]
            await side_by_side(lambda loop: self._repair(loop, listing, kind), still)

    async def _repair(self, loop: Loop, listing: Listing, kind: str) -> None:
        with suppress(Rejected):  # it is missed again, and then its slot is made anew
            await self.put_again(loop, listing)
            self._app.events.emit(LoopRepaired(loop.id, kind, DONE[kind]))

    async def renew(self, loops: Collection[Loop]) -> None:
        """Make the slots anew of loops that do not go on.

        After a node of a cluster stood still or was killed (seen on 3.10), RabbitMQ may keep a
        token that is due for ever, out of everybody's reach, or take tokens into a queue that is
        broken; or it may refuse what a processor puts, though none waits.

        Raises:
            AccessRefused: this user may not declare.
        """
        async with self._hatchery.mutex(self._patience):
            listing = await self._roster.compacted()
            for loop in loops:
                await self._declaring.renew_slot(loop)
                await self.put_again(loop, listing)
                detail = "the broker kept its token back, or took none: its queue was made anew"
                self._app.events.emit(LoopRepaired(loop.id, "stuck", detail))

    async def put_again(self, loop: Loop, listing: Listing) -> Token | None:
        """Begin an epoch of a loop as the roster has it, with the mutex in hand."""
        epoch = await self._beginnings.begin(
            Verb.REPAIR, as_listed(loop, listing), listing.get(loop.id)
        )
        return None if epoch is None else epoch.token
