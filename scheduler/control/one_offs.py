"""Named one-offs: loops of one run, so that each name stands for one thing to be done.

Such a loop is like any other until its run has ended: its token waits in a hatchery queue of its
own, is supervised, moved, paused, triggered. Then its token waits there, done, for its loop to be
removed (`control.endings`).
"""

from datetime import datetime

from scheduler.protocol.tokens import State, Token
from scheduler.queues.roster import Listed
from scheduler.tasks.loops import Loop
from scheduler.timing.once import Once

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


def is_over(token: Token | None, now: datetime) -> bool:
    """Whether its run has ended, and its name is not kept any longer."""
    return (
        token is not None
        and token.state is State.DONE
        and isinstance(token.schedule, Once)
        and token.schedule.kept_until <= now
    )
