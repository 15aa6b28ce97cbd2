"""What a processor does: start, receive, ask, run, settle.

What makes no difference to all others is one step with what follows: a token is received where its
first decision is taken, a run ends in its put, and who is not cut off between put and ack acks at
once. The roster is read where what was read decides.
"""

from collections.abc import Generator, Iterable
from functools import partial

from scheduler.protocol import epochs
from scheduler.protocol.epochs import Answer, Position, Verb
from tests.model import broker, creator, steps
from tests.model.moves import Actor, Move, Moves, Wrong
from tests.model.state import NOTHING, Phase, Processor, State, Token
from tests.model.steps import Step

RUN_BEGAN = {Phase.RUNNING, Phase.PUTTING, Phase.STOPPING, Phase.ENDING}


def moves(state: State) -> Moves:
    """The moves of all processors."""
    for which, processor in enumerate(state.processors):
        # Of those that are alike, one moves.
        if which and processor == state.processors[which - 1]:
            continue
        match processor.phase:
            case Phase.AWAY | Phase.STARTED:
                yield starts(state, which)
            case Phase.IDLE:
                yield from receives(state, which)
            case Phase.WAITING:
                yield from waits(state, which)
            case Phase.ASKING:
                yield from asks(state, which)
            case Phase.CLEARED:
                yield from runs(state, which, processor.token)
            case Phase.RUNNING if processor.token.what:
                yield from stops(state, which)
            case Phase.RUNNING:
                yield from settles(state, which)
                if state.budget.stops:
                    yield from stops(state.less("stops"), which)
            case Phase.PUTTING:
                yield from settles(state, which)
            case Phase.STOPPING:
                yield from stops(state, which)
            case Phase.ENDING:
                yield ends(state, which)
            case Phase.RETURNING:
                yield from returns(state, which)


def starts(state: State, which: int) -> Move:
    """P0, a step of it; after the last one it consumes."""
    processor = state.processors[which]
    done = processor.phase + 1
    step = steps.STARTING[processor.phase]
    known = processor.known
    if step is Step.READ:
        for name in range(len(known)):
            known = known_with(known, (name,), state.told(name))
    phase = Phase.IDLE if done == len(steps.STARTING) else Phase(done)
    return _moved(state, which, step.value, processor._replace(phase=phase, known=known))


def receives(state: State, which: int) -> Moves:
    """R1, the last settled position, and R3 for what is redelivered; R4 begins, or the run."""
    for at, (token, redelivered) in enumerate(state.ready):
        if at and state.ready[at - 1] == state.ready[at]:
            continue
        epoch, before = token.position.epoch, state.processors[which]
        name = state.name_at(epoch)
        if before.old and name:
            continue
        taken = state._replace(ready=state.ready[:at] + state.ready[at + 1 :])
        known = known_on_receipt(before.known, state, token)
        settled = before.settled
        idle = before._replace(known=known)
        in_hand = idle._replace(token=token, delivered=token)
        if epochs.is_void(epoch, known[name]):
            yield _moved(taken, which, "acks, as void,", idle, token)
            continue
        if epochs.is_behind(token.position, settled):
            yield _moved(taken, which, "acks, as settled by itself,", idle, token)
            continue
        yield from reads_on(taken, which, in_hand)
        if redelivered:
            waiting = in_hand._replace(phase=Phase.WAITING)
            yield _moved(taken, which, "gets back", waiting, token)
        elif token.first:
            asking = in_hand._replace(phase=Phase.ASKING)
            yield _moved(taken, which, "asks before the first run of", asking, token)
        else:
            holding = taken.with_processor(which, in_hand)
            yield from runs(holding, which, token)


def known_on_receipt(known: tuple[int, ...], state: State, token: Token) -> tuple[int, ...]:
    """What it knows on receipt of a token."""
    return known_with(known, names(state, token), token.position.epoch)


