"""Tokens that no run has made: by whoever seeds, operates or repairs a loop. Without I/O."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from scheduler.protocol.epochs import Entry, LoopState, Verb, is_last
from scheduler.protocol.messages import one_line
from scheduler.protocol.tokens import Act, State, Token
from scheduler.tasks.loops import Loop
from scheduler.timing.schedules import jittered


def first_token(
    loop: Loop, entry: Entry, verb: Verb, now: datetime, reason: str = "", by: str = ""
) -> Token:
    """The token with which an epoch of a loop begins, at its next tick, from no progress."""
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
        state=State.PAUSED if entry.state is LoopState.PAUSED else State.ARMED,
        reason=one_line(reason) or None,
        act=Act(verb, now, by),
    )


def going_on(first: Token, found: Iterable[Token], latest: int) -> Token:
    """The first token of an epoch, with what was found in the slot, if that is of the same life.

    Paused by its own run, the loop stays so. It keeps its time, unless its schedule was changed: so
    what is done, and gets another time, is to be done again.

    Args:
        latest: the epoch before its own.
    """
    alive = [token for token in found if token.epoch >= first.life]
    if not alive:
        return first
    assert first.act is not None
    # Of two that have come as far, the older one is void: it may have been paused, and resumed.
    last = max(alive, key=lambda token: (token.position.progress, token.epoch))
    rescheduled = first.act.verb is Verb.RESCHEDULE
    timing = first if rescheduled else last
    known = first.act.verb is not Verb.REPAIR
    return replace(
        last,
        schedule=first.schedule,
        args=first.args,
        epoch=first.epoch,
        life=first.life,
        first=True,
        scheduled_at=timing.scheduled_at,
        due_at=timing.due_at,
        known=known and is_last(last.position, latest, known=last.known),
        state=_state(first, last, rescheduled=rescheduled),
        act=first.act,
    )


def _state(first: Token, last: Token, *, rescheduled: bool) -> State:
    if last.state is State.DONE and not rescheduled:
        return State.DONE
    return State.PAUSED if State.PAUSED in (first.state, last.state) else State.ARMED


def paused(token: Token, reason: str) -> Token:
    """The token, to wait until it is resumed."""
    return replace(token, state=State.PAUSED, reason=one_line(reason))


def rescheduled(token: Token, after: datetime) -> Token:
    """The token, to wait for the first tick after a moment, if it is not paused."""
    tick = token.schedule.next_after(after)
    due_at = jittered(token.schedule, str(token.loop), tick)
    return replace(token, scheduled_at=tick, due_at=due_at)


def resumed(
    token: Token, now: datetime, *, at_once: bool = False, after: datetime | None = None
) -> Token:
    """The token, to wait for the next tick, or for nothing.

    Args:
        after: go on as after a run at this moment; what is overdue by now, is due at once.
    """
    armed = rescheduled(replace(token, state=State.ARMED, reason=None), after or now)
    return replace(armed, due_at=now) if at_once else armed
