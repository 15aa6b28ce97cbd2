"""Where each loop's token is, and how its last run went."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from scheduler.control.location import Locator, Place, Sighting
from scheduler.control.loops import as_listed, keyed_loops_of
from scheduler.errors import BrokerUnavailable, QueueNotFound
from scheduler.protocol.tokens import LastRun, LoopId, State, Token
from scheduler.queues.journal import Journal, look_backs
from scheduler.queues.roster import Listed, Listing, Roster
from scheduler.tasks.loops import Loop
from scheduler.tasks.registry import App
from scheduler.timing.clock import Clock

JOURNAL_TIMEOUT = timedelta(seconds=10)


class Where(StrEnum):
    """Where the token of a loop is."""

    WAITING = "waiting"
    PAUSED = "paused"
    READY = "ready"
    RUNNING = "running"
    LOST = "lost"
    UNSEEDED = "unseeded"


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

    async def status(self) -> list[Status]:
        """The status of each loop of the code, and of each keyed one."""
        try:
            listing = await self._roster.read()
        except QueueNotFound:
            listing = Listing()
        loops = [*self._app.loops.values(), *keyed_loops_of(self._app, listing)]
        loops = [as_listed(loop, listing) for loop in loops]
        seen = await self._locator.find({loop.id: listing.known(loop.id) for loop in loops})
        found = [
            _begun(_status(loop, seen[loop.id], listing.get(loop.id)), listing.get(loop.id))
            for loop in loops
        ]
        remembered = await self._remembered(
            [status.loop for status in found if status.last is None and status.seq is None]
        )
        return [_completed(status, remembered.get(status.loop.id)) for status in found]

    async def _remembered(self, loops: Collection[Loop]) -> dict[LoopId, Token]:
        if not loops:
            return {}
        since, _ = look_backs([loop.schedule for loop in loops], self._clock)
        try:
            heard = await self._journal.heard(
                {loop.id for loop in loops}, since=since, within=JOURNAL_TIMEOUT
            )
        except (QueueNotFound, BrokerUnavailable):
            return {}
        return {loop: each.last for loop, each in heard.items() if each.last is not None}


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
        case Place.NOWHERE:
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
    paused = token.state is State.PAUSED
    return Status(
        loop,
        Where.PAUSED if paused else Where.WAITING,
        processors,
        due_at=None if paused else token.due_at,
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
