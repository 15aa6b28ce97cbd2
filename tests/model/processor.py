"""What a processor does: start, receive, ask, run, settle.

What makes no difference to all others is one step with what follows: a token is received where its
first decision is taken, a run ends in its put, and who is not cut off between put and ack acks at
once. The roster is read where what was read decides.
"""

from collections.abc import Generator

from scheduler.protocol import epochs
from scheduler.protocol.epochs import Answer, Position, Refused, Step
from tests.model import broker
from tests.model.moves import Actor, Move, Moves, Wrong, with_processor
from tests.model.state import NOTHING, Phase, Processor, State, Token

RUN_BEGAN = {Phase.RUNNING, Phase.REFUSED, Phase.HOLDING, Phase.PUTTING}


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
            case Phase.RUNNING | Phase.PUTTING:
                yield from settles(state, which)
            case Phase.REFUSED:
                yield looks(state, which)
            case Phase.HOLDING:
                yield decides(state, which)


def starts(state: State, which: int) -> Move:
    """P0, a step of it; after the last one it consumes."""
    processor = state.processors[which]
    done = processor.phase + 1
    step = epochs.STARTING[processor.phase]
    known = processor.known
    if step is Step.READ:
        known = epochs.learned(known, state.roster.epoch)
    phase = Phase.IDLE if done == len(epochs.STARTING) else Phase(done)
    return _moved(state, which, step.value, processor._replace(phase=phase, known=known))


def receives(state: State, which: int) -> Moves:
    """R1, and R3 for what is redelivered; R4 begins, or the run."""
    for at, (token, redelivered) in enumerate(state.ready):
        if at and state.ready[at - 1] == state.ready[at]:
            continue
        taken = state._replace(ready=state.ready[:at] + state.ready[at + 1 :])
        known = known_with(state.processors[which].known, token)
        idle = Processor(Phase.IDLE, known)
        in_hand = idle._replace(token=token, delivered=token)
        if epochs.is_void(token.position.epoch, known):
            yield _moved(taken, which, "acks, as void,", idle, token)
            continue
        yield from reads_on(taken, which, in_hand)
        if redelivered:
            waiting = in_hand._replace(phase=Phase.WAITING)
            yield _moved(taken, which, "gets back", waiting, token)
        elif token.first:
            asking = in_hand._replace(phase=Phase.ASKING)
            yield _moved(taken, which, "asks before the first run of", asking, token)
        else:
            holding = taken._replace(processors=with_processor(taken, which, in_hand))
            yield from runs(holding, which, token)


def known_with(known: int, token: Token) -> int:
    """What it knows on receipt of a token."""
    return epochs.learned(known, token.position.epoch)


def heard(state: State) -> list[Position]:
    """What a reader of the journal finds, after a barrier."""
    return list(state.journal.positions(state.roster.life))


def reads_on(state: State, which: int, processor: Processor) -> Moves:
    """It has read in the roster, by now, of an epoch after its token's."""
    epoch = processor.token.position.epoch
    if epoch < state.roster.epoch:
        known = epochs.learned(processor.known, epoch + 1)
        if epochs.is_void(epoch, known):
            idle = Processor(Phase.IDLE, known)
            yield _moved(state, which, "reads the roster, acks, as void,", idle, processor.token)


def waits(state: State, which: int) -> Moves:
    """R3: whoever was not told of the recall is waited for; what is settled then is acked."""
    processor = state.processors[which]
    token = processor.token
    calling = yield from calls(state, which, came_back=True)
    if calling:
        return
    if epochs.was_settled(token.position, heard(state)):
        idle = Processor(Phase.IDLE, processor.known)
        yield _moved(state, which, "acks, as settled,", idle, token)
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
    if epochs.is_void(epoch, processor.known):
        idle = Processor(Phase.IDLE, processor.known)
        yield _moved(state, which, "acks, as void,", idle, token)
        return True
    yield from reads_on(state, which, processor)
    said = answers(state)
    del said[which]
    others = epochs.awaited(epoch, said, came_back=came_back)
    for other in others:
        if (asked := state.processors[other]).known < epoch:
            told = asked._replace(known=epochs.learned(asked.known, epoch))
            yield _moved(state, other, "answers, and knows", told, token)
    return bool(others)


def asks(state: State, which: int) -> Moves:
    """R4: whoever is in an older run is waited for; then it goes on from what was heard last."""
    processor = state.processors[which]
    token = processor.token
    epoch = token.position.epoch
    calling = yield from calls(state, which)
    if not calling:
        life = state.roster.life
        position = epochs.adopted(token.position, heard(state), life)
        adopted = token._replace(position=Position(epoch, position.seq, joined=False))
        exchanging = processor._replace(phase=Phase.PUTTING, token=adopted)
        move = _moved(state, which, "has heard all, adopts", exchanging, adopted)
        yield move._replace(wrong=wrong_with_reading(state, token, position))


def wrong_with_reading(state: State, first: Token, position: Position) -> Wrong | None:
    """Whether another position had been adopted, had no more been read than it takes."""
    if first.position.epoch != state.roster.epoch:
        return None  # what a void token goes on with is void, too
    if first.known:
        return None if first.position.seq == position.seq else Wrong.FORGOTTEN
    if state.journal.checkpoint is None:
        return None
    since = state.journal.positions_since_checkpoint(state.roster.life)
    read = epochs.adopted(first.position, since, state.roster.life)
    return None if read.seq == position.seq else Wrong.FORGOTTEN


def answers(state: State) -> dict[int, Answer | None]:
    """What the subscribed processors say in a roll call."""
    subscribed = epochs.STARTING.index(Step.SUBSCRIBE) + 1
    return {
        which: Answer(
            processor.known,
            processor.token.position.epoch if has_run_begun(processor) else None,
        )
        for which, processor in enumerate(state.processors)
        if processor.phase >= subscribed
    }


