"""What can happen next to an ordered queue, and what is wrong with it.

Time is two-valued: a delay that has begun is over when time passes, at any moment. A requeue is not
confirmed, so a note that is put back comes a moment later; but who looks for it again waits for
longer than that.
"""

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import NamedTuple

from tests.model.breadth import Breadth
from tests.model.ordered.state import (
    NOTHING_NOTED,
    Answer,
    Befell,
    Bounds,
    Came,
    Fate,
    Note,
    Phase,
    Processor,
    Script,
    State,
    initial,
)
from tests.model.ordered.turns import IDLE, Request, Turn, Wish, resting, turn_of

ROOM_FOR_NOTES = 1
PASSES_TIME = 1


class Wrong(Enum):
    """What must not be. The last two are of the whole graph, the others of a move."""

    ORDER = "a run begins before an earlier message is done with"
    OVERLAP = "a run begins while another one goes on"
    BACKWARDS = "a run begins with fewer failed attempts than were noted"
    EARLY = "a run begins before a delay that was noted is over"
    FOREIGN = "what was noted of one message is taken for what became of another"
    ENDLESS = "more runs of an attempt begin than may"
    AGAIN = "a message that is done with is run again, though nothing failed"
    BUSY = "it goes round though no time passes"
    STUCK = "there is no way to the end of all messages"


class Move(NamedTuple):
    what: str
    state: State
    which: int | None = None
    wrong: Wrong | None = None
    passes_time: bool = False


Moves = Iterator[Move]


