"""Exchange the first token of an epoch: the loop goes on from where it was (R4).

The creator of an epoch exchanges it at once, if no processor is in an older run. If one is, or does
not answer, the first token goes to its processor, which waits for that run and exchanges it then.
"""

from dataclasses import replace

from scheduler.protocol.epochs import Entry, Verb, stays_ended
from scheduler.protocol.tokens import State, Token
from scheduler.queues.journal import Heard
from scheduler.timing.once import Once

TOOK_ITS_PLACE = Verb.REPAIR, Verb.RESCHEDULE


def joined(first: Token, heard: Heard, latest: Entry | None) -> Token:
    """Return what the first token of an epoch is exchanged for.

    Args:
        heard: what the journal tells of the loop, now that no older run goes on.
        latest: the loop's latest entry in the roster; None: it is not known here.
    """
    last, act = heard.adopted_by(first), first.act
    # The creator had not found the one that it goes on from: that may be due, or run late.
    took_its_place = act is not None and act.verb in TOOK_ITS_PLACE
    # What was due is not left out, unless it is one run that was given another moment.
    was_due = act is not None and last.due_at <= act.at and not isinstance(first.schedule, Once)
    still_holds = act is None or last.schedule == first.schedule or was_due
    # Done, and given another time since, it is to be done again.
    again = last.state is State.DONE and act is not None and act.verb is Verb.RESCHEDULE
    timing = last if took_its_place and still_holds and not again else first
    # Triggered, it stands for the tick that it waited for.
    keeps_tick = act is not None and act.verb is Verb.TRIGGER and last is not first
    scheduled_at = last.scheduled_at if keeps_tick else timing.scheduled_at
    # Paused by its own run, it stays so until it is resumed or triggered; done, it stays so.
    is_ended = last.rests and latest is not None and stays_ended(last.position, latest)
    rests = not again and (last.state is State.DONE or is_ended)
    return replace(
        last,
        schedule=first.schedule,
        args=first.args,
        epoch=first.epoch,
        life=first.life,
        first=False,
        scheduled_at=scheduled_at,
        due_at=timing.due_at,
        state=last.state if rests else State.ARMED,
        reason=last.reason if rests else None,
        act=None,
    )
