"""Track all loops and their due tokens by reading the journal incrementally.

A failing node of the broker may deliver a token twice (S2 of `scheduler.protocol.epochs`). Two
lines of one loop may be far apart, so the last put of every loop is stored: the recent ones in
memory, the others in the table of the roster's listing.

The token of supervision carries what a round found, whichever processor runs the next one. So a
reader of the journal sees the last counts without asking a processor.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from operator import itemgetter
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from scheduler.brokers.contract import Depth, total
from scheduler.control.loops import TOLERANCE, due_at_of, is_orphan, loop_of_entry, put_of
from scheduler.errors import MessageError, StreamTooLong
from scheduler.protocol.epochs import LoopState, Verb, is_doubled
from scheduler.protocol.hatchery import timers
from scheduler.protocol.messages import Message, compact_json, parsed_json
from scheduler.protocol.tokens import LoopId, slice_of
from scheduler.queues.concurrency import side_by_side
from scheduler.queues.entries import LONG, RosterEntry
from scheduler.queues.journal import Put
from scheduler.queues.listing import Listing
from scheduler.queues.namespace import Namespace
from scheduler.tasks.loops import Loop, queues_of
from scheduler.tasks.tasks import SUPERVISION
from scheduler.timing.moments import milliseconds_since_epoch, moment_of

LOOK_BACK = LONG + timedelta(minutes=1)
"""A token that waits longer than `LONG` is in the roster, so no more is read at first."""
CLOCKS_DIFFER = timedelta(seconds=5)
LONG_MS = LONG // timedelta(milliseconds=1)
MOST_PUTS = 20_000
"""Loops whose last puts are in memory."""
KEPT_AT_ONCE = 50  # of them, as each row may have to be read from the disk

MOST_LONG = 10_000
"""Messages that are in memory, to be noted."""

BREATHE_EVERY = 50  # loops that are checked
MOST_OVERDUE = 20_000  # loops that are checked in a round
MOST_BEHIND = 100  # of them, those of a task whose queue is not empty
MOST_ORPHANS = 300  # of a task
LOOKED_AT_AGAIN = timedelta(seconds=1)
Shard = tuple[str, int]
"""A task and one of its shards: each is a queue, in which tokens are in order."""


@dataclass(frozen=True, slots=True)
class Overdue:
    """Describe a loop with an overdue token, and until when its queue was served a round ago."""

    loop: Loop
    listed: RosterEntry
    put: Put | None
    due_at: datetime
    served_until: datetime | None


class Census:
    """Track the last puts of all loops of a namespace.

    Attributes:
        doubled: loops with two lines in their current epoch, each with that epoch.
        long: the puts since the last note, of loops that wait for long or not at all.
    """

    def __init__(self, namespace: Namespace) -> None:
        self._app, self._clock = namespace.app, namespace.clock
        self._journal, self._listing = namespace.journal, namespace.roster.listing
        self._orphans = dict[str, tuple[int, list[LoopId]]]()
        self._reached: int | None = None
        self._heard_until = 0
        self._streams = self._listing.streams
        self._served = dict[Shard, int]()
        self._served_before = dict[Shard, int]()
        self._puts = dict[LoopId, Put]()
        self.doubled = dict[LoopId, int]()
        self.long = dict[LoopId, tuple[Put, Message]]()

    def begin_again(self) -> None:
        """Begin the next reading near: other processors have read on.

        Puts that are heard again show no second line.
        """
        self._heard_until = max(self._heard_until, self._reached or 0)
        self._reached = None

    async def read_on(
        self,
        noted_until: datetime | None = None,
        *,
        is_exact: bool = True,
    ) -> bool:
        """Read the puts since the last reading; return whether it was read to its end.

        Otherwise `long` is full, or the time was over: empty it, and read on. If the broker fails,
        the next reading continues from there.

        Args:
            noted_until: the roster has the progress that was put before; None: unknown.
            is_exact: whether to read up to the last put that was confirmed before. Otherwise
                nothing is written, and in a cluster, the newest puts may be missing.
        """
        if self._listing.streams != self._streams:  # the last puts may have gone with its table
            self._streams = self._listing.streams
            self.begin_again()
        begin = self._clock.now() - LOOK_BACK
        if noted_until is not None:
            begin = min(begin, noted_until - CLOCKS_DIFFER)
        since = before = self._reached
        if since is None:
            since = begin
        try:
            self._reached = await self._journal.read_on(
                self._hear_once, since=since, is_exact=is_exact
            )
        except StreamTooLong:
            if self._reached == before:
                raise
            return False
        return not self._is_full

    async def look(self) -> None:
        """Read the puts of the last minutes, however long that takes, and write nothing."""
        while not await self.read_on(is_exact=False):
            self.long.clear()

    def put_of(self, loop: LoopId) -> Put | None:
        """Return the last put of a loop in its latest epoch; None: none was heard."""
        if (put := self._puts.get(loop)) is not None:
            return put
        kept = self._listing.table.put(loop)
        return None if kept is None else Put(*parsed_json(kept))

    def put_of_entry(self, listed: RosterEntry) -> Put | None:
        """Return the last put of a loop: the last that was heard, or a later one that was noted."""
        put = self.put_of(listed.loop)
        if (checkpoint := listed.checkpoint) is not None:
            with suppress(MessageError):
                noted = put_of(checkpoint.token(self._app.namespace))
                if put is None or put.position < noted.position:
                    return noted
        return put

    def orphans(self) -> list[LoopId]:
        """Return loops that this code does not have; a selection if there are too many."""
        found = list[LoopId]()
        for task in self._listing.counts:
            own, count = LoopId(task), self._listing.count_of(task)
            if task in self._app.tasks or own == SUPERVISION:
                listed = self._listing.get(own)
                if listed is not None and not listed.is_gone and is_orphan(self._app, listed):
                    found.append(own)
                continue
            known_count, loops = self._orphans.get(task, (0, []))
            if count != known_count:
                of_task = self._listing.table.of_task(task, MOST_ORPHANS)
                loops = [loop for loop in of_task if not loop.is_whole]
                self._orphans[task] = count, loops
            found += loops
        return found

    async def overdue(
        self, now: datetime, tolerance: timedelta, depths: Mapping[str, Depth | None]
    ) -> list[Overdue]:
        """Return the loops with overdue tokens, as of `now`, until when puts were heard.

        Only loops that the table marks as possibly overdue are checked. Behind a backlog, an
        overdue token is ready, unless tokens that were due later had been served a round ago. Even
        then it may be on its way, and many wrong repairs would make the backlog longer: so only a
        few of them are checked.

        Args:
            tolerance: how long after its time a token may be on its way.
            depths: of the queues of tasks, as far as they are known.
        """
        for _ in self._listing.table.index_due():
            await asyncio.sleep(0)
        overdue = list[Overdue]()
        before, self._served_before = self._served_before, dict(self._served)
        found = self._may_be_overdue(now - tolerance, depths, before)
        for number, loop_id in enumerate(found):
            if number % BREATHE_EVERY == 0:
                await asyncio.sleep(0)
            listed = self._listing.get(loop_id)
            loop = None if listed is None else loop_of_entry(self._app, listed)
            if listed is None or loop is None:  # the task of keyed loops, once periodic itself
                continue
            put = self.put_of_entry(listed)
            due_at = due_at_of(listed, put, self._listing.of_task(loop_id.task))
            if due_at is None or now - due_at <= tolerance:
                again_ms = milliseconds_since_epoch(due_at or now + LOOKED_AT_AGAIN)
                self._listing.table.expect(loop_id, again_ms)
                continue
            served_ms = before.get(self._shard_of(loop_id))
            served_until = None if served_ms is None else moment_of(served_ms)
            overdue.append(Overdue(loop, listed, put, due_at, served_until))
        return overdue

    def _may_be_overdue(
        self, until: datetime, depths: Mapping[str, Depth | None], served: Mapping[Shard, int]
    ) -> list[LoopId]:
        """Return loops whose tokens may have been due before a moment, the earliest due first."""
        table, until_ms = self._listing.table, milliseconds_since_epoch(until)
        without = self._listing.counts.keys() - self._app.tasks.keys()
        without.update(filter(self._listing.pause_of, self._listing.counts))
        # The latest of all shards; whether a loop's own one is behind is asked for each.
        latest = {task: ms for (task, _), ms in sorted(served.items(), key=itemgetter(1))}
        behind = {
            # Without a processor nothing is served, and it is that which is reported.
            task: min(until_ms, latest.get(task, 0)) if depth.consumers else until_ms
            for task, depth in depths.items()
            if depth is not None and depth.ready and task not in without
        }
        found = table.overdue(until_ms, MOST_OVERDUE, without=without | behind.keys())
        for task, before_ms in behind.items():
            found += table.overdue(before_ms, MOST_BEHIND, of_task=task)
        return found

    def look_again(self, loops: Iterable[LoopId]) -> None:
        """Check these again, after others that may be overdue."""
        again_ms = milliseconds_since_epoch(self._clock.now() + LOOKED_AT_AGAIN)
        for loop in loops:
            self._listing.table.expect(loop, again_ms)

    @property
    def _is_full(self) -> bool:
        return len(self.long) >= MOST_LONG

    def _hear_once(self, loop: LoopId, put: Put, message: Message) -> bool:
        assert message.offset is not None
        # Also when the reading is interrupted: heard again, it would look like a second line.
        self._reached = message.offset + 1
        self.hear(loop, put, message)
        return self._is_full

    def hear(self, loop: LoopId, put: Put, message: Message) -> None:
        """Note a put."""
        if put.verb == Verb.REMOVE:
            return self.forget(loop)
        before, known = self.put_of(loop), self._listing.known(loop)
        if put.by_run:
            self._note_served(loop, put)
            if put.epoch < known:  # if its loop is paused, this is its progress
                self.long[loop] = put, message
            is_new = message.offset is not None and message.offset >= self._heard_until
            if is_new and _is_of_another_line(put, before, known):
                self.doubled[loop] = put.epoch
        if before is None or put.position >= before.position:
            now_ms = milliseconds_since_epoch(self._clock.now())
            # Heard late, a put has waited for longer than it still will.
            put_ms = put.started_at_ms + put.duration_ms if put.by_run else now_ms
            is_long = put.rests or put.due_at_ms - put_ms >= LONG_MS
            if is_long and not put.first and not put.is_start:
                self.long[loop] = put, message
            if is_long:  # stored now, as its row was just read; needed at the next put alone
                self._puts.pop(loop, None)
                self._keep(loop, put)
            else:
                self._remember(loop, put)

    def forget(self, loop: LoopId) -> None:
        """Forget a loop that is gone."""
        self._puts.pop(loop, None)
        self._listing.table.drop_put(loop)
        self.doubled.pop(loop, None)
        self.long.pop(loop, None)

    def _remember(self, loop: LoopId, put: Put) -> None:
        self._puts[loop] = put
        if len(self._puts) > MOST_PUTS:
            for oldest in list(islice(self._puts, KEPT_AT_ONCE)):
                self._keep(oldest, self._puts.pop(oldest))

    def _keep(self, loop: LoopId, put: Put) -> None:
        due_ms = None if put.rests else put.due_at_ms
        self._listing.table.keep(loop, compact_json(put).decode(), put.epoch, due_ms)

    def _note_served(self, loop: LoopId, put: Put) -> None:
        # A retry ran at another time than that of its tick.
        if put.attempt == 0 and put.scheduled_at_ms > self._served.get(self._shard_of(loop), 0):
            self._served[self._shard_of(loop)] = put.scheduled_at_ms

    def _shard_of(self, loop: LoopId) -> Shard:
        task = self._app.tasks.get(loop.task)
        return loop.task, 0 if task is None else slice_of(loop) % task.shards


def _is_of_another_line(put: Put, before: Put | None, known: int) -> bool:
    if before is None or not before.by_run:
        return False
    if put == before:
        return False  # it was published again
    greatest = before.position if before.epoch == put.epoch else None
    return is_doubled(put.position, greatest, known)


ROUNDS = 4
"""A memory of the last rounds is up to date."""
MOST_NAMED, MOST_TASKS = 20, 200  # a token can carry a limited number


class Tally(BaseModel):
    """Count the loops of a namespace.

    Attributes:
        loops: the number of each task's loops in each state; gone ones are kept for a day.
        paused: the tasks that are paused as a whole.
        overdue: the number of loops with overdue tokens; of a task that is behind, not all.
        overdue_names: some of them.
        doubled: the number of loops with two lines of tokens.
        doubled_names: some of them.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    loops: Mapping[str, Mapping[LoopState, int]] = {}
    paused: Sequence[str] = ()
    overdue: int = 0
    overdue_names: Sequence[str] = ()
    doubled: int = 0
    doubled_names: Sequence[str] = ()