def has_run_begun(processor: Processor) -> bool:
    return processor.phase in RUN_BEGAN and not processor.token.first


def runs(state: State, which: int, token: Token) -> Moves:
    """R1 once more, and the run begins."""
    processor = state.processors[which]
    epoch = token.position.epoch
    if epochs.is_void(epoch, processor.known):
        idle = Processor(Phase.IDLE, processor.known)
        yield _moved(state, which, "acks, as void,", idle, token)
        return
    if processor.phase is Phase.CLEARED:
        yield from reads_on(state, which, processor)
    running = processor._replace(phase=Phase.RUNNING)
    yield _moved(state, which, "runs", running, token)._replace(
        wrong=wrong_with(state, which, token.position),
        stale=any(reads_on(state, which, processor)),
    )


def wrong_with(state: State, which: int, position: Position) -> Wrong | None:
    """What is wrong with a run that begins now."""
    others = (each for at, each in enumerate(state.processors) if at != which)
    if any(other.phase is Phase.RUNNING for other in others):
        return Wrong.OVERLAP
    if state.truth.stopped:
        return Wrong.STOPPED
    if position.epoch < state.roster.life or position.seq == state.truth.settled:
        return None
    return Wrong.BACKWARDS if position.seq < state.truth.settled else Wrong.SKIPPED


def settles(state: State, which: int) -> Moves:
    """R2: what comes after it is put; taken: the token is acked, or redelivered."""
    processor = state.processors[which]
    position = processor.token.position
    successor = successor_of(processor.token)
    unsettled = processor.heard or processor.token.first
    for put in broker.puts(state, successor, republished=processor.heard):
        after, wrong = (put.state, None) if unsettled else _settled(put.state, position)
        if not put.taken:
            refused = processor._replace(phase=Phase.REFUSED, heard=True)
            yield _moved(after, which, "is refused", refused, successor)._replace(wrong=wrong)
            continue
        idle = Processor(Phase.IDLE, processor.known)
        done = _moved(after, which, f"puts{put.how}", idle, successor)._replace(wrong=wrong)
        yield done
        if after.budget.outages:
            cut_off = cut(after, which)
            yield done._replace(actor=Actor.FAULT, what="is cut off after it put", state=cut_off)


def successor_of(token: Token) -> Token:
    """What is put after it: a first one is not run, but exchanged for one that has joined."""
    position = token.position
    joined = position._replace(joined=True)
    return Token(joined if token.first else joined._replace(seq=position.seq + 1))


def _settled(state: State, position: Position) -> tuple[State, Wrong | None]:
    if position.epoch < state.roster.life:
        return state, None
    settled = position.seq + 1
    truth = state.truth._replace(settled=max(state.truth.settled, settled))
    wrong = Wrong.RESETTLED if settled <= state.truth.settled else None
    return state._replace(truth=truth), wrong


def looks(state: State, which: int) -> Move:
    """It gets the slot's occupant, which is in its hand for a while, and the slot empty."""
    processor = state.processors[which]
    if not state.slot:
        again = processor._replace(phase=Phase.PUTTING)
        return _moved(state, which, "finds the slot empty", again)
    occupant, *slot = state.slot
    holding = processor._replace(phase=Phase.HOLDING, held=occupant)
    return _moved(state._replace(slot=tuple(slot)), which, "looks at", holding, occupant)


def decides(state: State, which: int) -> Move:
    """R2: what to do with the occupant."""
    processor = state.processors[which]
    occupant, mine = processor.held, successor_of(processor.token)
    if epochs.refused(mine.position, occupant.position) is Refused.REPLACE:
        again = processor._replace(phase=Phase.PUTTING, held=NOTHING)
        return _moved(state, which, "acks the occupant", again, occupant)
    left = state._replace(slot=(occupant, *state.slot))
    return _moved(left, which, "leaves", Processor(Phase.IDLE, processor.known), occupant)


def cuts(state: State) -> Moves:
    """Faults: a processor dies, or loses its connection, which is the same to all others."""
    if not state.budget.outages:
        return
    for which, processor in enumerate(state.processors):
        if processor.phase is not Phase.AWAY:
            yield Move(
                Actor.FAULT, "is cut off", cut(state, which), which=which, token=processor.token
            )


def recalls(state: State) -> Moves:
    """Faults: a token in a run is given to somebody else, too."""
    if not state.budget.recalls:
        return
    less = state.budget._replace(recalls=state.budget.recalls - 1)
    for which, processor in enumerate(state.processors):
        if has_run_begun(processor) and processor.delivered is not NOTHING:
            running = processor._replace(delivered=NOTHING)
            ready = (*state.ready, (processor.delivered, True))
            recalled = state._replace(ready=ready, budget=less)
            yield _moved(
                recalled, which, "is not told of the recall of", running, processor.delivered
            )


def cut(state: State, which: int) -> State:
    """After an outage: what it had in hand is redelivered as it was."""
    processor = state.processors[which]
    ready, slot = state.ready, state.slot
    if processor.delivered is not NOTHING:
        ready = (*ready, (processor.delivered, True))
    if processor.held is not NOTHING:
        slot = (processor.held, *slot)
    return state._replace(
        ready=ready,
        slot=slot,
        processors=with_processor(state, which, Processor(Phase.AWAY, 0)),
        budget=state.budget._replace(outages=state.budget.outages - 1),
    )


def _moved(
    state: State, which: int, what: str, processor: Processor, token: Token = NOTHING
) -> Move:
    after = state._replace(processors=with_processor(state, which, processor))
    return Move(Actor.PROCESSOR, what, after, which=which, token=token)
