"""List the loops, and determine where each is.

There are those of the code, the keyed ones, and those that only the broker has. A named one-off is
a loop of one run. Until its run has ended it is like any other: it is supervised, moved, paused,
triggered. Then it is finished, and gone from the roster. Finished is a schedule with its arguments,
in a life: a request with other ones runs again.

One pure function determines where a loop is, for every view of loops and for supervision: by its
entry in the roster, its last put in the journal, the time, the depth of its task's queue, and the
answers to a roll call, if one was held.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from enum import StrEnum

from scheduler.brokers.contract import Depth
from scheduler.errors import QueueNotFound, UnknownLoop
from scheduler.protocol.epochs import LoopState
from scheduler.protocol.messages import printable
from scheduler.protocol.tokens import WHOLE, LoopId, Token
from scheduler.queues.entries import RosterEntry
from scheduler.queues.journal import Put
from scheduler.queues.listing import Listing
from scheduler.queues.roster import Roster
from scheduler.spelling import no_such
from scheduler.tasks.loops import App, Loop, absent, before_rename, served
from scheduler.tasks.tasks import SUPERVISION, TaskSpec
from scheduler.timing.moments import UNIX_EPOCH, milliseconds_since_epoch, moment_of
from scheduler.timing.schedules import Once
from scheduler.user_code import require_text

TOLERANCE = timedelta(seconds=5)
"""The time for which a due token may be on its way unseen."""


class Where(StrEnum):
    """Name where a loop is; most urgent first."""

    LOST = "lost"
    UNATTENDED = "unattended"
    LATE = "late"
    UNSEEDED = "unseeded"
    REMOVED = "removed"
    UNHEARD = "unheard"
    READY = "ready"
    RUNNING = "running"
    PAUSED = "paused"
    WAITING = "waiting"

    @property
    def meaning(self) -> str:
        """Return what it means, in a phrase."""
        return MEANINGS[self]


MEANINGS = {
    Where.LOST: "overdue, and no processor has its token; supervision repairs it",
    Where.UNATTENDED: "due, and no processor takes messages of its task: start one",
    Where.LATE: "overdue for longer than its task may take, and nothing was heard of its run",
    Where.UNSEEDED: "in the code, but not in the broker: run `scheduler seed`",
    Where.REMOVED: "removed by a newer release: this program is older; restart it",
    Where.UNHEARD: "no activity found in the journal",
    Where.READY: "due, and waiting in the queue of its task",
    Where.RUNNING: "due, and delivered to a processor",
    Where.PAUSED: "waits until it is resumed",
    Where.WAITING: "not due yet",
}


def put_of(token: Token) -> Put:
    """Return a token as the journal would report its put."""
    act, last = token.act, token.last
    due_at = act.at if act is not None and token.first else token.due_at
    return Put(
        token.epoch,
        token.life,
        token.seq,
        token.attempt,
        token.first,
        token.state,
        milliseconds_since_epoch(due_at),
        by_run=last is not None and act is None and not token.first,
    )


def due_at_of(
    listed: RosterEntry, put: Put | None, of_task: RosterEntry | None = None
) -> datetime | None:
    """Return when a loop's token should leave its task's queue; None: it has none, or is held.

    Args:
        put: its last put; None: none was heard. Then it is due at the first tick of its epoch.
        of_task: the last entry that paused or resumed its task, if any.
    """
    if not listed.is_active or is_held_by(of_task):
        return None
    if put is None or put.epoch < listed.epoch:
        due_at = listed.first_due_at
    elif put.rests:
        return None
    else:  # a later epoch has put it again
        due_at = max(moment_of(put.due_at_ms), listed.at)
    return due_at if of_task is None else max(due_at, of_task.at)


def is_held_by(of_task: RosterEntry | None) -> bool:
    """Return whether the last entry that paused or resumed a task holds its loops."""
    return of_task is not None and not of_task.is_gone


def where(
    listed: RosterEntry | None,
    put: Put | None,
    now: datetime,
    depth: Depth | None = None,
    *,
    of_task: RosterEntry | None = None,
    timeout: timedelta,
    held: bool | None = None,
    served_until: datetime | None = None,
    tolerance: timedelta = TOLERANCE,
) -> Where:
    """Return where a loop is.

    Args:
        listed: its entry in the roster; None: it is not seeded.
        put: its last put; None: none found in the journal.
        depth: of the queue of its task; None: unknown.
        of_task: the last entry that paused or resumed its task, if any.
        timeout: how long a run of its task may take.
        held: whether a processor has its token; None: unknown, or not all have answered.
        served_until: the latest due time of the task's loops whose runs have begun. Its queue is in
            order, so a token that was due before has left it.
        tolerance: how long after its time a token may be on its way.
    """
    if listed is None:
        return Where.UNSEEDED
    if listed.is_gone:
        return Where.REMOVED
    # Its run has ended it; the roster will follow.
    rests = put is not None and put.epoch >= listed.epoch and put.rests
    if listed.entry.state is LoopState.PAUSED or rests or is_held_by(of_task):
        return Where.PAUSED
    if put is None and held is None:
        return Where.UNHEARD
    due_at = due_at_of(listed, put, of_task)
    overdue = now - (due_at or now)
    if overdue <= timedelta(0):
        return Where.WAITING
    if held:
        return Where.RUNNING
    if depth is not None and not depth.consumers and overdue > tolerance:
        return Where.UNATTENDED
    was_served = due_at is not None and served_until is not None and served_until > due_at
    if depth is not None and depth.ready and not (was_served and overdue > tolerance):
        return Where.READY if held is False or overdue <= timeout else Where.LATE
    if held is None:
        return Where.RUNNING if overdue <= timeout + tolerance else Where.LATE
    return Where.RUNNING if overdue <= tolerance else Where.LOST


MOST_NAMED = 1_000
"""Loops in which a similar name is looked for."""


def as_listed(loop: Loop, listing: Listing) -> Loop:
    """Return the loop with its seeded schedule and arguments, whatever this code says."""
    listed = listing.get(loop.id)
    return loop if listed is None else as_entered(loop, listed)


def as_entered(loop: Loop, listed: RosterEntry) -> Loop:
    """Return the loop of an entry with the entry's schedule and arguments."""
    return replace(
        loop,
        schedule=listed.schedule,
        args=listed.args,
        override=listed.override,
        of_code=loop.of_code if loop.override else loop.schedule,
    )