def known_with(known: tuple[int, ...], named: Iterable[int], epoch: int) -> tuple[int, ...]:
    """What a processor knows that learns of an epoch of these names."""
    after = list(known)
    for name in named:
        after[name] = epochs.learned(known[name], epoch)
    return tuple(after)


def heard(state: State) -> list[Position]:
    """What a reader of the journal finds, after a barrier."""
    return list(state.journal.positions(state.roster.life))


def history(state: State, first: Token) -> list[Position]:
    """R4: what it finds of a loop, under all names that the loop had."""
    return heard(state)


def names(state: State, token: Token) -> Iterable[int]:
    """Under which names the loop of a token is asked for: of a first one, under all it had."""
    name = state.name_at(token.position.epoch)
    return all_names(state) if token.first else (name,)


def all_names(state: State) -> Iterable[int]:
    """The names that the loop has, and had."""
    return {0, *(each.name for each in state.renamings)}


def reads_on(state: State, which: int, processor: Processor) -> Moves:
    """It has read in the roster, by now, of an epoch after its token's."""
    epoch = processor.token.position.epoch
    name = state.name_at(epoch)
    if epoch < state.told(name):
        known = known_with(processor.known, (name,), epoch + 1)
        if epochs.is_void(epoch, known[name]):
            idle = _idle(processor)._replace(known=known)
            yield _moved(state, which, "reads the roster, acks, as void,", idle, processor.token)


def waits(state: State, which: int) -> Moves:
    """R3: whoever was not told of the recall is waited for; what is settled then is acked."""
    processor = state.processors[which]
    token = processor.token
    calling = yield from calls(state, which, came_back=True)
    if calling:
        return
    if epochs.was_settled(token.position, heard(state)):
        if is_end(state, token.position):
            ending = processor._replace(phase=Phase.ENDING)
            yield _moved(state, which, "finds that its run stopped the loop", ending, token)
        else:
            yield _moved(state, which, "acks, as settled,", _idle(processor), token)
    elif token.first:
        yield _moved(state, which, "goes on with", processor._replace(phase=Phase.ASKING), token)
    else:
        cleared = processor._replace(phase=Phase.CLEARED)
        yield _moved(state, which, "finds not settled", cleared, token)


def calls(state: State, which: int, *, came_back: bool = False) -> Generator[Move, None, bool]:
    """It calls the roll: all others answer, one by one. Whether it still waits, or is done."""
    processor = state.processors[which]
    token = processor.token
    epoch = token.position.epoch
    if epochs.is_void(epoch, processor.known[state.name_at(epoch)]):
        yield _moved(state, which, "acks, as void,", _idle(processor), token)
        return True
    yield from reads_on(state, which, processor)
    asked, others = list(names(state, token)), set[int]()
    for name in asked:
        said = answers(state, name)
        del said[which]
        others |= {*epochs.awaited(epoch, said, came_back=came_back)}
    for other in sorted(others):
        if (told := answers_all(state.processors[other], asked, epoch)) != state.processors[other]:
            yield _moved(state, other, "answers, and knows", told, token)
    return bool(others)


def answers_all(processor: Processor, asked: Iterable[int], epoch: int) -> Processor:
    """After it was asked for an epoch, by all names that one question has."""
    return processor._replace(known=known_with(processor.known, asked, epoch))


def asks(state: State, which: int) -> Moves:
    """R4: whoever is in an older run is waited for; then it goes on from what was heard last."""
    processor = state.processors[which]
    token = processor.token
    epoch = token.position.epoch
    calling = yield from calls(state, which)
    if not calling:
        life = state.roster.life
        position = epochs.adopted(token.position, history(state, token), life)
        adopted = token._replace(position=Position(epoch, position.seq, joined=False))
        wrong = wrong_with_reading(state, token, position)
        if is_ended(state, position, token.what):
            what, after = " the end", processor._replace(phase=Phase.ENDING)
        else:
            what, after = "", processor._replace(phase=Phase.PUTTING, token=adopted)
        yield _moved(state, which, f"has heard all, adopts{what}", after, adopted, wrong)


