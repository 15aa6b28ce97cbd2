"""Where each loop is, and how its last run went."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from scheduler.brokers.contract import Broker, Depth
from scheduler.control.concurrency import side_by_side
from scheduler.control.loops import as_listed, keyed_loops_of
from scheduler.control.processors import Processors
from scheduler.control.where import Where, due_at_of, put_of, where
from scheduler.errors import BrokerUnavailable, MessageError, QueueNotFound
from scheduler.protocol.tokens import LastRun, LoopId, Token
from scheduler.queues.journal import Journal, with_progress_of
from scheduler.queues.listing import Listed, Listing
from scheduler.queues.roll_call import Answers, RollCall
from scheduler.queues.roster import Roster
from scheduler.tasks.loops import Loop
from scheduler.tasks.registry import App
from scheduler.timing.clock import Clock

JOURNAL_TIMEOUT = timedelta(seconds=10)
CLOCKS_DIFFER = timedelta(seconds=5)
# Whatever a reading finds of a loop is its last put: so most are found near, and read with little.
LOOK_BACKS = (
    timedelta(seconds=10),
    timedelta(minutes=1),
    timedelta(minutes=10),
    timedelta(hours=2),
    timedelta(days=1),
)


@dataclass(frozen=True, slots=True)
class Status:
    """The state of a loop, by roster, journal, queues and processors.

    Attributes:
        epoch: in which the loop is.
        by: who began that: host, process and a part of its own.
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
    """Looks at loops and changes nothing.

    Asked again, it reads on in the journal from where it has come to.
    """

    def __init__(
        self,
        app: App,
        broker: Broker,
        clock: Clock,
        journal: Journal,
        roster: Roster,
        roll_call: RollCall,
        processors: Processors,
    ) -> None:
        self._app = app
        self._broker = broker
        self._clock = clock
        self._journal = journal
        self._roster = roster
        self._roll_call = roll_call
        self._processors = processors
        self._tokens = dict[LoopId, Token]()
        self._heard_at: datetime | None = None
        self._is_heard = False

    async def status(self, *only: Loop) -> list[Status]:
        """Return the status of each loop of the code and each keyed one, or only of some."""
        listing = await self.listing()
        loops = [as_listed(loop, listing) for loop in only] if only else self.loops(listing)
        tokens = await self._last_tokens([loop.id for loop in loops], listing)
        # What was put after it was read last, the journal did not tell.
        now = self._heard_at or self._clock.now()
        depths = await self.depths({loop.id.task for loop in loops})
        overdue = self._overdue(loops, tokens, listing, now)
        answers = await self.answers(overdue) if overdue else None
        return [
            _status(
                loop,
                listing.get(loop.id),
                tokens.get(loop.id),
                now,
                depths[loop.id.task],
                answers if loop.id in overdue else None,
                is_heard=self._is_heard,
            )
            for loop in loops
        ]

    async def last_tokens(self, loops: Sequence[Loop]) -> Mapping[LoopId, Token]:
        """Return what was put last of these loops, as far as the journal or a checkpoint tells."""
        return await self._last_tokens([loop.id for loop in loops], await self.listing())

    async def listing(self) -> Listing:
        """Return what the roster says; nothing, where nothing was seeded."""
        try:
            return await self._roster.read()
        except QueueNotFound:
            return Listing()

    def loops(self, listing: Listing) -> list[Loop]:
        """Return the loops of the code and the keyed ones, as they were seeded."""
        loops = [*self._app.loops.values(), *keyed_loops_of(self._app, listing)]
        return [as_listed(loop, listing) for loop in loops]

    async def _last_tokens(
        self, loops: Sequence[LoopId], listing: Listing
    ) -> Mapping[LoopId, Token]:
        """Return what was put last of each loop, as far as the journal or a checkpoint tells."""
        now, self._is_heard = self._clock.now(), True
        missing = {loop for loop in loops if loop not in self._tokens}
        if self._heard_at is not None:
            since = self._heard_at - CLOCKS_DIFFER
            found = await self._put_since(since, set(loops) - missing, JOURNAL_TIMEOUT)
            for loop, token in found.items():
                if token.position >= self._tokens[loop].position:
                    self._tokens[loop] = with_progress_of(token, self._tokens[loop])
        for loop, token in (await self._remembered(missing, listing)).items():
            noted = None if token.last is not None else self._checkpoint(listing.get(loop), None)
            self._tokens[loop] = token if noted is None else with_progress_of(token, noted)
        if self._is_heard:
            self._heard_at = now
        return self._tokens

    async def _remembered(
        self, loops: Collection[LoopId], listing: Listing
    ) -> Mapping[LoopId, Token]:
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
        """Return what the journal has heard last of these loops; nothing, if it is not readable."""
        if not loops:
            return {}
        try:
            return await self._journal.last_put(loops, since=since, within=within)
        except (QueueNotFound, BrokerUnavailable):
            self._is_heard = False
            return {}

    def _checkpoint(self, listed: Listed | None, since: datetime | None) -> Token | None:
        """Return the token that waited when it was noted, if none came after it until then."""
        checkpoint = None if listed is None else listed.checkpoint
        if checkpoint is None or (since is not None and checkpoint.until < since):
            return None
        try:
            return checkpoint.token(self._app.namespace)
        except MessageError:
            return None

    async def depths(self, tasks: Collection[str]) -> dict[str, Depth | None]:
        """Return how full the queues of tasks are; None where one does not exist."""
        return dict(zip(tasks, await side_by_side(self._depth, list(tasks)), strict=True))

    async def _depth(self, task: str) -> Depth | None:
        """Return how full a task's queue is, with those that consume from it now and then."""
        depth = await self._broker.depth(self._app.names.processor_queue(task))
        if depth is None:
            return None
        return Depth(depth.ready, await self._processors.of(task, depth))

    def _overdue(
        self,
        loops: Collection[Loop],
        tokens: Mapping[LoopId, Token],
        listing: Listing,
        now: datetime,
    ) -> dict[LoopId, int]:
        overdue = dict[LoopId, int]()
        for loop in loops:
            listed, token = listing.get(loop.id), tokens.get(loop.id)
            if listed is None or listed.is_gone or (token is None and not self._is_heard):
                continue
            put = None if token is None else put_of(token)
            due_at = due_at_of(listed, put)
            if due_at is not None and due_at < now:
                overdue[loop.id] = listing.known(loop.id)
        return overdue

    async def answers(self, loops: Mapping[LoopId, int]) -> Answers:
        """Ask all processors for the tokens of these loops.

        Raises:
            QueueNotFound: nothing was seeded.
        """
        async with self._roll_call:
            return await self._roll_call.ask_all(loops)