def as_to_be_seeded(loop: Loop, listing: Listing) -> Loop:
    """Return the loop of the code, with its override if it has one."""
    listed = as_listed(loop, listing)
    return replace(listed, args=loop.args) if listed.override else loop


def loop_of_entry(app: App, listed: RosterEntry) -> Loop | None:
    """Return the loop of an entry; None: this code does not have it."""
    if (of_code := app.loops.get(listed.loop)) is not None:
        return as_entered(of_code, listed)
    return _keyed(app, listed) if _is_keyed(app, listed) else None


def keyed_loops_of(app: App, listing: Listing) -> list[Loop]:
    """Return the keyed loops of the code's tasks."""
    return [_keyed(app, each) for each in listing.there if _is_keyed(app, each)]


def keyed_loops_of_old_names(app: App, listing: Listing) -> list[Loop]:
    """Return the keyed loops of the code's tasks that still have old names of these."""
    old = {alias: task for task in app.tasks.values() for alias in task.aliases}
    return [
        Loop(listed.loop, task, listed.schedule, listed.args)
        for listed in (listing.there if old else ())
        if listed.loop.key and (task := old.get(listed.loop.task)) is not None
    ]


def renamed_loops_of(app: App, listing: Listing) -> list[Loop]:
    """Return the keyed loops of old names of the code's tasks, under the new names."""
    return [
        replace(loop, id=LoopId(loop.task.name, loop.id.key))
        for loop in keyed_loops_of_old_names(app, listing)
    ]


def entry_before(app: App, loop: LoopId, listing: Listing) -> RosterEntry | None:
    """Return the entry of the loop that this one replaces, or replaced."""
    found = (listing.get(before) for before in before_rename(app, loop))
    return max(filter(None, found), key=lambda listed: not listed.is_gone, default=None)


def _is_keyed(app: App, listed: RosterEntry) -> bool:
    return bool(listed.loop.key) and listed.loop.task in app.tasks


def _keyed(app: App, listed: RosterEntry) -> Loop:
    return Loop(listed.loop, app.tasks[listed.loop.task], listed.schedule, listed.args)


def is_orphan(app: App, listed: RosterEntry) -> bool:
    """Return whether this code does not have the loop of an entry, or the task that it pauses."""
    if listed.is_of_task:
        return listed.loop.task not in served(app)
    is_ours = listed.loop in app.loops or listed.loop == SUPERVISION or _is_keyed(app, listed)
    return not is_ours


def loops_of(app: App, listing: Listing) -> list[Loop]:
    """Return the loops of the code, without removed ones, and the keyed ones of its tasks, which
    may still have old names.
    """
    gone = {loop for loop, listed in listing.items() if listed.is_gone}
    of_code = [as_listed(loop, listing) for loop in app.loops.values() if loop.id not in gone]
    return [*of_code, *keyed_loops_of(app, listing), *keyed_loops_of_old_names(app, listing)]


def ids_of(name: str) -> list[LoopId]:
    """Return the loops that a name may mean, as tasks and keys may have dots."""
    parts = name.split(".")
    return [LoopId(".".join(parts[:n]), ".".join(parts[n:])) for n in range(len(parts), 0, -1)]