def wrong_with_reading(state: State, first: Token, position: Position) -> Wrong | None:
    """Whether the journal, and what is noted of it, does not tell any more how far the loop was."""
    if first.position.epoch != state.roster.epoch or not state.journal.forgot:
        return None  # what a void token goes on with is void, too
    return Wrong.FORGOTTEN if position.seq < state.truth.settled else None


def is_ended(state: State, position: Position, what: int) -> bool:
    """R4: whether a run has ended what the first token of an epoch is for, and that holds.

    A stop is what it adopts. Of what is finished, others may have put more: it was moved since.
    """
    return any(
        epochs.stays_ended(
            end.position, state.roster, was_only=end.what > 0, is_same=end.what == what
        )
        for end in state.journal.ends
        if end.what or end.position == position
    )


def is_end(state: State, position: Position) -> bool:
    """Whether the journal tells that the run of a token, which was settled, stopped the loop."""
    return epochs.was_settled(position, [end.position for end in state.journal.ends])


def answers(state: State, name: int) -> dict[int, Answer | None]:
    """What the subscribed processors say in a roll call of a loop by one of its names."""
    subscribed = steps.STARTING.index(Step.SUBSCRIBE) + 1
    return {
        which: Answer(processor.known[name], running(state, processor, name))
        for which, processor in enumerate(state.processors)
        if processor.phase >= subscribed
    }


def running(state: State, processor: Processor, name: int) -> int | None:
    """The epoch of the token by this name whose run it has begun, if it has."""
    epoch = processor.token.position.epoch
    return epoch if has_run_begun(processor) and state.name_at(epoch) == name else None


def has_run_begun(processor: Processor) -> bool:
    return processor.phase in RUN_BEGAN and not processor.token.first


def runs(state: State, which: int, token: Token) -> Moves:
    """R1 once more, and the run begins."""
    processor = state.processors[which]
    epoch = token.position.epoch
    if epochs.is_void(epoch, processor.known[state.name_at(epoch)]):
        yield _moved(state, which, "acks, as void,", _idle(processor), token)
        return
    if processor.phase is Phase.CLEARED:
        yield from reads_on(state, which, processor)
    if state.budget.early:
        returning = processor._replace(phase=Phase.RETURNING)
        yield _moved(state.less("early"), which, "finds too early", returning, token)
    running = processor._replace(phase=Phase.RUNNING)
    begins = _moved(state, which, "runs", running, token, wrong_with(state, which, token))
    yield begins._replace(stale=any(reads_on(state, which, processor)))


def wrong_with(state: State, which: int, token: Token) -> Wrong | None:
    """What is wrong with a run that begins now."""
    position = token.position
    others = (each for at, each in enumerate(state.processors) if at != which)
    if any(other.phase is Phase.RUNNING for other in others):
        return Wrong.OVERLAP
    if state.truth.stopped or state.truth.ended:
        return Wrong.STOPPED
    if state.truth.is_over and token.what == state.what:
        return Wrong.RERUN
    if position.epoch < state.roster.life or position.seq == state.truth.settled:
        return None
    return Wrong.BACKWARDS if position.seq < state.truth.settled else Wrong.SKIPPED


