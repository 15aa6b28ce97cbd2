"""How the first token of an epoch joins its loop's line: as what it is exchanged for (R4).

It is not run itself. It is put again, from where the loop has got to, to wait until that is due.
"""

from dataclasses import replace

from scheduler.protocol.epochs import Verb
from scheduler.protocol.tokens import State, Token
from scheduler.queues.journal import Heard
from scheduler.timing.once import Once

TOOK_ITS_PLACE = (Verb.REPAIR, Verb.RESCHEDULE)


def joined(first: Token, heard: Heard) -> Token:
    """What the first token of an epoch is exchanged for.

    Args:
        heard: what the journal tells of the loop, now that no older run goes on.
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
    # Paused by its own run meanwhile, it stays so; done, it does whoever asks, also to resume it.
    rests = not again and (last.state is State.DONE or (took_its_place and last.rests))
    return replace(
        last,
        schedule=first.schedule,
        args=first.args,
        epoch=first.epoch,
        life=first.life,
        first=False,
        known=False,
        scheduled_at=timing.scheduled_at,
        due_at=timing.due_at,
        state=last.state if rests else State.ARMED,
        reason=last.reason if rests else None,
        act=None,
    )
