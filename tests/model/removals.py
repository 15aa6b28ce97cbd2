"""Rules that are taken out, each by putting something else in place of what decides it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from scheduler.protocol import epochs
from scheduler.protocol.epochs import (
    Answer,
    Beginning,
    Entry,
    LoopState,
    Position,
    Verb,
)
from tests.model import broker, creator, processor, rows, steps, supervision
from tests.model.breadth import Check
from tests.model.checker import check
from tests.model.moves import Actor, Move, Wrong
from tests.model.state import Ask, Bounds, Budget, Journal, Name, State, Token
from tests.model.steps import Step


class Removal(rows.Removal[Bounds, Wrong]):
    """A rule of epochs that is not kept."""

    def check(self) -> Check[Wrong, Move]:
        """See what is wrong without it."""
        with self.taken_out():
            return check(self.bounds, until=self.shows)


def always(answer: Any) -> Callable[..., Any]:
    return lambda *asked, **how: answer  # pyright: ignore[reportUnknownLambdaType]


def the_first_of(first: Any, *_: Any) -> Any:
    return first


begun, adopted = epochs.begun, epochs.adopted
ends, stays_ended = epochs.ends, epochs.stays_ended
holds = processor.holds
awaited, was_settled = epochs.awaited, epochs.was_settled
put = creator.puts


def _not_first(*verbs: Verb) -> Mapping[str, Any]:
    def instead(
        verb: Verb, latest: Entry | None, *, at_ms: int = 0, paused: bool = False
    ) -> Beginning | None:
        beginning = begun(verb, latest, at_ms=at_ms, paused=paused)
        if beginning is None or beginning.token is None or verb not in verbs:
            return beginning
        return beginning._replace(token=beginning.token._replace(joined=True))

    return {"begun": instead}


def _of_the_same_epoch(
    verb: Verb, latest: Entry | None, *, at_ms: int = 0, paused: bool = False
) -> Beginning | None:
    beginning = begun(verb, latest, at_ms=at_ms, paused=paused)
    if beginning is None or beginning.token is None or latest is None:
        return beginning
    entry = beginning.entry._replace(epoch=latest.epoch, life=latest.life)
    return Beginning(entry, beginning.token._replace(epoch=latest.epoch))


def _once(
    verb: Verb, latest: Entry | None, *, at_ms: int = 0, paused: bool = False
) -> Beginning | None:
    done = verb is Verb.PAUSE and latest is not None and latest.state is LoopState.PAUSED
    return None if done else begun(verb, latest, at_ms=at_ms, paused=paused)


def _with_token(
    verb: Verb, latest: Entry | None, *, at_ms: int = 0, paused: bool = False
) -> Beginning | None:
    beginning = begun(verb, latest, at_ms=at_ms, paused=paused)
    if beginning is None or beginning.entry.state is not LoopState.PAUSED:
        return beginning
    return beginning._replace(token=Position(beginning.entry.epoch, 0, joined=False))


def _puts_twice(state: State, at: int) -> Move:
    once = put(state, at)
    return once._replace(state=once.state._replace(waiting=(*once.state.waiting, once.token)))


Answers = Mapping[Any, Answer | None]


def _without_running(epoch: int, answers: Answers, *, came_back: bool = False) -> list[Any]:
    return epochs.unaware(epoch, answers)


def _of_older_epochs(epoch: int, answers: Answers, *, came_back: bool = False) -> list[Any]:
    return awaited(epoch, answers)


def _as_far(token: Position, heard: Iterable[Position]) -> bool:
    return was_settled(token._replace(joined=True), heard)


def _of_any_life(first: Position, heard: Iterable[Position], life: int) -> Position:
    return adopted(first, heard, 0)


def _in_timers_and_hands(state: State) -> list[Position]:
    hands = [each.token.position for each in state.processors]
    return [token.position for token in state.waiting] + hands


def _knows(state: State, epoch: int) -> bool:
    return not creator.unaware(state, epoch)


def _without_the_last(state: State) -> list[Position]:
    positions = processor.heard(state)
    last = max(each.seq for each in positions)
    return [each for each in positions if each.seq < last]


def _joins(state: State, at: int) -> Move:
    joined = state.creators[at].pending.position._replace(joined=True)
    return Move(Actor.CREATOR, "joins", creator.with_token(state, at, joined))


def _of_anything(rule: Callable[..., bool]) -> Callable[..., bool]:
    def instead(end: Position, latest: Entry, *, was_only: bool, is_same: bool) -> bool:
        return rule(end, latest, was_only=was_only, is_same=True)

    return instead


def _until_asked_for(end: Position, latest: Entry, *, was_only: bool, is_same: bool) -> bool:
    return stays_ended(end, latest, was_only=False, is_same=is_same)


def _in_any_life(end: Position, latest: Entry, *, was_only: bool, is_same: bool) -> bool:
    return ends(end, latest._replace(life=0), was_only=was_only, is_same=is_same)


def _in_its_epoch(end: Position, latest: Entry, *, was_only: bool, is_same: bool) -> bool:
    return ends(end, latest, was_only=False, is_same=is_same)


def _by_its_own_name(state: State, token: Token) -> tuple[int, ...]:
    return (state.name_at(token.position.epoch),)


def _known_by_its_own_name(known: tuple[int, ...], state: State, token: Token) -> tuple[int, ...]:
    named = _by_its_own_name(state, token)
    return processor.known_with(known, named, token.position.epoch)


def _by_aliases_of_the_code(state: State, token: Token) -> tuple[int, ...]:
    (name,) = _by_its_own_name(state, token)
    return (name,) if name == OLD.name else (OLD.name, name)


def _put_by_its_own_name(state: State, first: Token) -> list[Position]:
    name = state.name_at(first.position.epoch)
    return [put for put in state.journal.greatest if state.name_at(put.epoch) == name]


def _called_by_its_own_name(state: State, epoch: int) -> tuple[int, ...]:
    return (state.name_at(epoch),)


def _holds_for_its_own_name(end: Token, state: State) -> bool:
    return state.name_at(end.position.epoch) == state.name and holds(end, state)


def _told_of_the_new_one(state: State, name: int) -> int:
    return state.roster.epoch if name == state.name else 0


def _unnoted(state: State, bounds: Bounds) -> Journal:
    return Journal(forgot=True)


def _bounds(*verbs: Verb | Ask | Name, once: bool = False, old: int = 0, **budget: int) -> Bounds:
    return Bounds(verbs=verbs, budget=Budget(**budget), once=once, old=old)


PAUSED = Verb.PAUSE, Verb.RESUME
STARTED = Verb.REMOVE, Verb.SEED
OLD, NEW = Name(0), Name(1)

REMOVALS = (
    Removal(
        "R1",
        "void tokens are run",
        epochs,
        {"is_void": always(False)},
        _bounds(*PAUSED),
        {Wrong.STOPPED, Wrong.OVERLAP},
    ),
    Removal(
        "R1, learning",
        "a token's epoch is not learned on receipt",
        processor,
        {"known_on_receipt": the_first_of},
        _bounds(repairs=1),
        {Wrong.BACKWARDS, Wrong.OVERLAP},
    ),
    Removal(
        "following",
        "processors read the roster when they start, and never again",
        processor,
        {"reads_on": always(())},
        _bounds(repairs=1),
        {Wrong.OLD_LINE},
    ),
    Removal(
        "R3",
        "redelivered tokens are run",
        epochs,
        {"was_settled": always(False)},
        _bounds(outages=1),
        {Wrong.BACKWARDS, Wrong.OVERLAP},
    ),
    Removal(
        "R3, the journal",
        "timers and hands are asked in its place",
        processor,
        {"heard": _in_timers_and_hands},
        _bounds(outages=1),
        {Wrong.BACKWARDS, Wrong.OVERLAP},
    ),
    Removal(
        "R3, waiting",
        "who was not told that its token was taken back is not waited for",
        epochs,
        {"awaited": _of_older_epochs},
        _bounds(recalls=1),
        {Wrong.OVERLAP},
    ),
    Removal(
        "R3p",
        "a put that was not confirmed is published again",
        processor,
        {"was_put": always(False)},
        _bounds(races=1),
        {Wrong.BACKWARDS, Wrong.OVERLAP},
    ),
    Removal(
        "R4, joining",
        "a first token is as far as what it is exchanged for",
        epochs,
        {"was_settled": _as_far},
        _bounds(*PAUSED, outages=1),
        {Wrong.OVERLAP, Wrong.RESETTLED},
    ),
    *(
        Removal(
            f"R4, {verb.name.lower()}",
            "its first token is run like any other",
            epochs,
            _not_first(verb),
            bounds,
            {Wrong.OVERLAP},
        )
        for verb, bounds in {
            Verb.TRIGGER: _bounds(Verb.TRIGGER),
            Verb.RESCHEDULE: _bounds(Verb.RESCHEDULE),
            Verb.REPAIR: _bounds(repairs=1),
            Verb.RESUME: _bounds(*PAUSED),
            Verb.SEED: _bounds(*STARTED),
        }.items()
    ),
    Removal(
        "R4, asking",
        "nobody is asked",
        epochs,
        {"awaited": always(())},
        _bounds(repairs=1),
        {Wrong.OVERLAP},
    ),
    Removal(
        "R4, waiting",
        "all are asked, and no run is waited for",
        epochs,
        {"awaited": _without_running},
        _bounds(repairs=1),
        {Wrong.OVERLAP},
    ),
    Removal(
        "R4, a creator that asks",
        "a creator exchanges its token without a roll call",
        creator,
        {"is_free": always(True)},
        _bounds(repairs=1),
        {Wrong.OVERLAP},
    ),
    Removal(
        "R4, a creator that waits",
        "a creator exchanges its token though an older run goes on",
        creator,
        {"is_free": _knows},
        _bounds(repairs=1),
        {Wrong.OVERLAP},
    ),
    Removal(
        "R4, a creator that leaves it",
        "a creator that cannot exchange its token puts one that is run at once",
        creator,
        {"leaves": _joins},
        _bounds(repairs=1),
        {Wrong.OVERLAP},
    ),
    Removal(
        "R4, a creator that adopts",
        "what a creator exchanges keeps its own progress",
        creator,
        {"heard": always(())},
        _bounds(repairs=1),
        {Wrong.BACKWARDS},
    ),
    Removal(
        "R4, a creator's barrier",
        "a creator reads the journal without a barrier, and misses what was put last",
        creator,
        {"heard": _without_the_last},
        _bounds(repairs=1),
        {Wrong.BACKWARDS},
    ),
    Removal(
        "R4, adopting",
        "the first token keeps its own progress",
        epochs,
        {"adopted": the_first_of},
        _bounds(repairs=1),
        {Wrong.BACKWARDS},
    ),
    Removal(
        "R4, life",
        "progress of an earlier life is adopted",
        epochs,
        {"adopted": _of_any_life},
        _bounds(*STARTED),
        {Wrong.SKIPPED},
    ),
    Removal(
        "R4, an end",
        "what a run has stopped goes on if it was repaired in the meantime",
        epochs,
        {"stays_ended": always(False)},
        _bounds(repairs=1, stops=1),
        {Wrong.STOPPED},
    ),
    Removal(
        "R4, an end that was overridden",
        "what a run has stopped stays so, though it was resumed since",
        epochs,
        {"stays_ended": always(True)},
        _bounds(Verb.RESUME, stops=1, lost=1),
        {Wrong.RESTOPPED},
    ),
    Removal(
        "R4, what is finished",
        "what is finished runs again if it was paused and resumed in the meantime",
        epochs,
        {"stays_ended": _until_asked_for},
        _bounds(*PAUSED, once=True),
        {Wrong.RERUN},
    ),
    Removal(
        "R4, what was moved",
        "what is finished stays so, though other arguments were asked for",
        epochs,
        {"stays_ended": _of_anything(stays_ended), "ends": _of_anything(ends)},
        _bounds(Ask(2), once=True),
        {Wrong.UNDONE},
    ),
    Removal(
        "C, an end, whose",
        "another one-off is taken for finished",
        epochs,
        {"ends": _of_anything(ends)},
        _bounds(Ask(2), once=True),
        {Wrong.UNDONE},
    ),
    Removal(
        "C, an end, its life",
        "a run of an earlier life ends the loop",
        epochs,
        {"ends": _in_any_life},
        _bounds(Verb.REMOVE, Ask(1), once=True),
        {Wrong.UNDONE},
    ),
    Removal(
        "C, an end, whatever was asked",
        "what was paused in its run is not gone when it is finished",
        epochs,
        {"ends": _in_its_epoch},
        _bounds(Verb.PAUSE, once=True),
        {Wrong.LOST},
    ),
    Removal(
        "C, an end that is heard",
        "supervision does not enter what a processor did not live to enter",
        supervision,
        {"hears": always(False)},
        _bounds(Verb.PAUSE, outages=1, once=True),
        {Wrong.LOST},
    ),
    Removal(
        "C, a new epoch",
        "a creator puts a token of the same epoch",
        epochs,
        {"begun": _of_the_same_epoch, "accepted": always(True)},
        _bounds(Verb.TRIGGER),
        {Wrong.OVERLAP},
    ),
    Removal(
        "C-accept",
        "an entry counts if its epoch is later, though it is not based on the latest one",
        epochs,
        {"accepted": always(True)},
        replace(_bounds(Verb.TRIGGER, Verb.PAUSE), at_once=2),
        {Wrong.STOPPED},
    ),
    Removal(
        "C, putting once",
        "a creator publishes its put again, as it was not confirmed",
        creator,
        {"puts": _puts_twice},
        _bounds(Verb.TRIGGER),
        {Wrong.OVERLAP},
    ),
    Removal(
        "C, calling",
        "it returns without a roll call",
        epochs,
        {"CALLING": frozenset[Verb]()},
        _bounds(*PAUSED),
        {Wrong.STOPPED},
    ),
    Removal(
        "C, pausing again",
        "what is paused is not paused again, though the one who did it died",
        epochs,
        {"begun": _once},
        _bounds(Verb.PAUSE, Verb.PAUSE, deaths=1),
        {Wrong.STOPPED},
    ),
    Removal(
        "C, starting paused",
        "a loop that is to wait until it is resumed gets a token that is due",
        epochs,
        {"begun": _with_token},
        replace(_bounds(*STARTED), paused=True),
        {Wrong.STOPPED},
    ),
    Removal(
        "P0, the roster",
        "who starts does not read it",
        steps,
        {"STARTING": (Step.SUBSCRIBE,)},
        _bounds(*PAUSED, outages=1),
        {Wrong.STOPPED, Wrong.OVERLAP},
    ),
    Removal(
        "P0, its order",
        "who starts reads the roster, and then subscribes",
        steps,
        {"STARTING": (Step.READ, Step.SUBSCRIBE)},
        _bounds(*PAUSED, outages=1),
        {Wrong.STOPPED, Wrong.OVERLAP},
    ),
    Removal(
        "renaming, the roster",
        "the entry of the new name does not end the old one",
        State,
        {"told": _told_of_the_new_one},
        _bounds(NEW, outages=1, old=1),
        {Wrong.OVERLAP},
    ),
    Removal(
        "renaming, learning",
        "a first token's epoch is learned by the new name only",
        processor,
        {"known_on_receipt": _known_by_its_own_name},
        _bounds(NEW, old=1),
        {Wrong.BACKWARDS},
    ),
    Removal(
        "renaming, R4",
        "who has a run by an old name is not asked for it",
        processor,
        {"names": _by_its_own_name},
        _bounds(NEW, old=1),
        {Wrong.OVERLAP},
    ),
    Removal(
        "renaming, R4, aliases",
        "old names are those that the code of a processor has, and not those that the token names",
        processor,
        {"names": _by_aliases_of_the_code},
        _bounds(NEW, OLD),
        {Wrong.OVERLAP},
    ),
    Removal(
        "renaming, R4, adopting",
        "what was put by an old name is not adopted",
        processor,
        {"history": _put_by_its_own_name},
        _bounds(NEW, old=1),
        {Wrong.BACKWARDS},
    ),
    Removal(
        "renaming, R4, its creators",
        "a creator exchanges the token, and asks for no old name",
        creator,
        {"is_left": always(False)},
        _bounds(NEW, old=1),
        {Wrong.OVERLAP},
    ),
    Removal(
        "renaming, calling",
        "a pause calls the roll by the new name only",
        creator,
        {"names": _called_by_its_own_name},
        _bounds(NEW, Verb.PAUSE, old=1),
        {Wrong.STOPPED},
    ),
    Removal(
        "renaming, an end",
        "what has ended by its old name is not gone by the new one",
        processor,
        {"holds": _holds_for_its_own_name},
        _bounds(NEW, Verb.PAUSE, once=True),
        {Wrong.LOST},
    ),
    Removal(
        "S1",
        "no loop is lost",
        supervision,
        {"is_lost": always(False)},
        _bounds(lost=1),
        {Wrong.LOST},
    ),
    Removal(
        "checkpoints, R4",
        "what the journal forgets is noted nowhere",
        broker,
        {"forgotten": _unnoted},
        _bounds(repairs=1, forgets=1),
        {Wrong.FORGOTTEN, Wrong.BACKWARDS},
    ),
    Removal(
        "checkpoints, R3",
        "what the journal forgets is noted nowhere",
        broker,
        {"forgotten": _unnoted},
        _bounds(outages=1, forgets=1),
        {Wrong.OVERLAP, Wrong.BACKWARDS},
    ),
    Removal(
        "checkpoints, an end",
        "what the journal forgets is noted nowhere",
        broker,
        {"forgotten": _unnoted},
        _bounds(outages=1, forgets=1, stops=1),
        {Wrong.STOPPED},
    ),
    Removal(
        "S2, the last settled position",
        "a processor runs what it has settled itself",
        epochs,
        {"is_behind": always(False)},
        replace(_bounds(doublings=1), processors=1),
        {Wrong.BACKWARDS, Wrong.RESETTLED},
    ),
    Removal(
        "S2",
        "no loop is doubled",
        epochs,
        {"is_doubled": always(False)},
        _bounds(doublings=1),
        {Wrong.TWO_LINES},
    ),
)
