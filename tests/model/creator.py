"""What creators do, any number of them at once and without a lock: operators' verbs, and repairs.

A creator reads the roster, appends its entry, puts, calls. Between any two of these steps it may be
overtaken, and take the next one at any later moment, or never.
"""

from scheduler.protocol import epochs
from scheduler.protocol.epochs import Entry, LoopState, Step, Verb
from tests.model import broker, processor
from tests.model.moves import Actor, Move, Moves, with_processor
from tests.model.state import NOTHING, Bounds, Creator, State, Token

STOPS = {Verb.PAUSE: LoopState.PAUSED, Verb.GONE: LoopState.GONE}
RESUMES = {Verb.START, Verb.RESUME}


def moves(state: State, bounds: Bounds) -> Moves:
    """The next steps of the creators at work, and the first of the next verb."""
    if state.verbs and len(state.creators) < bounds.at_once:
        verb, *verbs = state.verbs
        yield begins(state._replace(verbs=tuple(verbs)), verb, bounds)
    for at, creator in enumerate(state.creators):
        if creator in state.creators[:at]:
            continue
        match creator.steps[creator.done]:
            case Step.APPEND:
                yield appends(state, at)
            case Step.PUT:
                yield puts(state, at)
            case Step.CALL:
                yield from calls(state, at)
            case step:
                raise AssertionError(f"a creator does not {step.value}")
        if state.budget.deaths and creator.done:  # before, it is as good as not there
            dead = without(state, at)._replace(budget=state.budget.less("deaths"))
            yield Move(Actor.FAULT, f"{creator.verb.name.lower()} dies", dead)


def begins(state: State, verb: Verb, bounds: Bounds) -> Move:
    """It reads the roster; and appends, where no other entry can come between."""
    beginning = epochs.begun(verb, state.roster, paused=bounds.paused)
    name = verb.name.lower()
    if beginning is None:
        stopped = state.truth.stopped or STOPS.get(verb) is state.roster.state
        after = state._replace(truth=state.truth._replace(stopped=stopped))
        return Move(Actor.CREATOR, f"{name} has nothing to do", after)
    begun = state._replace(creators=(*state.creators, Creator(verb, beginning)))
    if bounds.at_once > 1 or bounds.budget.stops:
        return Move(Actor.CREATOR, f"{name} reads the roster", begun)
    return appends(begun, len(state.creators))


def appends(state: State, at: int) -> Move:
    """It appends its entry, and learns whether that was accepted."""
    verb, beginning, *_ = state.creators[at]
    entry, name = beginning.entry, verb.name.lower()
    if not epochs.accepted(entry, state.roster):
        return Move(Actor.CREATOR, f"{name} finds itself overtaken", without(state, at))
    return stepped(counted(state, entry, verb), at, f"{name} appends epoch {entry.epoch}")


def counted(state: State, entry: Entry, verb: Verb) -> State:
    """After an entry was accepted."""
    journal, truth = state.journal._replace(doubled=False), state.truth
    creators = state.creators
    if verb is Verb.START:
        earlier = journal.earlier or truth.settled > 0
        journal = journal._replace(furthest=0, earlier=earlier, checkpoint=None, forgot=False)
        truth = truth._replace(settled=0)
    if verb in RESUMES and entry.state is LoopState.ACTIVE:
        truth = truth._replace(stopped=False)
        creators = tuple([each._replace(resumed=_promises(each)) for each in creators])
    if verb in RESUMES or verb is Verb.TRIGGER:
        truth = truth._replace(ended=False)
    return state._replace(roster=entry, journal=journal, truth=truth, creators=creators)


def _promises(creator: Creator) -> bool:
    """Whether its entry was accepted, and it says that no run begins once it has returned."""
    return creator.done > 0 and creator.verb in STOPS


def puts(state: State, at: int) -> Move:
    """It puts the first token: once, whether that is confirmed or not."""
    creator = state.creators[at]
    token = creator.pending
    journal = broker.heard(state, token.position, republished=True)
    put = state._replace(waiting=(*state.waiting, token), journal=journal)
    return stepped(put, at, f"{creator.verb.name.lower()} puts", token)


def calls(state: State, at: int) -> Moves:
    """It calls the roll: who has not answered answers, one by one."""
    creator = state.creators[at]
    epoch, name = creator.beginning.entry.epoch, creator.verb.name.lower()
    late = epochs.unaware(epoch, processor.answers(state))
    for which in late:
        asked = state.processors[which]
        told = asked._replace(known=epochs.learned(asked.known, epoch))
        after = state._replace(processors=with_processor(state, which, told))
        yield Move(Actor.PROCESSOR, f"answers {name}, and knows {epoch}", after, which=which)
    if not late:
        yield stepped(state, at, f"{name} has heard all")


def stepped(state: State, at: int, what: str, token: Token = NOTHING) -> Move:
    """After a step; after the last one it returns."""
    creator = state.creators[at]
    creator = creator._replace(done=creator.done + 1)
    if creator.done < len(creator.steps):
        creators = (*state.creators[:at], creator, *state.creators[at + 1 :])
        after = state._replace(creators=creators)
    else:
        # If it was overtaken by a resume, it promises nothing.
        stopped = state.truth.stopped or (creator.verb in STOPS and not creator.resumed)
        after = without(state, at)._replace(truth=state.truth._replace(stopped=stopped))
    return Move(Actor.CREATOR, what, after, token=token)


def without(state: State, at: int) -> State:
    return state._replace(creators=state.creators[:at] + state.creators[at + 1 :])
