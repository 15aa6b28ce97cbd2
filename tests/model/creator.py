"""What creators do, any number of them at once and without a lock: operators' verbs, and repairs.

A creator reads the roster, appends its entry, exchanges its first token or leaves that to its
processor, puts, calls. Between any two of these steps it may be overtaken, and take the next one at
any later moment, or never.
"""

from collections.abc import Iterable

from scheduler.protocol import epochs
from scheduler.protocol.epochs import Entry, LoopState, Position, Verb
from tests.model import broker, processor
from tests.model.moves import Actor, Move, Moves
from tests.model.state import NOTHING, REMOVED, Ask, Bounds, Creator, Name, Renaming, State, Token
from tests.model.steps import Step

STOPS = {Verb.PAUSE: LoopState.PAUSED, Verb.REMOVE: LoopState.GONE}
RESUMES = {Verb.SEED, Verb.RESUME}


def moves(state: State, bounds: Bounds) -> Moves:
    """The next steps of the creators at work, and the first of the next verb."""
    if state.verbs and len(state.creators) < bounds.at_once:
        verb, *verbs = state.verbs
        asked_for, what = verb_of(verb, state)
        name = verb.name if isinstance(verb, Name) else state.name
        yield begins(state._replace(verbs=tuple(verbs)), asked_for, bounds, what, name)
    for at, creator in enumerate(state.creators):
        if creator in state.creators[:at]:
            continue
        match creator.steps[creator.done]:
            case Step.APPEND:
                yield appends(state, at)
            case Step.EXCHANGE:
                yield from exchanges(state, at)
            case Step.PUT:
                yield puts(state, at)
            case Step.CALL:
                yield from calls(state, at)
            case step:
                raise AssertionError(f"a creator does not {step.value}")
        if state.budget.deaths and creator.done:  # before, it is as good as not there
            dead = without(state, at).less("deaths")
            yield Move(Actor.FAULT, f"{creator.verb.name.lower()} dies", dead)


def verb_of(verb: Verb | Ask | Name, state: State) -> tuple[Verb | None, int]:
    """What somebody does who asks for a loop; None: nothing, as it is there, or has finished."""
    if isinstance(verb, Verb):
        return verb, state.what
    if isinstance(verb, Name):
        return None if verb.name == state.name else Verb.RENAME, state.what
    if verb.what == state.what:
        return None, state.what
    return Verb.SEED if state.roster.state is LoopState.GONE else Verb.RESCHEDULE, verb.what


def begins(
    state: State, verb: Verb | None, bounds: Bounds, what: int, name: int | None = None
) -> Move:
    """It reads the roster; and appends, where no other entry can come between."""
    if verb is None:
        return Move(Actor.CREATOR, "finds it unchanged", state)
    beginning = epochs.begun(verb, state.roster, at_ms=later(state), paused=bounds.paused)
    name = state.name if name is None else name
    said = verb.name.lower()
    if beginning is None:
        stopped = state.truth.stopped or STOPS.get(verb) is state.roster.state
        after = state._replace(truth=state.truth._replace(stopped=stopped))
        return Move(Actor.CREATOR, f"{said} has nothing to do", after)
    creator = Creator(verb, beginning, what, name=name)
    begun = state._replace(creators=(*state.creators, creator))
    if bounds.at_once > 1 or bounds.budget.stops:
        return Move(Actor.CREATOR, f"{said} reads the roster", begun)
    return appends(begun, len(state.creators))


def later(state: State) -> int:
    """Return the time in milliseconds: who reads the roster may stop between two epochs."""
    return state.roster.epoch + 2


def appends(state: State, at: int) -> Move:
    """It appends its entry, and learns whether that was accepted."""
    verb, beginning, what, *_ = state.creators[at]
    entry, name = beginning.entry, verb.name.lower()
    if not epochs.accepted(entry, state.roster):
        return Move(Actor.CREATOR, f"{name} finds itself overtaken", without(state, at))
    what = REMOVED if verb is Verb.REMOVE else what
    if verb is Verb.RENAME:
        renaming = Renaming(entry.epoch, state.creators[at].name)
        state = state._replace(renamings=(*state.renamings, renaming))
    return stepped(counted(state, entry, verb, what), at, f"{name} appends epoch {entry.epoch}")


def counted(state: State, entry: Entry, verb: Verb, what: int) -> State:
    """After an entry was accepted."""
    journal, truth = state.journal._replace(doubled=False), state.truth
    creators = state.creators
    if verb is Verb.SEED:
        earlier = journal.earlier or truth.settled > 0
        journal = journal._replace(furthest=0, earlier=earlier, checkpoint=None, forgot=False)
        truth = truth._replace(settled=0, finished=())
    if verb in RESUMES and entry.state is LoopState.ACTIVE:
        truth = truth._replace(stopped=False)
        creators = tuple([each._replace(resumed=_promises(each)) for each in creators])
    if verb in RESUMES or verb is Verb.TRIGGER:
        truth = truth._replace(ended=False)
    truth = truth._replace(is_over=truth.is_over and what == state.what and verb is not Verb.SEED)
    return state._replace(roster=entry, what=what, journal=journal, truth=truth, creators=creators)


