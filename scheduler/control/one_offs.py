"""Named one-offs: loops of one run, so that each name stands for one thing to be done.

Such a loop is like any other until its run has ended: it is supervised, moved, paused, triggered.
Then the journal hears that it is done, and its loop is removed from the roster (`control.endings`).
"""

from datetime import datetime

from scheduler.queues.listing import Listed
from scheduler.tasks.loops import Loop
from scheduler.timing.once import Once
from scheduler.timing.schedules import Schedule

DONE = "done"
"""Why a loop is gone: its one run has ended."""


def was_done(loop: Loop, listed: Listed | None) -> bool:
    """Whether this very run has ended before: the same task, name, moment and arguments."""
    return (
        listed is not None
        and listed.is_gone
        and listed.reason == DONE
        and (listed.schedule, dict(listed.args)) == (loop.schedule, dict(loop.args))
    )


def is_taken(loop: Loop, listed: Listed | None) -> bool:
    """Whether the name is taken by another one, which is not to be touched."""
    if listed is None or listed.is_gone or not isinstance(loop.schedule, Once):
        return False
    is_other = isinstance(listed.schedule, Once) and listed.schedule != loop.schedule
    return is_other and bool(loop.schedule.kept)


def is_over(schedule: Schedule, now: datetime) -> bool:
    """Return whether the name of a one-off that has run is not kept any longer."""
    return isinstance(schedule, Once) and schedule.kept_until <= now
