"""Make the first tokens of epochs, and their exchange. No I/O.

The creator of an epoch exchanges its first token at once, if no processor is in an older run. If
one is, or does not respond, the first token goes to its processor, which waits for that run and
exchanges it then (R4): the loop continues where it was.
"""

from dataclasses import replace
from datetime import datetime

from scheduler.control.loops import is_same
from scheduler.protocol.epochs import Entry, LoopState, Verb, stays_ended
from scheduler.protocol.messages import one_line
from scheduler.protocol.tokens import Act, State, Token
from scheduler.queues.entries import RosterEntry
from scheduler.queues.journal import LoopRecord
from scheduler.timing.schedules import Once, jittered

TOOK_ITS_PLACE = Verb.REPAIR, Verb.RESCHEDULE, Verb.RENAME


def first_token(listed: RosterEntry, verb: Verb) -> Token:
    """Return the first token of the epoch that an entry began, without progress."""
    return replace(
        listed.token,
        first=True,
        reason=one_line(listed.reason) or None,
        act=Act(verb, listed.at, listed.by),
    )


def resumed(
    token: Token, now: datetime, *, at_once: bool = False, after: datetime | None = None
) -> Token:
    """Return the token with the next time of a resumed loop.

    Args:
        at_once: it is due now, whenever its next tick is.
        after: continue as after a run at this moment; overdue ticks are due at once.
    """
    tick = token.schedule.next_after(after or now)
    due_at = now if at_once else jittered(token.schedule, str(token.loop), tick)
    return replace(token, scheduled_at=tick, due_at=due_at)


def triggered(token: Token, now: datetime) -> Token:
    """Return the token, due now."""
    return replace(token, due_at=min(now, token.due_at))


def joined(first: Token, heard: LoopRecord, latest: Entry | None) -> Token:
    """Return the successor of an epoch's first token.

    Args:
        heard: the journal's record of the loop, without older runs.
        latest: the entry of its epoch in the roster; None: unknown here.
    """
    last, act = heard.adopted_by(first), first.act
    end = _end_of(first, last, heard, latest)
    # A finished one-off had another schedule or other arguments: it has no time to keep.
    was_finished = last.state is State.DONE
    # The creator had not found its predecessor, which may be due, or run late.
    took_its_place = act is not None and act.verb in TOOK_ITS_PLACE and not was_finished
    # A due tick is kept, unless it is a one-off with a new moment.
    was_due = act is not None and last.due_at <= act.at and not isinstance(first.schedule, Once)
    still_holds = act is None or last.schedule == first.schedule or was_due
    timing = last if took_its_place and still_holds else first
    # Triggered, it stands for the tick that it waited for.
    is_triggered = act is not None and act.verb is Verb.TRIGGER
    keeps_tick = is_triggered and last is not first and not was_finished
    return replace(
        last if end is None else end,
        schedule=first.schedule,
        args=first.args,
        epoch=first.epoch,
        life=first.life,
        first=False,
        former=None,
        returns=None,
        scheduled_at=last.scheduled_at if keeps_tick else timing.scheduled_at,
        due_at=timing.due_at,
        state=State.ARMED if end is None else end.state,
        reason=None if end is None else end.reason,
        act=None,
    )


def _end_of(first: Token, last: Token, heard: LoopRecord, latest: Entry | None) -> Token | None:
    """Return how the first token's loop has ended; None: it continues.

    After a one-off finished, more may have been put for requests since.
    """
    entry = latest or Entry(first.epoch, LoopState.ACTIVE, first.life)
    found = [token for token in heard.furthest.values() if token.state is State.DONE]
    for end in (last, *found):
        was_only = end.state is State.DONE
        if end.rests and stays_ended(
            end.position, entry, was_only=was_only, is_same=is_same(end, first)
        ):
            return end
    return None