def settles(state: State, which: int) -> Moves:
    """What comes after it is put; confirmed: the token is acked, or redelivered.

    R3p: if it was not confirmed, the journal is asked before it is published again.
    """
    processor = state.processors[which]
    position = processor.token.position
    if processor.unconfirmed and was_put(state, position):
        acked = _idle(processor, settled=True)
        yield _moved(state, which, "finds its put in the journal, acks", acked, processor.token)
        return
    successor = successor_of(processor.token)
    for put in broker.puts(state, successor, republished=processor.unconfirmed):
        after, wrong = put.state, None
        if put.arrived and not processor.token.first:
            after, wrong = _settled(put.state, position, again=processor.unconfirmed)
        if not put.confirmed:
            again = processor._replace(phase=Phase.PUTTING, unconfirmed=True)
            yield _failed(after, which, f"puts{put.how}", again, successor, wrong)
            if after.budget.outages and not put.arrived:
                cut_off = after.with_processor(which, again)
                yield _failed(cut_off, which, f"puts{put.how}; is cut off", None, successor, wrong)
            continue
        idle = _idle(processor, settled=True)
        yield _moved(after, which, f"puts{put.how}", idle, successor, wrong)
        if after.budget.outages:
            yield _failed(after, which, "is cut off after it put", None, successor, wrong)
            knowing = after.with_processor(which, processor._replace(settled=position))
            yield _failed(knowing, which, "is cut off before it acks", None, successor, wrong)


def returns(state: State, which: int) -> Moves:
    """It puts a token once more that came too early; confirmed: the token is acked."""
    processor = state.processors[which]
    token, position = processor.token, processor.token.position
    if processor.unconfirmed and was_put(state, position):
        yield _moved(state, which, "finds it in the journal, acks", _idle(processor), token)
        return
    again = returned(token)
    for put in broker.puts(state, again, republished=True):
        if put.confirmed:
            yield _moved(put.state, which, f"returns{put.how}", _idle(processor), again)
        else:
            unconfirmed = processor._replace(unconfirmed=True)
            yield _failed(put.state, which, f"returns{put.how}", unconfirmed, again)
        if put.state.budget.outages:
            holding = put.state.with_processor(which, processor)
            yield _failed(holding, which, f"returns{put.how}; is cut off", None, again)


def returned(token: Token) -> Token:
    """A token that goes to the timers again."""
    position = token.position
    return token._replace(position=position._replace(returns=position.returns + 1))


def was_put(state: State, position: Position) -> bool:
    """R3p: whether the journal has heard what was not confirmed."""
    return epochs.was_settled(position, heard(state))


def successor_of(token: Token) -> Token:
    """What is put after it: a first one is not run, but exchanged for one that has joined."""
    position = token.position
    joined = position._replace(joined=True, returns=0)
    return token._replace(position=joined if token.first else joined._replace(seq=position.seq + 1))


def _settled(state: State, position: Position, *, again: bool) -> tuple[State, Wrong | None]:
    if position.epoch < state.roster.life:
        return state, None
    settled = position.seq + 1
    truth = state.truth._replace(settled=max(state.truth.settled, settled))
    wrong = Wrong.RESETTLED if settled <= state.truth.settled and not again else None
    return state._replace(truth=truth), wrong


def stops(state: State, which: int) -> Moves:
    """Its run ends the loop: what comes after it is put in the journal only."""
    processor = state.processors[which]
    token = processor.token
    ending = processor._replace(phase=Phase.ENDING)
    if processor.unconfirmed and was_put(state, token.position):
        yield _moved(state, which, "finds its end in the journal", ending, token)
        return
    end = successor_of(token)
    journal = broker.heard(state, end.position, republished=processor.unconfirmed)
    after, wrong = _settled(state, token.position, again=processor.unconfirmed)
    ends = (*(each for each in journal.ends if each.what != end.what), end)
    after = _ended(after, token)._replace(journal=journal._replace(ends=ends))
    yield _moved(after, which, "stops the loop", ending, end, wrong)
    if state.budget.outages:
        yield _failed(after, which, "stops the loop, is cut off", None, end, wrong)
    if state.budget.races:
        again = processor._replace(phase=Phase.STOPPING, unconfirmed=True)
        what = "stops the loop, and the confirmation is lost"
        yield _failed(after.less("races"), which, what, again, end, wrong)
        yield _failed(state.less("races"), which, "stops the loop, in vain", again, end)