class World(Breadth[State, Wrong, Move]):
    """All that can happen within these bounds."""

    def __init__(self, bounds: Bounds) -> None:
        turn_of.cache_clear()  # a rule may have been taken out since
        self._bounds = bounds
        super().__init__(initial(bounds), canonical)

    def mark_of(self, move: Move, before: State) -> int:
        return PASSES_TIME * move.passes_time

    def wrong_in_all(self) -> Mapping[Wrong, int]:
        """Whether there is always a way to the end, and nothing goes round without time."""
        stuck = self.graph.cannot_reach(bytearray(map(is_over, self.states)))
        timeless = self.graph.without(PASSES_TIME, lambda node: True)
        busy = [min(cycle) for cycle in timeless.cycles()]
        found = {Wrong.STUCK: stuck[0]} if stuck else {}
        return found | ({Wrong.BUSY: min(busy)} if busy else {})

    def moves(self, state: State) -> Moves:
        yield from self._delivers(state)
        yield from _comes_back(state)
        for which, processor in enumerate(state.processors):
            if processor.phase is Phase.AWAY:
                yield self._changed(_started(state, which), state, which, "starts")
                continue
            yield from self._answers(state, which)
            yield from self._is_told(state, which)
            yield from self._fails(state, which)
        yield from self._passes(state)

    def turn(self, processor: Processor) -> Turn:
        """Where a processor stands."""
        bounds = self._bounds
        return turn_of(processor.script, bounds.retries, bounds.limit, twins=bounds.twins)

    def _delivers(self, state: State) -> Moves:
        """To who is active, one message at a time."""
        for which in served(state.consumers):
            processor = state.processors[which]
            if state.ready and not processor.held:
                head, *rest = state.ready
                script = (*processor.script, head)
                after = _with(state, which, processor._replace(held=(head.number,), script=script))
                what = f"gets {head.number}{', redelivered' * head.redelivered}"
                yield self._changed(after._replace(ready=tuple(rest)), state, which, what)

    def _answers(self, state: State, which: int) -> Moves:
        """What it asked for is done, in all the ways in which it may be."""
        processor = state.processors[which]
        request = self.turn(processor).request
        if request is None or (processor.phase is Phase.CUT_OFF and request.wish is not Wish.END):
            return
        for after, answer in _done(state, which, request):
            told = f"{request.wish.value} {_said(request, answer)}".strip()
            if request.wish is Wish.END:
                yield Move(told, after, which)
                continue
            asked = after.processors[which]
            after = _with(after, which, asked._replace(script=(*asked.script, answer)))
            yield self._changed(after, state, which, told)

    def _is_told(self, state: State, which: int) -> Moves:
        """A stop, the end of its grace, a channel that was closed, a connection that is there."""
        processor, budget = state.processors[which], state.budget
        turn, stops = self.turn(processor), Befell.STOP in processor.script
        if budget.stops and not stops:
            less = state._replace(budget=budget.less("stops"))
            yield self._befalls(less, which, Befell.STOP)
        running = turn.request is not None and turn.request.wish is Wish.RUN
        if stops and running and Befell.GRACE_OVER not in processor.script:
            yield self._befalls(state, which, Befell.GRACE_OVER)
        if processor.unaware:
            consuming = _consuming(_aware(state, which), which, turn)
            yield self._befalls(consuming, which, Befell.TAKEN_BACK)
        if processor.phase is Phase.CUT_OFF:
            up = _with(state, which, processor._replace(phase=Phase.UP))
            yield self._changed(_consuming(up, which, turn), state, which, "is connected again")

    def _fails(self, state: State, which: int) -> Moves:
        """It dies, loses its connection, or its message is taken back while it knows nothing."""
        processor, budget = state.processors[which], state.budget
        if processor.phase is Phase.UP and budget.outages:
            less = state._replace(budget=budget.less("outages"))
            for how, cut_off in self._cut_off(less, which):
                away = _with(cut_off, which, Processor(Phase.AWAY))
                yield Move(f"dies{how}", away, which)
                lost = cut_off.processors[which]._replace(phase=Phase.CUT_OFF)
                yield self._befalls(_with(cut_off, which, lost), which, Befell.LOST, how)
        if budget.recalls and processor.held and not processor.unaware:
            less = state._replace(budget=budget.less("recalls"))
            back = _given_back(less, which)
            unaware = back.processors[which]._replace(unaware=True)
            yield Move("is not told of a recall", _with(back, which, unaware), which)

    def _cut_off(self, state: State, which: int) -> Iterator[tuple[str, State]]:
        """What the broker does where a connection ends: with a note that was on its way, too."""
        processor = state.processors[which]
        back = _given_back(state, which)
        if processor.note is not None:
            back = back._replace(returning=(*back.returning, processor.note))
        back = _with(back, which, back.processors[which]._replace(note=None))
        yield "", back
        request = self.turn(processor).request
        if request is not None and request.note is not None:
            back = _uncounted(back, processor, request.number)
            yield ", having noted", back._replace(notes=_kept((*back.notes, request.note)))
            if back.budget.late:
                less = back.budget.less("late")
                late = back._replace(late=(*back.late, request.note), budget=less)
                yield ", and its note is late", late

    def _befalls(self, state: State, which: int, what: Befell, how: str = "") -> Move:
        processor = state.processors[which]
        after = _with(state, which, processor._replace(script=(*processor.script, what)))
        return self._changed(after, state, which, what.value + how)

    def _passes(self, state: State) -> Moves:
        """All delays that have begun are over."""
        after = state._replace(
            notes=tuple(map(_over, state.notes)),
            returning=tuple(map(_over, state.returning)),
            late=tuple(map(_over, state.late)),
            fates=tuple([fate._replace(waits=False) for fate in state.fates]),
        )
        for which, processor in enumerate(state.processors):
            note = processor.note and _over(processor.note)
            script = processor.script
            if _minds_time(script):
                script = (*script, Befell.TIME)
            after = _with(after, which, processor._replace(script=script, note=note))
            after = self._settled_down(after, which)
        if after != state:
            yield Move("time passes", after, passes_time=True)

    def _changed(self, after: State, before: State, which: int, what: str) -> Move:
        """A move of a processor: a run may begin with it."""
        was, processor = self.turn(before.processors[which]), after.processors[which]
        request = self.turn(processor).request
        wrong = None
        if request is not None and request != was.request:
            wrong = self._wrong_with(after, which, request)
            if request.wish is Wish.RUN:
                fate = after.fates[request.number]
                after = _fated(after, request.number, fate._replace(begun=fate.begun + 1))
        return Move(what, self._settled_down(after, which), which, wrong)

    def _settled_down(self, state: State, which: int) -> State:
        """Who waits for a message has nothing in mind; who rests, only how long."""
        processor = state.processors[which]
        if not processor.script or Befell.STOP in processor.script:
            return state
        match self.turn(processor):
            case turn if turn == IDLE:
                script = ()
            case Turn(Request(Wish.REST, number)):
                script = resting(number)
            case Turn(Request(Wish.CONSUME, number)):
                script = (*resting(number), Befell.TIME)
            case _:
                return state
        return _with(state, which, processor._replace(script=script))

    def _wrong_with(self, state: State, which: int, request: Request) -> Wrong | None:
        """What is wrong with what a processor is about to do."""
        fate = state.fates[request.number]
        match request.wish:
            case Wish.RUN:
                return self._wrong_with_run(state, which, request, fate)
            case Wish.REST if not fate.failed:
                return Wrong.FOREIGN
            case Wish.PARK if request.reason == "delivery-limit":
                return Wrong.FOREIGN if fate.returned < self._bounds.limit else None
            case _:
                return None

    def _wrong_with_run(
        self, state: State, which: int, request: Request, fate: Fate
    ) -> Wrong | None:
        there = [each.number for each in state.ready]
        there += [number for each in state.processors for number in each.held]
        if min(there, default=request.number) < request.number:
            return Wrong.ORDER
        others = [each for at, each in enumerate(state.processors) if at != which]
        unaware = state.processors[which].unaware
        if not unaware and any(self._runs(each) for each in others):
            return Wrong.OVERLAP
        if fate.done:
            failed = state.budget._replace(stops=0) != self._bounds.budget._replace(stops=0)
            return None if failed else Wrong.AGAIN
        if request.attempt > fate.failed:
            return Wrong.FOREIGN
        if request.attempt < fate.noted:
            return Wrong.BACKWARDS
        if fate.waits:
            return Wrong.EARLY
        return Wrong.ENDLESS if fate.begun >= self._bounds.limit else None

    def _runs(self, processor: Processor) -> bool:
        if processor.phase is not Phase.UP or processor.unaware:
            return False
        request = self.turn(processor).request
        return request is not None and request.wish is Wish.RUN


