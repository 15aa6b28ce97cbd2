"""What supervision does: it begins an epoch of what is overdue, at once, and sometimes wrongly."""

from scheduler.protocol.epochs import LoopState, Verb
from tests.model import creator, processor
from tests.model.moves import Actor, Move, Moves, Wrong
from tests.model.state import Bounds, State


def moves(state: State, bounds: Bounds) -> Moves:
    """Repairs, right and wrong."""
    for end in state.journal.ends:
        if hears(state) and processor.holds(end, state):
            entered, wrong = processor.entered(end, state), processor.wrong_with_end(state)
            yield Move(Actor.SUPERVISION, "supervision enters the end", entered, wrong=wrong)
    if state.roster.state is not LoopState.ACTIVE or len(state.creators) >= bounds.at_once:
        return
    if state.budget.repairs:
        less = state.less("repairs")
        yield creator.begins(less, Verb.REPAIR, bounds, state.what)
    elif state.creators:
        return  # a repair while they are at work is a wrong one
    elif state.journal.doubled:
        yield creator.begins(state, Verb.REPAIR, bounds, state.what)
    elif is_lost(state):
        wrong = Wrong.DROPPED if is_dropped(state, bounds) else None
        yield creator.begins(state, Verb.REPAIR, bounds, state.what)._replace(wrong=wrong)


def hears(state: State) -> bool:
    """Whether it hears in the journal how runs have ended their loops."""
    return True


def is_lost(state: State) -> bool:
    """Whether the loop is overdue: no token of its epoch waits its time, is ready or in flight.

    A token in a timer that has stopped does not count. A loop that a run has ended has none.
    """
    epoch = state.roster.epoch
    if any(end.position.epoch == epoch for end in state.journal.ends):
        return False
    return not any(token.position.epoch == epoch for token in state.found)


def is_dropped(state: State, bounds: Bounds) -> bool:
    """Whether nothing has failed, nobody is at work, and yet there is no token."""
    harmless = {"repairs": 0, "forgets": 0, "stops": 0}
    failed = state.budget._replace(**harmless) != bounds.budget._replace(**harmless)
    return not failed
