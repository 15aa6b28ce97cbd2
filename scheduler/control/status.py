"""Determine where each loop is, how its last run went, and the backlog of the tasks."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from itertools import islice
from types import MappingProxyType

from scheduler.brokers.contract import Depth, total
from scheduler.control.census import CLOCKS_DIFFER, Census
from scheduler.control.installation import Leftover
from scheduler.control.loops import (
    TOLERANCE,
    Where,
    as_listed,
    due_at_of,
    keyed_loops_of,
    loop_of_entry,
    name_of_orphan,
    orphans_of,
    put_of,
    where,
)
from scheduler.errors import BrokerUnavailable, MessageError, QueueNotFound
from scheduler.protocol.epochs import LoopState
from scheduler.protocol.hatchery import timers
from scheduler.protocol.tokens import LastRun, LoopId, Token
from scheduler.queues.concurrency import side_by_side
from scheduler.queues.entries import LONG, RosterEntry
from scheduler.queues.history import BEHIND, CallTotals, Summary, totals_of
from scheduler.queues.journal import with_progress_of
from scheduler.queues.listing import Listing
from scheduler.queues.namespace import Namespace
from scheduler.queues.roll_call import Answers
from scheduler.tasks.loops import Loop, queues_of, resting, served
from scheduler.tasks.tasks import TaskSpec

RECENT = timedelta(minutes=15)
JOURNAL_TIMEOUT = timedelta(seconds=10)
LOOK_BACKS = (
    timedelta(seconds=10),
    timedelta(minutes=1),
    LONG + timedelta(minutes=1),
    timedelta(minutes=10),
    timedelta(hours=2),
    timedelta(days=1),
)
"""The last put of a loop counts, wherever it is found: most are found near, with little reading."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Describe the pause of a whole task: who paused it, when, and why."""

    by: str
    since: datetime
    reason: str


@dataclass(frozen=True, slots=True)
class Status:
    """Describe the state of a loop, by roster, journal, queues and processors.

    Attributes:
        attempt: which attempt at the tick is next, or running, counted from 1.
        task_pause: of its task, which holds a loop that is not paused itself.
        by, since: who began its epoch, and when.
    """

    loop: Loop
    where: Where
    processors: int
    due_at: datetime | None = None
    seq: int | None = None
    attempt: int | None = None
    reason: str | None = None
    task_pause: Pause | None = None
    last: LastRun | None = None
    epoch: int = 0
    by: str = ""
    since: datetime | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """Choose the loops to show.

    Attributes:
        key: a pattern for keys, with `*` and `?`; empty: those without a key too.
        state: only where they are; None: anywhere.
    """

    task: str = ""
    key: str = ""
    state: Where | None = None
    limit: int = 1_000

    def has(self, loop: LoopId) -> bool:
        """Return whether a loop is of this task, and its key fits the pattern."""
        return self.task in ("", loop.task) and fnmatchcase(loop.key, self.key or "*")


@dataclass(frozen=True, slots=True)
class StatusPage:
    """Hold some loops of a namespace, of a total; more that were chosen were not checked."""

    loops: Sequence[Status]
    more: int = 0
    total: int = 0


@dataclass(frozen=True, slots=True)
class Backlog:
    """Count the messages of a task, without those that run or wait for their time.

    Attributes:
        ready: wait for a processor; None: the task was never seeded.
        parked: wait for an operator.
        recent: the outcomes of its calls in the last quarter of an hour.
        oldest: how long the oldest message has been ready, as processors see it; None: none is, or
            none of them takes messages now.
    """

    task: str
    ready: int | None
    processors: int
    parked: int
    recent: CallTotals = field(default_factory=CallTotals)
    pause: Pause | None = None
    oldest: timedelta | None = None

    @property
    def is_behind(self) -> bool:
        """Return whether its messages wait for longer than they should."""
        return self.oldest is not None and self.oldest > BEHIND

    @property
    def is_fine(self) -> bool:
        """Return whether it was seeded, and its calls neither fail nor wait for long."""
        return self.ready is not None and not (self.recent.is_failing or self.is_behind)


@dataclass(frozen=True, slots=True)
class Counts:
    """Count the objects besides the loops of an app, and its ready messages.

    Attributes:
        parked: the messages that wait for an operator, those of loops and of removed tasks too.
        delayed: the messages that wait for their time, retries included.
        void: the least number of void tokens in the timers of loops.
        orphans: the loops, and pauses of tasks, in the broker that the code does not have.
        alarm: why the broker blocks publishers; empty: it does not.
    """

    parked: int = 0
    delayed: int = 0
    void: int = 0
    orphans: tuple[str, ...] = ()
    leftovers: tuple[Leftover, ...] = ()
    alarm: str = ""