def served(consumers: tuple[int, ...]) -> tuple[int, ...]:
    """Whom the broker delivers to: of a queue with a single active consumer, the first."""
    return consumers[:1]


def canonical(state: State) -> State:
    """One state for all that behave alike: processors are told by their place in line alone."""
    others = [which for which in range(len(state.processors)) if which not in state.consumers]
    if len(others) > 1:
        others.sort(key=lambda which: repr(state.processors[which]))
    order = (*state.consumers, *others)
    return state._replace(
        processors=tuple([state.processors[which] for which in order]),
        consumers=tuple(range(len(state.consumers))),
    )


def is_over(state: State) -> bool:
    """Whether all messages are done with."""
    return not state.ready and not any(each.held for each in state.processors)


def _done(state: State, which: int, request: Request) -> Iterator[tuple[State, Answer]]:
    """What the broker does, and answers; of a run, how it ends."""
    processor, number = state.processors[which], request.number
    match request.wish:
        case Wish.RUN:
            fate = state.fates[number]
            yield _fated(state, number, fate._replace(done=True)), Answer(True)
            failed = fate._replace(failed=max(fate.failed, request.attempt + 1))
            yield _fated(state, number, failed), Answer(False)
        case Wish.PARK:
            fate = state.fates[number]._replace(done=True)
            yield _fated(state, number, fate), Answer()
        case Wish.ACK:
            yield _with(state, which, processor._replace(held=())), Answer()
        case Wish.REQUEUE:
            died = not _interrupted(processor)
            yield _given_back(state, which, consumes=True, died=died), Answer()
        case Wish.LEAVE:
            yield _given_back(_aware(state, which), which), Answer()
        case Wish.CANCEL:
            consumers = tuple(each for each in state.consumers if each != which)
            yield state._replace(consumers=consumers), Answer()
        case Wish.CONSUME:
            yield state._replace(consumers=(*state.consumers, which)), Answer()
        case Wish.END:
            yield _with(_given_back(state, which), which, Processor(Phase.AWAY)), Answer()
        case _:
            yield from _done_with_note(state, which, request)


