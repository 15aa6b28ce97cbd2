"""What supervision does: it looks for the token of the current epoch, and repairs."""

from scheduler.protocol import epochs
from scheduler.protocol.epochs import LoopState, Verb
from tests.model import creator
from tests.model.moves import Actor, Move, Moves, Wrong
from tests.model.state import NOTHING, Bounds, State, Supervisor

PLACES = ("slot", "queue", "hands")


def moves(state: State, bounds: Bounds) -> Moves:
    """Repairs, right and wrong; the looks that lead to them; and checkpoints."""
    if state.journal.notes:
        yield from notes(state)
    if state.creator.verb is not None or state.roster.state is LoopState.GONE:
        return
    if state.budget.repairs:
        less = state.budget._replace(repairs=state.budget.repairs - 1)
        yield creator.begins(state._replace(budget=less), Verb.REPAIR)
    elif state.journal.doubled:
        yield creator.begins(state, Verb.REPAIR)
    elif not bounds.precise and is_lost(state):
        wrong = Wrong.DROPPED if is_dropped(state, bounds) else None
        yield creator.begins(state, Verb.REPAIR)._replace(wrong=wrong)
    elif bounds.precise:
        yield from looks(state, bounds)


def is_lost(state: State) -> bool:
    """Whether looks, as many as it takes, find no token: each sees all, also what is held."""
    epoch, watch = state.roster.epoch, epochs.Watch()
    held = any(each.held.position.epoch == epoch for each in state.processors)
    for _ in range(epochs.MISSES):
        watch = watch.looked(epoch, found=held or any(found(state)))
    return watch.is_lost


def is_dropped(state: State, bounds: Bounds) -> bool:
    """Whether nothing has failed, and yet there is no token of the current epoch anywhere."""
    failed = state.budget._replace(repairs=0) != bounds.budget._replace(repairs=0)
    there = any(token.position.epoch == state.roster.epoch for token in state.tokens)
    return not failed and not there


def found(state: State) -> list[bool]:
    """In which place a token of the current epoch is. Of the slot, the head is seen."""
    epoch = state.roster.epoch
    return [
        bool(state.slot) and state.slot[0].position.epoch == epoch,
        any(token.position.epoch == epoch for token, _ in state.ready),
        any(each.token.position.epoch == epoch for each in state.processors),
    ]


def notes(state: State) -> Moves:
    """It finds a token of the current epoch in the slot, and notes it."""
    token, *_ = state.slot or (NOTHING,)
    if token.position.epoch == state.roster.epoch and not token.first:
        noted = state.journal._replace(checkpoint=token.position.seq, waits=True, since=0)
        if noted != state.journal:
            yield Move(Actor.SUPERVISION, "notes", state._replace(journal=noted), token=token)


def looks(state: State, bounds: Bounds) -> Moves:
    """It asks the next place, or repairs."""
    asked, watch = state.supervisor
    if watch.is_lost:
        # What is in the slot is purged.
        if len(state.tokens) - len(state.slot) < bounds.most:
            yield creator.begins(state, Verb.REPAIR)
        return
    if found(state)[asked]:
        after, what = Supervisor(), "finds the token in the"
    elif asked < len(PLACES) - 1:
        after, what = Supervisor(asked + 1, watch), "finds no token in the"
    else:
        missed = watch.looked(state.roster.epoch, found=False)
        after, what = Supervisor(0, missed), f"misses the token {missed.misses} times: not in the"
    if after != state.supervisor:
        supervised = state._replace(supervisor=after)
        yield Move(Actor.SUPERVISION, f"{what} {PLACES[asked]}", supervised)
