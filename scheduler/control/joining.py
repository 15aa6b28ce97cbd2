"""Exchange the first token of an epoch: the loop goes on from where it was (R4).

The creator of an epoch exchanges it at once, if no processor is in an older run. If one is, or does
not answer, the first token goes to its processor, which waits for that run and exchanges it then.
"""

from dataclasses import replace

from scheduler.control.one_offs import is_same
from scheduler.protocol.epochs import Entry, LoopState, Verb, stays_ended
from scheduler.protocol.tokens import State, Token
from scheduler.queues.journal import Heard
from scheduler.timing.once import Once

TOOK_ITS_PLACE = Verb.REPAIR, Verb.RESCHEDULE


def joined(first: Token, heard: Heard, latest: Entry | None) -> Token:
    """Return what the first token of an epoch is exchanged for.

    Args:
        heard: what the journal tells of the loop, now that no older run goes on.
        latest: the entry of its epoch in the roster; None: it is not known here.
    """
    last, act = heard.adopted_by(first), first.act
    end = _end_of(first, last, heard, latest)
    # What is finished was for another schedule or other arguments: it has no time to keep.
    was_finished = last.state is State.DONE
    # The creator had not found the one that it goes on from: that may be due, or run late.
    took_its_place = act is not None and act.verb in TOOK_ITS_PLACE and not was_finished
    # What was due is not left out, unless it is one run that was given another moment.
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
        scheduled_at=last.scheduled_at if keeps_tick else timing.scheduled_at,
        due_at=timing.due_at,
        state=State.ARMED if end is None else end.state,
        reason=None if end is None else end.reason,
        act=None,
    )


def _end_of(first: Token, last: Token, heard: Heard, latest: Entry | None) -> Token | None:
    """Return the end of the loop that the first token leaves it at; None: the loop goes on.

    Of what is finished, more may have been put since, for what was asked for in the meantime.
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