def _done_with_note(state: State, which: int, request: Request) -> Iterator[tuple[State, Answer]]:
    """What becomes of the note queue, and is answered."""
    processor = state.processors[which]
    match request.wish:
        case Wish.GET if not (request.looked and state.returning):
            note = state.notes[0] if state.notes else None
            taken = state._replace(notes=state.notes[1:])
            yield _with(taken, which, processor._replace(note=note)), Answer(note)
        case Wish.PUT_BACK:
            assert processor.note is not None
            put = state._replace(returning=(*state.returning, processor.note))
            yield _with(put, which, processor._replace(note=None)), Answer()
        case Wish.DEPTH if not state.returning:
            yield state, Answer(len(state.notes))
        case Wish.NOTE:
            assert request.note is not None
            noted = _noted(state, request.number, request.note)
            yield _uncounted(noted, processor, request.number), Answer()
        case Wish.FORGET:
            yield state._replace(notes=(NOTHING_NOTED,)), Answer()
        case _:
            return


def _said(request: Request, answer: Answer) -> str:
    number, note = request.number, request.note or answer.what
    if request.wish is Wish.RUN:
        return f"{number}/{request.attempt}: it {'returns' if answer.what else 'fails'}"
    if isinstance(note, Note) and note != NOTHING_NOTED:
        waits = ", waits" * note.waits
        return f"of {number}: {note.number}/{note.attempt}, {note.begun} begun{waits}"
    return "" if number < 0 else f"of {number}"


def _comes_back(state: State) -> Moves:
    """Notes that are on their way get there. One that comes back goes before what came after it."""
    if state.returning:
        back, *rest = state.returning
        notes = _kept((back, *state.notes))
        yield Move("a note is back", state._replace(returning=tuple(rest), notes=notes))
    if state.late:
        late, *rest = state.late
        notes = _kept((*state.notes, late))
        yield Move("a late note comes", state._replace(late=tuple(rest), notes=notes))


def _kept(notes: tuple[Note, ...]) -> tuple[Note, ...]:
    return notes[-ROOM_FOR_NOTES:]


def _minds_time(script: Script) -> bool:
    """Whether it knows of a delay that is not over."""
    for each in reversed(script):
        match each:
            case Befell.TIME:
                return False
            case Answer(False) | Answer(Note(waits=True)):
                return True
            case _:
                pass
    return False


def _over(note: Note) -> Note:
    return note._replace(waits=False)


def _noted(state: State, number: int, note: Note) -> State:
    """After a note was confirmed."""
    fate = state.fates[number]
    if note.attempt > fate.noted:
        fate = fate._replace(noted=note.attempt, begun=0, waits=note.waits)
    after = state._replace(notes=_kept((*state.notes, note)))
    return _fated(after, number, fate)


def _uncounted(state: State, processor: Processor, number: int) -> State:
    """After a note of a processor: a run that it interrupted does not count."""
    if not _interrupted(processor):
        return state
    fate = state.fates[number]
    return _fated(state, number, fate._replace(begun=fate.begun - 1))


def _interrupted(processor: Processor) -> bool:
    return Befell.GRACE_OVER in processor.script


def _given_back(state: State, which: int, *, consumes: bool = False, died: bool = True) -> State:
    """After the broker has taken back what a processor held, in front of what came after it."""
    processor = state.processors[which]
    for number in processor.held:
        fate = state.fates[number]
        state = _fated(state, number, fate._replace(returned=fate.returned + died))
    ready = sorted([*state.ready, *(Came(number, True) for number in processor.held)])
    consumers = tuple(each for each in state.consumers if consumes or each != which)
    after = state._replace(ready=tuple(ready), consumers=consumers)
    return _with(after, which, processor._replace(held=()))


def _aware(state: State, which: int) -> State:
    return _with(state, which, state.processors[which]._replace(unaware=False))


def _consuming(state: State, which: int, turn: Turn) -> State:
    """After a consumer of a processor, if it has one, began anew."""
    if not turn.consumes or which in state.consumers:
        return state
    return state._replace(consumers=(*state.consumers, which))


def _started(state: State, which: int) -> State:
    started = _with(state, which, Processor(Phase.UP))
    return started._replace(consumers=(*state.consumers, which))


def _fated(state: State, number: int, fate: Fate) -> State:
    # No rule asks for more.
    fate = fate._replace(begun=min(fate.begun, 3), returned=min(fate.returned, 3))
    fates = (*state.fates[:number], fate, *state.fates[number + 1 :])
    return state._replace(fates=fates)


def _with(state: State, which: int, processor: Processor) -> State:
    others = state.processors
    return state._replace(processors=(*others[:which], processor, *others[which + 1 :]))