@dataclass(slots=True)
class LastTokens:
    """Hold the last tokens of some loops.

    Attributes:
        at: when the journal was read: it may have reported no later puts.
        is_complete: whether it could be read.
    """

    at: datetime
    tokens: dict[LoopId, Token] = field(default_factory=dict[LoopId, Token])
    is_complete: bool = True


class Survey:
    """Survey loops without changing anything.

    That of a processor, which repairs lost loops, reads streams to their ends, for which it writes
    marks into them. A later call for the same loops reads the journal from the end of the last one.
    """

    def __init__(self, namespace: Namespace) -> None:
        self._space = namespace
        self._app, self._broker, self._clock = namespace.app, namespace.broker, namespace.clock
        self._is_exact = namespace.is_processor
        self._names, self._history = namespace.app.names, namespace.history
        self._journal, self._roster = namespace.journal, namespace.roster
        self._roll_call = namespace.roll_call
        self._heard: LastTokens | None = None

    async def status(self, *only: Loop) -> list[Status]:
        """Return the status of each loop of the code and each keyed one, or only of some."""
        listing = await self.listing([loop.id for loop in only] if only else None)
        loops = [as_listed(loop, listing) for loop in only] if only else self.loops(listing)
        heard = await self._hear([loop.id for loop in loops], listing)
        depths = await self.depths({loop.id.task for loop in loops})
        overdue = self._overdue(loops, listing, heard)
        answers = await self._roll_call.ask_all(overdue) if overdue else None
        asked = dict.fromkeys(overdue, answers)

        def statuses() -> list[Status]:
            return [
                self._status(loop, listing, heard, depths[loop.id.task], asked.get(loop.id))
                for loop in loops
            ]

        found = statuses()
        # A token whose run was settled since the reading is not held, but has continued.
        lost = [each.loop.id for each in found if each.where is Where.LOST]
        if heard.is_complete and not heard.tokens.keys().isdisjoint(lost):
            heard.tokens |= (await self._hear([*heard.tokens], listing)).tokens
            found = statuses()
        return found

    def _status(
        self,
        loop: Loop,
        listing: Listing,
        heard: LastTokens,
        depth: Depth | None,
        answers: Answers | None,
    ) -> Status:
        token = heard.tokens.get(loop.id)
        processors, listed = 0 if depth is None else depth.consumers, listing.get(loop.id)
        if listed is not None and listed.is_gone:
            return Status(loop, Where.REMOVED, processors)
        if depth is None or listed is None:
            return Status(loop, Where.UNSEEDED, processors)
        is_known = token is not None or heard.is_complete
        held = held_in(loop.id, listed.epoch, answers) if is_known else None
        put = None if token is None else put_of(token)
        of_task, timeout = listing.of_task(loop.task.name), loop.task.timeout
        place = where(listed, put, heard.at, depth, of_task=of_task, timeout=timeout, held=held)
        status = status_of(loop, place, processors, listed, token, listing)
        if not status.reason and held is None and answers is not None:
            status = replace(status, reason=f"as far as is known: {answers.silence}")
        return status

    async def page(self, choice: Choice) -> StatusPage:
        """Return the status of the loops chosen; of too many, those that are overdue come first."""
        app, listing = self._app, await self.listing()
        table, tasks = listing.table, [name for name in app.tasks if choice.task in ("", name)]
        # Of a task that is paused, all loops are, whatever their own entries tell.
        is_own = choice.state is Where.PAUSED and not any(
            pause_of(listing, app.tasks[name]) for name in tasks
        )
        of = tasks, choice.key or "*", LoopState.PAUSED if is_own else None
        ids = list(filter(choice.has, app.loops))
        count = len(ids) + table.count_keyed(*of)
        if count > choice.limit and not is_own:
            ids = [*filter(choice.has, await self._overdue_of_all()), *ids]
        ids = dict.fromkeys((*ids, *table.keyed(*of, most=choice.limit)))
        loops = list(
            islice(filter(None, (self._loop(each, listing) for each in ids)), choice.limit)
        )
        statuses = await self.status(*loops) if loops else []
        return StatusPage(
            [each for each in statuses if choice.state in (None, each.where)],
            count - len(loops),
            len(app.loops) + table.count_keyed(app.tasks, "*"),
        )

    def _loop(self, loop: LoopId, listing: Listing) -> Loop | None:
        if (of_code := self._app.loops.get(loop)) is not None:
            return of_code
        listed = listing.get(loop)
        return None if listed is None else loop_of_entry(self._app, listed)

    async def _overdue_of_all(self) -> list[LoopId]:
        """Return loops whose token should have come, not all if there are too many."""
        census, now = Census(self._space), self._clock.now()
        try:
            await census.look()
        except QueueNotFound:
            return []
        return [each.loop.id for each in await census.overdue(now, TOLERANCE, {})]

    async def last_tokens(self, loops: Sequence[Loop]) -> Mapping[LoopId, Token]:
        """Return the last puts of these loops, from the journal or a checkpoint."""
        ids = [loop.id for loop in loops]
        return (await self._hear(ids, await self.listing(ids))).tokens

    async def listing(self, only: Collection[LoopId] | None = None) -> Listing:
        """Return the roster; an empty one if nothing was seeded.

        Args:
            only: the loops to look up; None: all.
        """
        try:
            return await (self._roster.read(only) if self._is_exact else self._roster.look(only))
        except QueueNotFound:
            return Listing()

    def loops(self, listing: Listing) -> list[Loop]:
        """Return the loops of the code and the keyed ones, as they were seeded."""
        loops = [*self._app.loops.values(), *keyed_loops_of(self._app, listing)]
        return [as_listed(loop, listing) for loop in loops]

    async def _hear(self, loops: Sequence[LoopId], listing: Listing) -> LastTokens:
        """Return the last put of each loop, from the journal or a checkpoint."""
        heard, before = LastTokens(self._clock.now()), self._heard
        if before is not None:
            known = {
                loop: self._latest(before.tokens[loop], listing)
                for loop in loops
                if loop in before.tokens
            }
            heard.tokens |= known
            since = before.at - CLOCKS_DIFFER
            found = await self._put_since(since, known, JOURNAL_TIMEOUT, heard)
            for loop, token in found.items():
                if token.position >= known[loop].position:
                    heard.tokens[loop] = with_progress_of(token, known[loop])
        missing = set(loops) - heard.tokens.keys()
        for loop, token in (await self._remembered(missing, listing, heard)).items():
            noted = None if token.last is not None else self._checkpoint(listing.get(loop), None)
            heard.tokens[loop] = token if noted is None else with_progress_of(token, noted)
        if heard.is_complete:  # others were heard until another moment, so they are not kept
            self._heard = replace(heard, tokens=dict(heard.tokens))
        elif before is not None:
            heard.at = before.at
        return heard

    async def _remembered(
        self, loops: Collection[LoopId], listing: Listing, heard: LastTokens
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
            before = {
                loop: token
                for loop in missing
                if loop in noted and (token := self._checkpoint(noted[loop], since))
            }
            found |= before | await self._put_since(since, missing, left, heard)
            # If no run made the last token, more may be known about the run before.
            missing -= before.keys() | {
                loop
                for loop, token in found.items()
                if token.last is not None or token.epoch == token.life
            }
        return found

    async def _put_since(
        self,
        since: datetime | None,
        loops: Collection[LoopId],
        within: timedelta,
        heard: LastTokens,
    ) -> dict[LoopId, Token]:
        """Return the last puts of these loops in the journal; none if it is not readable."""
        if not loops:
            return {}
        try:
            return await self._journal.last_put(
                loops, since=since, within=within, is_exact=self._is_exact
            )
        except (QueueNotFound, BrokerUnavailable):
            heard.is_complete = False
            return {}

    def _latest(self, token: Token, listing: Listing) -> Token:
        """Return a remembered token, or the one that was noted since."""
        noted = self._checkpoint(listing.get(token.loop), None)
        return token if noted is None or noted.position <= token.position else noted

    def _checkpoint(self, listed: RosterEntry | None, since: datetime | None) -> Token | None:
        """Return the token that waited when it was noted, if it had no successor until then."""
        checkpoint = None if listed is None else listed.noted(self._app.namespace)
        if checkpoint is None or (since is not None and checkpoint.until < since):
            return None
        try:
            return checkpoint.token(self._app.namespace)
        except MessageError:
            return None

    async def depths(
        self, tasks: Collection[str], shards: Mapping[str, int] = MappingProxyType({})
    ) -> dict[str, Depth | None]:
        """Return the depths of the queues of tasks; None if none exists.

        Args:
            shards: how many queues tasks have in the broker, if not as many as in the code.
        """
        depths = await side_by_side(lambda task: self._depth(task, shards.get(task)), list(tasks))
        return dict(zip(tasks, depths, strict=True))

    async def _depth(self, task: str, shards: int | None) -> Depth | None:
        """Return the depth of a task's queues, counting consumers that take turns."""
        names, queues = self._names, queues_of(self._app, task)
        if shards is not None:
            queues = names.processor_queues(task, shards)
        depth = total([await self._broker.depth(queue) for queue in queues])
        if depth is None or depth.consumers or task not in resting(self._app):
            return depth
        # Its processors leave the queue while its next message has to wait.
        present = await self._broker.depth(names.presence)
        return Depth(depth.ready, present.consumers if present else 0)

    async def backlogs(self) -> list[Backlog]:
        """Return the backlog of each task that is sent messages."""
        called, recent = self._called, await self.recent_calls()
        pauses = await self.pauses()
        names = [name for task in called for name in task.names]
        parked = await side_by_side(self._broker.depth, list(map(self._names.failed_queue, names)))
        ready, failed = await self.depths(names), dict(zip(names, parked, strict=True))
        now = self._clock.now()
        return [
            Backlog(
                task.name,
                None if (own := ready[task.name]) is None else _total(ready, task),
                own.consumers if own else 0,
                _total(failed, task),
                totals := recent.get(task.name, CallTotals()),
                pauses.get(task.name),
                totals.oldest(now) if own and own.consumers and _total(ready, task) else None,
            )
            for task in called
        ]

    async def pauses(self) -> dict[str, Pause]:
        """Return the pauses of the tasks that are paused."""
        listing = await self.listing()
        tasks = self._app.tasks.items()
        return {name: pause for name, task in tasks if (pause := pause_of(listing, task))}

    async def recent_calls(self) -> dict[str, CallTotals]:
        """Read the outcomes of each task's calls in the last quarter of an hour."""
        if not self._called:
            return {}
        try:
            since = self._clock.now() - RECENT
            reading = self._history.read(since=since, containing='"until_ms"')
            return totals_of([summary async for summary in reading if isinstance(summary, Summary)])
        except QueueNotFound:  # nothing was seeded
            return {}

    @property
    def _called(self) -> list[TaskSpec]:
        return [task for task in self._app.tasks.values() if task.called]

    async def counts(self, waiting: int, leftovers: Iterable[Leftover]) -> Counts:
        """Count by the lengths of queues, of which `waiting` tokens are not void."""
        app, names, leftovers = self._app, self._names, tuple(leftovers)
        parked = await self._waiting_in([*map(names.failed_queue, served(app)), names.failed])
        return Counts(
            parked + sum(each.parked or 0 for each in leftovers),
            await self._waiting_in(map(names.later_timer, timers() if self._called else ())),
            max(await self._waiting_in(map(names.timer, timers())) - waiting, 0),
            tuple(map(name_of_orphan, orphans_of(app, await self.listing()))),
            leftovers,
            await self._broker.alarm(),
        )

    async def _waiting_in(self, queues: Iterable[str]) -> int:
        depths = await side_by_side(self._broker.depth, list(queues))
        return sum(depth.ready for depth in depths if depth is not None)

    def _overdue(
        self, loops: Collection[Loop], listing: Listing, heard: LastTokens
    ) -> dict[LoopId, int]:
        overdue = dict[LoopId, int]()
        for loop in loops:
            listed, token = listing.get(loop.id), heard.tokens.get(loop.id)
            if listed is None or listed.is_gone or (token is None and not heard.is_complete):
                continue
            put = None if token is None else put_of(token)
            due_at = due_at_of(listed, put, listing.of_task(loop.task.name))
            if due_at is not None and due_at < heard.at:
                overdue[loop.id] = listing.known(loop.id)
        return overdue


def status_of(
    loop: Loop,
    place: Where,
    processors: int,
    listed: RosterEntry,
    token: Token | None,
    listing: Listing,
) -> Status:
    """Return the status of a loop at a place, by its entry and its last put."""
    latest = token if token is not None and token.epoch >= listed.epoch else None
    due_at, reason, task_pause = latest.due_at if latest else listed.first_due_at, "", None
    if place is Where.PAUSED:
        due_at = None
        reason = (latest.reason if latest and latest.rests else "") or listed.reason
        if listed.is_active and not (latest and latest.rests):
            task_pause = pause_of(listing, loop.task)
            reason = f"its task is paused: {task_pause.reason if task_pause else ''}"
    return Status(
        loop,
        place,
        processors,
        due_at,
        seq=None if token is None else token.seq,
        attempt=None if token is None else token.attempt + 1,
        reason=reason or None,
        task_pause=task_pause,
        last=None if token is None else token.last,
        epoch=listed.epoch,
        by=listed.by,
        since=listed.at,
    )


def pause_of(listing: Listing, task: TaskSpec) -> Pause | None:
    """Return the pause of a task by any of its names; None: it is not paused."""
    paused = listing.pause_of(task.name)
    return None if paused is None else Pause(paused.by, paused.at, paused.reason)


def _total(depths: Mapping[str, Depth | None], task: TaskSpec) -> int:
    """Count the messages of a task's queues, including those of its aliases."""
    return sum(depth.ready for name in task.names if (depth := depths[name]) is not None)


def held_in(loop: LoopId, epoch: int, answers: Answers | None) -> bool | None:
    """Return whether a processor has a loop's token; None: not all have answered."""
    if answers is None:
        return False
    if any(token.position.epoch >= epoch for token in answers.tokens(loop)):
        return True
    return False if answers.complete else None