def _status(
    loop: Loop,
    listed: Listed | None,
    token: Token | None,
    now: datetime,
    depth: Depth | None,
    answers: Answers | None,
    *,
    is_heard: bool,
) -> Status:
    processors = 0 if depth is None else depth.consumers
    if depth is None or listed is None or listed.is_gone:
        return Status(loop, Where.UNSEEDED, processors)
    held = held_in(loop.id, listed.epoch, answers) if token is not None or is_heard else None
    put = None if token is None else put_of(token)
    place = where(listed, put, now, depth, timeout=loop.task.timeout, held=held)
    return Status(
        loop,
        place,
        processors,
        due_at=None if place is Where.PAUSED else _due_at(listed, token),
        seq=None if token is None else token.seq,
        attempt=None if token is None else token.attempt,
        reason=_reason(place, listed, token) or _silence(held, answers) or None,
        last=None if token is None else token.last,
        epoch=listed.epoch,
        by=listed.by,
        since=listed.at,
    )


def held_in(loop: LoopId, epoch: int, answers: Answers | None) -> bool | None:
    """Return whether a processor has a loop's token; None: not all have answered."""
    if answers is None:
        return False
    if any(token.position.epoch >= epoch for token in answers.tokens(loop)):
        return True
    return False if answers.complete else None


def _due_at(listed: Listed, token: Token | None) -> datetime | None:
    """Return when a loop is due; where nothing was heard of its epoch, by its schedule."""
    if token is None or token.epoch < listed.epoch:
        return listed.first_due_at
    return token.due_at


def _reason(place: Where, listed: Listed, token: Token | None) -> str:
    if place is not Where.PAUSED:
        return ""
    if token is not None and token.rests and token.epoch >= listed.epoch and token.reason:
        return token.reason
    return listed.reason


def _silence(held: bool | None, answers: Answers | None) -> str:
    if held is not None or answers is None:
        return ""
    return f"as far as is known: no answer from {', '.join(answers.unheard)}"
