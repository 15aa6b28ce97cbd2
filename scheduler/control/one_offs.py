"""Named one-offs: loops of one run, so that each name stands for one thing to be done.

Such a loop is like any other until its run has ended: it is supervised, moved, paused, triggered.
Then it is finished, and gone from the roster (`control.endings`). What is finished is a schedule
and arguments, in a life: asked for with others, it is to be done again.
"""

from datetime import datetime

from scheduler.protocol.tokens import Token
from scheduler.queues.listing import Listed
from scheduler.tasks.loops import Loop
from scheduler.timing.once import Once


def is_same(one: Loop | Token, other: Listed | Token) -> bool:
    """Return whether both have the same schedule and arguments."""
    return (one.schedule, dict(one.args)) == (other.schedule, dict(other.args))


def was_done(loop: Loop, listed: Listed | None) -> bool:
    """Whether this very run has ended before: the same task, name, moment and arguments."""
    return listed is not None and listed.is_done and is_same(loop, listed)


def is_taken(loop: Loop, listed: Listed | None, now: datetime) -> bool:
    """Whether the name is taken by another one, which is not to be touched."""
    if listed is None or not isinstance(loop.schedule, Once) or not loop.schedule.kept:
        return False
    if not isinstance(listed.schedule, Once):
        return False
    is_kept = listed.is_done and listed.schedule.kept_until > now
    return is_kept or (not listed.is_gone and listed.schedule != loop.schedule)
