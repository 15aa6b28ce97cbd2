"""Tokens that no run has made: by whoever seeds, operates or repairs a loop. Without I/O."""

from dataclasses import replace
from datetime import datetime

from scheduler.protocol.messages import one_line
from scheduler.protocol.tokens import Act, State, Token, Verb, generation_of, same_seeding
from scheduler.tasks.loops import Loop
from scheduler.timing.schedules import jittered

# The generation of a token that was made to hold a pause while a run may be going on: older than
# any seeding, so that it brings the pause and nothing else.
STAND_IN = ""


def first_token(loop: Loop, now: datetime) -> Token:
    """The first token of a loop."""
    first = loop.schedule.next_after(now)
    return Token(
        loop=loop.id,
        schedule=loop.schedule,
        generation=generation_of(loop.schedule, loop.args, now),
        scheduled_at=first,
        due_at=jittered(loop.schedule, str(loop), first),
        args=loop.args,
        act=Act(Verb.SEEDED, now),
    )


def reseeded(token: Token, new: Token) -> Token:
    """The token with a new schedule and its first tick; what it has got to stays."""
    return replace(
        new,
        due_at=token.due_at if token.state is State.GUARD else new.due_at,
        state=token.state,
        seq=token.seq,
        attempt=token.attempt,
        carry=token.carry,
        reason=token.reason,
        previous_at=token.previous_at,
        last=token.last,
    )


def revived(loop: Loop, last: Token | None, now: datetime) -> Token:
    """The token with which a lost loop goes on; a new one, if its last is not known."""
    new = first_token(loop, now)
    if last is None:
        token = new
    elif same_seeding(new.generation, last.generation):
        token = last
    else:
        token = reseeded(last, new)
    return with_act(Verb.REPAIRED, token, now)


def paused(token: Token, reason: str, now: datetime) -> Token:
    """The token, to wait until it is resumed."""
    return with_act(Verb.PAUSED, replace(token, state=State.PAUSED, reason=one_line(reason)), now)


def rescheduled(token: Token, now: datetime) -> Token:
    """The token, to wait for the next tick of its schedule."""
    tick = token.schedule.next_after(now)
    due_at = jittered(token.schedule, str(token.loop), tick)
    return replace(token, state=State.ARMED, reason=None, scheduled_at=tick, due_at=due_at)


def with_act(verb: Verb, token: Token, now: datetime) -> Token:
    """The token, with what made it as the journal tells."""
    return replace(token, act=Act(verb, now))
