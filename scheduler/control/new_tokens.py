"""Make the first tokens of epochs: those of creators, which no run has made. No I/O."""

from dataclasses import replace
from datetime import datetime

from scheduler.protocol.epochs import Entry, Verb
from scheduler.protocol.messages import one_line
from scheduler.protocol.tokens import Act, Token
from scheduler.tasks.loops import Loop
from scheduler.timing.schedules import jittered


def first_token(
    loop: Loop, entry: Entry, verb: Verb, now: datetime, reason: str = "", by: str = ""
) -> Token:
    """Return the token with which an epoch of a loop begins, at its next tick, from no progress."""
    tick = loop.schedule.next_after(now)
    return Token(
        loop=loop.id,
        schedule=loop.schedule,
        scheduled_at=tick,
        due_at=jittered(loop.schedule, str(loop), tick),
        epoch=entry.epoch,
        life=entry.life,
        first=True,
        args=loop.args,
        reason=one_line(reason) or None,
        act=Act(verb, now, by),
    )


def resumed(
    token: Token, now: datetime, *, at_once: bool = False, after: datetime | None = None
) -> Token:
    """Return the token with the time at which a resumed loop goes on.

    Args:
        at_once: it is due now, whenever its next tick is.
        after: go on as after a run at this moment; what is overdue by now is due at once.
    """
    tick = token.schedule.next_after(after or now)
    due_at = now if at_once else jittered(token.schedule, str(token.loop), tick)
    return replace(token, scheduled_at=tick, due_at=due_at)


def triggered(token: Token, now: datetime) -> Token:
    """Return the token, due now."""
    return replace(token, due_at=min(now, token.due_at))
