"""Looking at loops again and again, though a look into a slot holds up what is about to leave it.

The slots are looked into at first, and seldom after that. Between two looks, the journal tells what
was put; where the token of a loop that is due has got to, its queue and the processors tell.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from scheduler.control.location import Locator, Place, Sighting
from scheduler.control.status import Status, Survey, Where, status_of
from scheduler.errors import QueueNotFound
from scheduler.protocol.tokens import LoopId, Token
from scheduler.queues.journal import Journal
from scheduler.queues.roster import Listing
from scheduler.tasks.loops import Loop
from scheduler.timing.clock import Clock

LOOK_EVERY = timedelta(seconds=30)
CLOCKS_DIFFER = timedelta(seconds=5)
UNSEEN = (Place.NOWHERE, Place.UNKNOWN)


class Watch:
    """The status of each loop, as often as it is asked for.

    Attributes:
        looked_at: when slots were last looked into; None: not yet.
    """

    def __init__(self, clock: Clock, survey: Survey, journal: Journal, locator: Locator) -> None:
        self._clock = clock
        self._survey = survey
        self._journal = journal
        self._locator = locator
        self._known: dict[LoopId, Status] = {}
        self._heard_at: datetime | None = None
        self.looked_at: datetime | None = None

    async def status(self) -> list[Status]:
        """The status of each loop of the code, and of each keyed one.

        Raises:
            BrokerError: it could not be asked for.
        """
        now = self._clock.now()
        if self.looked_at is None or now - self.looked_at >= LOOK_EVERY:
            found = await self._survey.status()
            self.looked_at = now
        else:
            found = await self._followed(now)
        self._heard_at = now
        self._known = {status.loop.id: status for status in found}
        return found

    async def _followed(self, now: datetime) -> list[Status]:
        listing = await self._survey.listing()
        loops = self._survey.loops(listing)
        put = await self._put_since({loop.id for loop in loops})
        found = [await self._one(loop, put.get(loop.id), listing) for loop in loops]
        due = {
            status.loop.id: listing.known(status.loop.id)
            for status in found
            if status.due_at is not None and status.due_at <= now
        }
        seen = await self._locator.find_due(due) if due else {}
        return [_placed(status, seen.get(status.loop.id)) for status in found]

    async def _put_since(self, loops: Collection[LoopId]) -> Mapping[LoopId, Token]:
        since = self._heard_at and self._heard_at - CLOCKS_DIFFER
        try:
            return await self._journal.last_put(loops, since=since)
        except QueueNotFound:  # nothing was seeded
            return {}

    async def _one(self, loop: Loop, token: Token | None, listing: Listing) -> Status:
        known = self._known.get(loop.id)
        if known is None:
            (known,) = await self._survey.status(loop)
        if token is None or _is_behind(token, known):
            return known
        return status_of(loop, Sighting(Place.SLOT, token, known.processors), listing)


def _is_behind(token: Token, known: Status) -> bool:
    """Whether it is no later than what is known: what was heard before is heard again."""
    if known.seq is None:
        return False
    return (token.epoch, token.seq, token.attempt) <= (known.epoch, known.seq, known.attempt or 0)


def _placed(status: Status, seen: Sighting | None) -> Status:
    """Where the token of a due loop is; that nobody has it may be so for a moment."""
    if seen is None or seen.place in UNSEEN or status.where is Where.UNSEEDED:
        return status
    where = Where.READY if seen.place is Place.READY else Where.RUNNING
    return replace(status, where=where, processors=seen.processors)