def loop_named(app: App, listing: Listing, name: str) -> Loop | None:
    """Return the loop of this name in the roster, though this code may not have it.

    A keyed loop may still have an old name of its task.
    """
    ids = ids_of(name)
    for listed in filter(None, map(listing.get, ids)):
        if not listed.is_gone and is_orphan(app, listed):
            return orphan_of(listed)
        if not listed.is_gone and not listed.is_of_task:
            return loop_of_entry(app, listed)
    for loop in ids:
        old = entry_before(app, loop, listing) if loop.key and not loop.is_whole else None
        if old is not None and not old.is_gone:
            return Loop(old.loop, app.tasks[loop.task], old.schedule, old.args)
    return None


def orphans_of(app: App, listing: Listing) -> list[Loop]:
    """Return the listed loops, and the pauses of whole tasks, that this code does not have."""
    found = filter(None, map(listing.get, listing.table.others(app.tasks)))
    there = sorted(found, key=lambda listed: (listed.entry.life, listed.loop))
    return [orphan_of(each) for each in (*there, *listing.pauses) if is_orphan(app, each)]


def orphan_of(listed: RosterEntry) -> Loop:
    """Return the loop of an entry that this code does not have."""
    task = absent(listed.loop.task)
    return Loop(listed.loop, task, listed.schedule, listed.args, listed.override)


def name_of_orphan(orphan: Loop) -> str:
    """Return the name of an orphan: a loop, or a pause."""
    return f"the pause of {orphan}" if orphan.id.is_whole else str(orphan)


def whole_of(task: TaskSpec) -> Loop:
    """Return the loop that stands for a whole task in pauses and resumes. It never runs."""
    return Loop(LoopId(task.name, WHOLE), task, Once(UNIX_EPOCH), {})


def is_same(one: Loop | Token, other: RosterEntry | Token) -> bool:
    """Return whether both have the same schedule and arguments."""
    return (one.schedule, dict(one.args)) == (other.schedule, dict(other.args))


def was_done(loop: Loop, listed: RosterEntry | None) -> bool:
    """Return whether this run has ended before: the same task, name, moment and arguments."""
    return listed is not None and listed.is_done and is_same(loop, listed)


def is_taken(loop: Loop, listed: RosterEntry | None, now: datetime) -> bool:
    """Return whether the name is taken by another one-off, which stays."""
    if listed is None or not isinstance(loop.schedule, Once) or not loop.schedule.kept:
        return False
    if not isinstance(listed.schedule, Once):
        return False
    is_kept = listed.is_done and listed.schedule.kept_until > now
    return is_kept or (not listed.is_gone and not is_same(loop, listed))


class Loops:
    """List the loops of an app, in its code and the roster."""

    def __init__(self, app: App, roster: Roster) -> None:
        self._app = app
        self._roster = roster

    async def all(self) -> list[Loop]:
        """Return the loops of the code, and the keyed ones of its tasks.

        Raises:
            QueueNotFound: nothing was seeded.
        """
        return loops_of(self._app, await self._roster.read())

    async def keyed(self, task: TaskSpec) -> dict[str, Loop]:
        """Return the keyed loops of a task by key, those that still have an old name included.

        Raises:
            QueueNotFound: nothing was seeded.
        """
        found = dict[str, Loop]()
        for listed in (await self._roster.read()).there:
            (name, key), is_old = listed.loop, listed.loop.task != task.name
            if key and name in task.names and not (is_old and key in found):
                found[key] = Loop(listed.loop, task, listed.schedule, listed.args)
        return found

    async def look(self) -> list[Loop]:
        """Read the loops without writing anything, as far as this node of the broker has them."""
        return loops_of(self._app, await self._roster.look())

    async def find(self, name: str, *, or_whole: bool = False) -> Loop:
        """Return the loop of this name, in the code or in the broker.

        Args:
            or_whole: without one, return the loop that stands for the whole task of this name.

        Raises:
            UnknownLoop: there is none; the message names the nearest.
            UsageError: the name is not text.
        """
        require_text("The name of a loop", name)
        loop, known = await self._named(name := printable(name))
        if loop is not None:
            return loop
        if (task := self._app.tasks.get(name)) is None:
            names = [*self._app.tasks, *known] if or_whole else known
            raise UnknownLoop(no_such("loop or task" if or_whole else "loop", name, names))
        if or_whole:
            return whole_of(task)
        raise UnknownLoop(f"{name!r} is a task, not a loop: its loops are named {name}.KEY.")

    async def _named(self, name: str) -> tuple[Loop | None, Sequence[str]]:
        """Return the loop of this name; if there is none, the names of some that there are."""
        known = {str(loop): loop for loop in self._app.loops.values()}
        if name in known:
            return known[name], ()
        with suppress(QueueNotFound):
            listing = await self._roster.look(ids_of(name))
            if (loop := loop_named(self._app, listing, name)) is not None:
                return loop, ()
            listing = await self._roster.look()
            tasks, table = self._app.tasks, listing.table
            others = [*table.keyed(tasks, "*", None, most=MOST_NAMED), *table.others(tasks)]
            return None, [*known, *map(str, others[: 2 * MOST_NAMED])]
        return None, [*known]