class Memory(BaseModel):
    """Carry state from one round to the next.

    Attributes:
        tally: what the round counted; None: nothing yet, or too many tasks to carry.
        counted_at_ms: when; 0: never. The roster has the progress of long waits that was put
            before.
        reported: loops whose trouble was reported.
        stuck: timers of calls that were reported.
        policies: policies that change the queues, as reported.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    tally: Tally | None = None
    counted_at_ms: int = 0
    reported: Mapping[str, str] = {}
    stuck: Sequence[str] = ()
    policies: Sequence[str] = ()

    @property
    def counted_at(self) -> datetime | None:
        return moment_of(self.counted_at_ms) if self.counted_at_ms else None


def memory_of(carried: Any) -> Memory:
    """Return the memory that a token of supervision carries; an empty one, if it carries none."""
    with suppress(ValidationError):  # of another version, for example: start afresh
        return Memory.model_validate(carried or {})
    return Memory()


async def last_memory(namespace: Namespace) -> Memory:
    """Return the memory of the last round, without writing anything; an empty one: it is unknown.

    Raises:
        QueueNotFound: nothing was seeded.
        BrokerUnavailable: the journal could not be read.
    """
    since = namespace.clock.now() - ROUNDS * namespace.app.settings.supervision_interval
    found = await namespace.journal.last_put({SUPERVISION}, since=since, is_exact=False)
    token = found.get(SUPERVISION)
    return Memory() if token is None else memory_of(token.carry)


def tally_of(listing: Listing, overdue: Sequence[LoopId], doubled: Sequence[LoopId]) -> Tally:
    """Return the tally of the roster's loops, of which these are overdue or doubled."""
    return Tally(
        loops={task: +states for task, states in listing.counts.items() if +states},
        paused=[listed.loop.task for listed in listing.pauses],
        overdue=len(overdue),
        overdue_names=list(map(str, overdue[:MOST_NAMED])),
        doubled=len(doubled),
        doubled_names=list(map(str, doubled[:MOST_NAMED])),
    )


