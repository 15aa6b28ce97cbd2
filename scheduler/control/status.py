"""Where each loop's token is, and how its last run went."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from scheduler.control.location import Locator, Place, Sighting
from scheduler.control.loops import as_listed, keyed_loops_of
from scheduler.errors import BrokerUnavailable, MessageError, QueueNotFound
from scheduler.protocol.tokens import LastRun, LoopId, State, Token
from scheduler.queues.journal import Journal
from scheduler.queues.roster import Listed, Listing, Roster
from scheduler.tasks.loops import Loop
from scheduler.tasks.registry import App
from scheduler.timing.clock import Clock

JOURNAL_TIMEOUT = timedelta(seconds=10)
# Whatever a reading finds of a loop is its last put: so most are found near, and read with little.
LOOK_BACKS = (
    timedelta(seconds=10),
    timedelta(minutes=1),
    timedelta(minutes=10),
    timedelta(hours=2),
    timedelta(days=1),
)


class Where(StrEnum):
    """Where the token of a loop is."""

    WAITING = "waiting"
    PAUSED = "paused"
    DONE = "done"
    READY = "ready"
    RUNNING = "running"
    LOST = "lost"
    UNSEEDED = "unseeded"


WAITING_AS = {State.PAUSED: Where.PAUSED, State.DONE: Where.DONE}


@dataclass(frozen=True, slots=True)
class Status:
    """What the token tells, or, while a processor has it, the journal.

    Attributes:
        epoch: in which the loop is.
        by: who began that, as the roster says: host, process and a part of its own.
        since: when that was.
    """

    loop: Loop
    where: Where
    processors: int
    due_at: datetime | None = None
    seq: int | None = None
    attempt: int | None = None
    reason: str | None = None
    last: LastRun | None = None
    epoch: int = 0
    by: str = ""
    since: datetime | None = None


class Survey:
    """Looks at loops, and changes nothing."""

    def __init__(
        self, app: App, clock: Clock, journal: Journal, roster: Roster, locator: Locator
    ) -> None:
        self._app = app
        self._clock = clock
        self._journal = journal
        self._roster = roster
        self._locator = locator

    async def status(self, only: Loop | None = None) -> list[Status]:
        """The status of each loop of the code, and of each keyed one; or only of this one."""
        listing = await self.listing()
        loops = self.loops(listing) if only is None else [as_listed(only, listing)]
        seen = await self._seen({loop.id: listing.known(loop.id) for loop in loops})
        found = [status_of(loop, seen[loop.id], listing) for loop in loops]
        remembered = await self._remembered(
            {status.loop.id for status in found if status.last is None and status.seq is None},
            listing,
        )
        return [_completed(status, remembered.get(status.loop.id)) for status in found]

    async def _seen(self, loops: Mapping[LoopId, int]) -> Mapping[LoopId, Sighting]:
        """Where the tokens are; one that was nowhere may have moved, and is looked for again."""
        seen = await self._locator.find(loops)
        nowhere = {loop: loops[loop] for loop, each in seen.items() if each.is_lost}
        return {**seen, **await self._locator.find(nowhere)} if nowhere else seen

    async def listing(self) -> Listing:
        """What the roster says; nothing, where nothing was seeded."""
        try:
            return await self._roster.read()
        except QueueNotFound:
            return Listing()

    def loops(self, listing: Listing) -> list[Loop]:
        """The loops of the code, and the keyed ones, as they were seeded."""
        loops = [*self._app.loops.values(), *keyed_loops_of(self._app, listing)]
        return [as_listed(loop, listing) for loop in loops]

    async def _remembered(
        self, loops: Collection[LoopId], listing: Listing
    ) -> Mapping[LoopId, Token]:
        """What was put last of each loop, as far as the journal or a checkpoint tells."""
        now = self._clock.now()
        deadline = now + JOURNAL_TIMEOUT
        noted = {loop: listing[loop] for loop in loops if loop in listing}
        found: dict[LoopId, Token] = {}
        missing = set(loops)
        for since in (*(now - back for back in LOOK_BACKS), None):
            left = deadline - self._clock.now()
            if not missing or left <= timedelta(0):
                break
            found |= await self._put_since(since, missing, left)
            found |= {
                loop: token
                for loop in missing - set(found)
                if loop in noted and (token := self._checkpoint(noted[loop], since))
            }
            missing -= set(found)
        return found

    async def _put_since(
        self, since: datetime | None, loops: Collection[LoopId], within: timedelta
    ) -> dict[LoopId, Token]:
        """What the journal has heard last of these loops; nothing, where it cannot be read."""
        try:
            return await self._journal.last_put(loops, since=since, within=within)
        except (QueueNotFound, BrokerUnavailable):
            return {}

    def _checkpoint(self, listed: Listed, since: datetime | None) -> Token | None:
        """The token that waited when it was noted, if none came after it until this moment."""
        checkpoint = listed.checkpoint
        if checkpoint is None or (since is not None and checkpoint.until < since):
            return None
        try:
            return checkpoint.token(self._app.namespace)
        except MessageError:
            return None


def status_of(loop: Loop, seen: Sighting, listing: Listing) -> Status:
    """What there is to say of a loop whose token was seen there."""
    listed = listing.get(loop.id)
    return _begun(_status(loop, seen, listed), listed)


def _status(loop: Loop, seen: Sighting, listed: Listed | None) -> Status:
    unseeded = listed is None or listed.is_gone
    match seen.place:
        case Place.NO_SLOT | Place.NO_TASK:
            return Status(loop, Where.UNSEEDED, seen.processors)
        case _ if unseeded and seen.token is None:
            return Status(loop, Where.UNSEEDED, seen.processors)
        case Place.SLOT:
            assert seen.token is not None
            return _waiting(loop, seen.token, seen.processors)
        case Place.READY:
            return Status(loop, Where.READY, seen.processors)
        case Place.HAND:
            return Status(loop, Where.RUNNING, seen.processors)
        case Place.NOWHERE | Place.UNRESPONSIVE:
            return Status(loop, Where.LOST, seen.processors)
        case Place.UNKNOWN:  # what is likely
            likely = Where.RUNNING if seen.processors else Where.LOST
            reason = f"as far as is known: no answer from {', '.join(seen.unheard)}"
            return Status(loop, likely, seen.processors, reason=reason)


def _begun(status: Status, listed: Listed | None) -> Status:
    if listed is None or listed.is_gone:
        return status
    return replace(status, epoch=listed.epoch, by=listed.by, since=listed.at)


def _waiting(loop: Loop, token: Token, processors: int) -> Status:
    return Status(
        loop,
        WAITING_AS.get(token.state, Where.WAITING),
        processors,
        due_at=None if token.rests else token.due_at,
        seq=token.seq,
        attempt=token.attempt,
        reason=token.reason,
        last=token.last,
    )


def _completed(status: Status, token: Token | None) -> Status:
    if token is None:
        return status
    return replace(
        status,
        due_at=token.due_at,
        seq=token.seq,
        attempt=token.attempt,
        reason=status.reason or token.reason,
        last=token.last,
    )