def _ended(state: State, token: Token) -> State:
    """After the run of a token has ended its loop."""
    truth, epoch = state.truth, token.position.epoch
    if not token.what:
        return state._replace(
            truth=truth._replace(ended=truth.ended or epoch >= state.roster.asked)
        )
    if epoch < state.roster.life:
        return state
    finished = tuple(sorted({*truth.finished, token.what}))
    is_over = truth.is_over or token.what == state.what
    return state._replace(truth=truth._replace(finished=finished, is_over=is_over))


def ends(state: State, which: int) -> Move:
    """C: it enters the end of its loop if that holds for the latest entry, and acks."""
    processor = state.processors[which]
    idle, token = _idle(processor, settled=True), processor.token
    if not holds(token, state):
        return _moved(state, which, "finds its end overtaken, acks", idle, token)
    wrong = wrong_with_end(state)
    return _moved(entered(token, state), which, "enters its end, acks", idle, token, wrong)


def holds(end: Token, state: State) -> bool:
    """Return whether the end of a loop holds for its latest entry."""
    return epochs.ends(
        end.position, state.roster, was_only=end.what > 0, is_same=end.what == state.what
    )


def entered(end: Token, state: State) -> State:
    """After the end of a loop was appended, based on the latest entry."""
    verb = Verb.REMOVE if end.what else Verb.PAUSE
    beginning = epochs.begun(verb, state.roster, at_ms=creator.later(state))
    assert beginning is not None
    return creator.counted(state, beginning.entry, verb, state.what)


def wrong_with_end(state: State) -> Wrong | None:
    """What is wrong with a loop that is taken for ended now."""
    if state.what:
        return None if state.what in state.truth.finished else Wrong.UNDONE
    # Of what a run has settled, and nobody has asked for since, is this the end?
    return None if state.truth.ended else Wrong.RESTOPPED


def cuts(state: State) -> Moves:
    """Faults: a processor dies, or loses its connection, and remembers what it has settled."""
    if not state.budget.outages:
        return
    for which, processor in enumerate(state.processors):
        if processor.phase is not Phase.AWAY:
            yield _failed(state, which, "is cut off", None, processor.token)
            if processor.settled is not None or processor.old:
                another = processor._replace(settled=None, old=False)  # of the latest release
                dies = state.with_processor(which, another)
                yield _failed(dies, which, "dies", None, processor.token)


def recalls(state: State) -> Moves:
    """Faults: a token in a run is given to somebody else, too."""
    if not state.budget.recalls:
        return
    for which, processor in enumerate(state.processors):
        if has_run_begun(processor) and processor.delivered is not NOTHING:
            running = processor._replace(delivered=NOTHING)
            ready = (*state.ready, (processor.delivered, True))
            recalled, what = state._replace(ready=ready), "is not told of the recall of"
            yield _moved(recalled.less("recalls"), which, what, running, processor.delivered)


def cut(state: State, which: int) -> State:
    """After an outage: what it had in hand is redelivered as it was."""
    processor = state.processors[which]
    ready = state.ready
    if processor.delivered is not NOTHING:
        ready = (*ready, (processor.delivered, True))
    nothing = (0,) * len(processor.known)
    away = Processor(Phase.AWAY, nothing, settled=processor.settled, old=processor.old)
    return state._replace(ready=ready).with_processor(which, away).less("outages")


def _idle(processor: Processor, *, settled: bool = False) -> Processor:
    """After it acked."""
    position = processor.token.position if settled else processor.settled
    return Processor(Phase.IDLE, processor.known, settled=position, old=processor.old)


def _moved(
    state: State,
    which: int,
    what: str,
    processor: Processor | None,
    token: Token = NOTHING,
    wrong: Wrong | None = None,
    actor: Actor = Actor.PROCESSOR,
) -> Move:
    """A move of a processor; None: it is cut off."""
    after = state.with_processor(which, processor) if processor else cut(state, which)
    return Move(actor, what, after, which=which, token=token, wrong=wrong)


_failed = partial(_moved, actor=Actor.FAULT)
"""A fault that befalls a processor."""
