"""What creators do, one at a time under the mutex: operators' verbs, and repairs."""

from scheduler.protocol import epochs
from scheduler.protocol.epochs import LoopState, Step, Verb
from tests.model import broker, processor
from tests.model.moves import Actor, Move, Moves, with_processor
from tests.model.state import NOTHING, Bounds, Creator, Journal, State, Supervisor, Token

STOPS = {Verb.PAUSE, Verb.GONE}


def moves(state: State, bounds: Bounds) -> Moves:
    """The next step of the creator at work, or the first of the next verb."""
    creator = state.creator
    if creator.verb is None:
        if state.verbs:
            verb, *_ = state.verbs
            yield begins(state._replace(verbs=state.verbs[1:]), verb, paused=bounds.paused)
        return
    match epochs.steps(creator.verb)[creator.done]:
        case Step.PURGE:
            yield purges(state, creator.verb, bounds)
        case Step.PUT:
            yield from puts(state, creator.verb)
        case Step.CALL:
            yield from calls(state, creator.verb)
        case step:
            raise AssertionError(f"a creator does not {step.value}")
    if state.budget.deaths:
        less = state.budget._replace(deaths=state.budget.deaths - 1)
        dead = state._replace(creator=Creator(), budget=less)
        yield Move(Actor.FAULT, f"{creator.verb.name.lower()} dies", dead)


def begins(state: State, verb: Verb, *, paused: bool = False) -> Move:
    """It appends its entry, where it has something to do."""
    beginning = epochs.begun(verb, state.roster, paused=paused)
    if beginning is None:
        truth = state.truth._replace(stopped=verb in STOPS or state.truth.stopped)
        return Move(
            Actor.CREATOR, f"{verb.name.lower()} has nothing to do", state._replace(truth=truth)
        )
    journal, truth = with_checkpoint_ended(state.journal._replace(doubled=False)), state.truth
    if verb is Verb.START:
        earlier = journal.earlier or truth.settled > 0
        journal = without_checkpoint(journal._replace(furthest=0, earlier=earlier))
        truth = truth._replace(settled=0)
    if beginning.entry.state is LoopState.ACTIVE and verb in (Verb.START, Verb.RESUME):
        truth = truth._replace(stopped=False)
    first = beginning.token
    known = journal.notes and verb is Verb.START
    token = NOTHING if first is None else Token(first.position, first.paused, known)
    begun = state._replace(
        roster=beginning.entry,
        journal=journal,
        truth=truth,
        supervisor=Supervisor(),
        creator=Creator(verb, token=token, before=state.roster.epoch if journal.notes else 0),
    )
    return _stepped(begun, f"{verb.name.lower()} appends epoch {beginning.entry.epoch}", token)


def with_checkpoint_ended(journal: Journal) -> Journal:
    """What is put from now on is read as well, though the token that was noted is not due."""
    return journal._replace(waits=False)


def without_checkpoint(journal: Journal) -> Journal:
    """In another life."""
    return journal._replace(checkpoint=None, since=0)


def purges(state: State, verb: Verb, bounds: Bounds) -> Move:
    """It adopts what it finds in the slot, and purges it."""
    token = state.creator.token
    if state.slot and token is not NOTHING and not bounds.blank:
        found = state.slot[0].position
        seq = epochs.adopted(token.position, [found], state.roster.life).seq
        known = state.journal.notes and is_known(state)
        token = token._replace(position=token.position._replace(seq=seq), known=known)
    purged = state._replace(slot=(), creator=state.creator._replace(token=token, before=0))
    return _stepped(purged, f"{verb.name.lower()} purges the slot of", *state.slot[:1])


def is_known(state: State) -> bool:
    """Whether the journal need not be read for what it puts."""
    found, creator = state.slot[0], state.creator
    is_last = epochs.is_last(found.position, creator.before, known=found.known)
    return is_last and creator.verb is not Verb.REPAIR


def puts(state: State, verb: Verb) -> Moves:
    """It puts the first token; refused, it purges and puts again."""
    token = state.creator.token
    for put in broker.puts(state, token, republished=True):
        if put.taken:
            yield _stepped(put.state, f"{verb.name.lower()} puts{put.how}", token)
        else:
            plan = epochs.steps(verb)
            back = plan.index(Step.PURGE if Step.PURGE in plan else Step.PUT)
            again = put.state._replace(creator=state.creator._replace(done=back))
            yield Move(Actor.CREATOR, f"{verb.name.lower()} is refused", again, token=token)


def calls(state: State, verb: Verb) -> Moves:
    """It calls the roll: who has not answered answers, one by one."""
    epoch = state.roster.epoch
    late = epochs.unaware(epoch, processor.answers(state))
    for which in late:
        asked = state.processors[which]
        told = asked._replace(known=epochs.learned(asked.known, epoch))
        after = state._replace(processors=with_processor(state, which, told))
        yield Move(
            Actor.PROCESSOR, f"answers {verb.name.lower()}, and knows {epoch}", after, which=which
        )
    if not late:
        yield _stepped(state, f"{verb.name.lower()} has heard all")


def _stepped(state: State, what: str, token: Token = NOTHING) -> Move:
    """After a step; after the last one it returns."""
    creator = state.creator
    assert creator.verb is not None
    done = creator.done + 1
    if done < len(epochs.steps(creator.verb)):
        after = state._replace(creator=creator._replace(done=done))
    else:
        truth = state.truth._replace(stopped=creator.verb in STOPS or state.truth.stopped)
        after = state._replace(creator=Creator(), truth=truth)
    return Move(Actor.CREATOR, what, after, token=token)
