"""What supervision does: it begins an epoch of what is overdue, at once, and sometimes wrongly."""

from scheduler.protocol.epochs import LoopState, Verb
from tests.model import creator
from tests.model.moves import Moves, Wrong
from tests.model.state import Bounds, State


def moves(state: State, bounds: Bounds) -> Moves:
    """Repairs, right and wrong."""
    if state.roster.state is not LoopState.ACTIVE or len(state.creators) >= bounds.at_once:
        return
    if state.budget.repairs:
        less = state._replace(budget=state.budget.less("repairs"))
        yield creator.begins(less, Verb.REPAIR, bounds)
    elif state.creators:
        return  # a repair while they are at work is a wrong one
    elif state.journal.doubled:
        yield creator.begins(state, Verb.REPAIR, bounds)
    elif is_lost(state):
        wrong = Wrong.DROPPED if is_dropped(state, bounds) else None
        yield creator.begins(state, Verb.REPAIR, bounds)._replace(wrong=wrong)


def is_lost(state: State) -> bool:
    """Whether the loop is overdue: no token of its epoch waits its time, is ready or in flight.

    A token in a timer that has stopped does not count.
    """
    epoch = state.roster.epoch
    return not any(token.position.epoch == epoch for token in state.found)


def is_dropped(state: State, bounds: Bounds) -> bool:
    """Whether nothing has failed, nobody is at work, and yet there is no token."""
    harmless = {"repairs": 0, "forgets": 0, "stops": 0}
    failed = state.budget._replace(**harmless) != bounds.budget._replace(**harmless)
    return not failed