@dataclass(frozen=True, slots=True)
class Figures:
    """Count the loops and waiting messages of a namespace.

    Attributes:
        at: when the loops were counted, by the last round of supervision or this program.
        ready, timers, later: the numbers of messages by task, and by timer of loops and of calls.
        void: the least number of void tokens among these: they are dropped when they are due.
    """

    at: datetime
    tally: Tally
    ready: Mapping[str, int]
    timers: Mapping[str, int]
    later: Mapping[str, int]
    void: int


async def count(namespace: Namespace) -> Figures:
    """Count loops and their waiting messages, without writing anything.

    Supervision has counted the loops. If its last round is long ago, they are counted here, and for
    that the whole roster is read.
    """
    app, memory = namespace.app, await last_memory(namespace)
    tally, at = memory.tally, moment_of(memory.counted_at_ms)
    if tally is None:
        tally, at = await _tally(namespace), namespace.clock.now()
    names = app.names
    ready = await _filled(namespace, {task: queues_of(app, task) for task in app.tasks})
    waiting = await _filled(namespace, {each.name: [names.timer(each)] for each in timers()})
    later = await _filled(namespace, {each.name: [names.later_timer(each)] for each in timers()})
    active = sum(states.get(LoopState.ACTIVE, 0) for states in tally.loops.values())
    return Figures(at, tally, ready, waiting, later, max(sum(waiting.values()) - active, 0))


async def _tally(namespace: Namespace) -> Tally:
    listing, now = await namespace.roster.look(), namespace.clock.now()
    census = Census(namespace)
    await census.look()
    overdue = await census.overdue(now, TOLERANCE, {})
    return tally_of(listing, [each.loop.id for each in overdue], list(census.doubled))


async def _filled(namespace: Namespace, queues: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Return the number of messages in the queues of each name, if they have any."""
    asked = [queue for each in queues.values() for queue in each]
    depths = await side_by_side(namespace.broker.depth, asked)
    known = dict(zip(asked, depths, strict=True))
    return {
        name: depth.ready
        for name, each in queues.items()
        if (depth := total(map(known.get, each))) is not None and depth.ready
    }
