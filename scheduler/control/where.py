"""Determine where a loop is, with one pure function for every view of loops and supervision.

It is computed from the loop's entry in the roster, its last put in the journal, the time, the depth
of its task's queue, and the answers to a roll call, if one was held.
"""

from datetime import datetime, timedelta
from enum import StrEnum

from scheduler.brokers.contract import Depth
from scheduler.protocol.epochs import LoopState
from scheduler.protocol.tokens import Token
from scheduler.queues.journal import Put
from scheduler.queues.listing import RosterEntry
from scheduler.timing.moments import milliseconds_since_epoch, moment_of

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