def _promises(creator: Creator) -> bool:
    """Whether its entry was accepted, and it says that no run begins once it has returned."""
    return creator.done > 0 and creator.verb in STOPS


def exchanges(state: State, at: int) -> Moves:
    """R4: it calls the roll, and goes on from what was heard last; or leaves that to a processor.

    It may leave it at any moment: as an older run goes on, or a processor does not answer.
    """
    creator = state.creators[at]
    name, first = creator.verb.name.lower(), creator.pending
    yield leaves(state, at)
    if is_left(state):
        return
    yield from asked(state, first.position.epoch, name)
    if is_free(state, first.position.epoch):
        position = epochs.adopted(first.position, heard(state), state.roster.life)
        if processor.is_ended(state, position, first.what):
            return
        joined = first.position._replace(seq=position.seq, joined=True)
        after = with_token(state, at, joined)  # what is left to do is to put it
        wrong = processor.wrong_with_reading(state, first, position)
        yield Move(Actor.CREATOR, f"{name} adopts", after, token=Token(joined), wrong=wrong)


def leaves(state: State, at: int) -> Move:
    """It leaves the exchange of its token to the processor that will receive it."""
    return stepped(state, at, f"{state.creators[at].verb.name.lower()} leaves the exchange")


def is_left(state: State) -> bool:
    """Return whether it leaves that to a processor anyway: the loop has had another name."""
    return bool(state.renamings)


def is_free(state: State, epoch: int) -> bool:
    """Return whether all processors know the epoch, and none is in an older run."""
    return not epochs.awaited(epoch, processor.answers(state, state.name_at(epoch)))


def heard(state: State) -> list[Position]:
    """What it finds in the journal, after a barrier."""
    return processor.heard(state)


def with_token(state: State, at: int, token: Position) -> State:
    """After a creator has exchanged the token that it will put."""
    creator = state.creators[at]
    return with_creator(
        state, at, creator._replace(beginning=creator.beginning._replace(token=token))
    )


def with_creator(state: State, at: int, creator: Creator) -> State:
    return state._replace(creators=(*state.creators[:at], creator, *state.creators[at + 1 :]))


def puts(state: State, at: int) -> Move:
    """It puts its token: once, whether that is confirmed or not."""
    creator = state.creators[at]
    token = creator.pending
    journal = broker.heard(state, token.position, republished=True)
    put = state._replace(waiting=(*state.waiting, token), journal=journal)
    return stepped(put, at, f"{creator.verb.name.lower()} puts", token)


def calls(state: State, at: int) -> Moves:
    """It calls the roll: who has not answered answers, one by one."""
    creator = state.creators[at]
    epoch, name = creator.beginning.entry.epoch, creator.verb.name.lower()
    yield from asked(state, epoch, name)
    if not unaware(state, epoch):
        yield stepped(state, at, f"{name} has heard all")


def asked(state: State, epoch: int, name: str) -> Moves:
    """Who does not know of an epoch is asked, and answers."""
    for which in unaware(state, epoch):
        told = processor.answers_all(state.processors[which], names(state, epoch), epoch)
        after = state.with_processor(which, told)
        yield Move(Actor.PROCESSOR, f"answers {name}, and knows {epoch}", after, which=which)


def unaware(state: State, epoch: int) -> list[int]:
    """Who may still start an older run, by any of the names that are asked for."""
    answers = [processor.answers(state, name) for name in names(state, epoch)]
    return sorted({which for said in answers for which in epochs.unaware(epoch, said)})


def names(state: State, epoch: int) -> Iterable[int]:
    """Under which names it asks for a loop: under all that the loop had."""
    return processor.all_names(state)


def stepped(state: State, at: int, what: str, token: Token = NOTHING) -> Move:
    """After a step; after the last one it returns."""
    creator = state.creators[at]
    creator = creator._replace(done=creator.done + 1)
    if creator.done < len(creator.steps):
        after = with_creator(state, at, creator)
    else:
        # If it was overtaken by a resume, it promises nothing.
        stopped = state.truth.stopped or (creator.verb in STOPS and not creator.resumed)
        after = without(state, at)._replace(truth=state.truth._replace(stopped=stopped))
    return Move(Actor.CREATOR, what, after, token=token)


def without(state: State, at: int) -> State:
    return state._replace(creators=state.creators[:at] + state.creators[at + 1 :])
