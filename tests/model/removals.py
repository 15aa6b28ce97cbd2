"""Rules that are taken out, each by putting something else in place of what decides it."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from scheduler.protocol import epochs
from scheduler.protocol.epochs import Answer, Beginning, Entry, LoopState, Position, Verb
from tests.model import broker, creator, processor, steps, supervision
from tests.model.moves import Actor, Move, Wrong
from tests.model.rows import without
from tests.model.state import Ask, Journal, State, Token
from tests.model.steps import Step
from tests.model.table import NEW, OLD, PAUSED, STARTED, row

Rule = Callable[..., Any]
Answers = Mapping[Any, Answer | None]


def always(answer: Any) -> Rule:
    return lambda *asked, **how: answer  # pyright: ignore[reportUnknownLambdaType]


def with_other(rule: Rule, **other: Any) -> Rule:
    """Return the rule, asked with other arguments."""
    return lambda *asked, **how: rule(*asked, **how | other)  # pyright: ignore[reportUnknownLambdaType]


def the_first_of(first: Any, *_: Any) -> Any:
    return first


begun, adopted = epochs.begun, epochs.adopted
ends, stays_ended = epochs.ends, epochs.stays_ended
holds = processor.holds
awaited, was_settled = epochs.awaited, epochs.was_settled
put = creator.puts


def _not_first(*verbs: Verb) -> Rule:
    def instead(verb: Verb, latest: Entry | None, **how: Any) -> Beginning | None:
        beginning = begun(verb, latest, **how)
        if beginning is None or beginning.token is None or verb not in verbs:
            return beginning
        return beginning._replace(token=beginning.token._replace(joined=True))

    return instead


def _of_the_same_epoch(verb: Verb, latest: Entry | None, **how: Any) -> Beginning | None:
    beginning = begun(verb, latest, **how)
    if beginning is None or beginning.token is None or latest is None:
        return beginning
    entry = beginning.entry._replace(epoch=latest.epoch, life=latest.life)
    return Beginning(entry, beginning.token._replace(epoch=latest.epoch))


def _once(verb: Verb, latest: Entry | None, **how: Any) -> Beginning | None:
    done = verb is Verb.PAUSE and latest is not None and latest.state is LoopState.PAUSED
    return None if done else begun(verb, latest, **how)


def _with_token(verb: Verb, latest: Entry | None, **how: Any) -> Beginning | None:
    beginning = begun(verb, latest, **how)
    if beginning is None or beginning.entry.state is not LoopState.PAUSED:
        return beginning
    return beginning._replace(token=Position(beginning.entry.epoch, 0, joined=False))


def _puts_twice(state: State, at: int) -> Move:
    once = put(state, at)
    return once._replace(state=once.state._replace(waiting=(*once.state.waiting, once.token)))


def _without_running(epoch: int, answers: Answers, *, came_back: bool = False) -> list[Any]:
    return epochs.unaware(epoch, answers)


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


def _in_any_life(end: Position, latest: Entry, **how: bool) -> bool:
    return ends(end, latest._replace(life=0), **how)


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


REMOVALS = (
    without(
        "R1: void tokens are run",
        row(*PAUSED, found={Wrong.STOPPED, Wrong.OVERLAP}),
        epochs,
        is_void=always(False),
    ),
    without(
        "R1, learning: a token's epoch is not learned on receipt",
        row(repairs=1, found={Wrong.BACKWARDS, Wrong.OVERLAP}),
        processor,
        known_on_receipt=the_first_of,
    ),
    without(
        "following: processors read the roster when they start, and never again",
        row(repairs=1, found={Wrong.OLD_LINE}),
        processor,
        reads_on=always(()),
    ),
    without(
        "R3: redelivered tokens are run",
        row(outages=1, found={Wrong.BACKWARDS, Wrong.OVERLAP}),
        epochs,
        was_settled=always(False),
    ),
    without(
        "R3, the journal: timers and hands are asked in its place",
        row(outages=1, found={Wrong.BACKWARDS, Wrong.OVERLAP}),
        processor,
        heard=_in_timers_and_hands,
    ),
    without(
        "R3, waiting: who was not told that its token was taken back is not waited for",
        row(recalls=1, found={Wrong.OVERLAP}),
        epochs,
        awaited=with_other(awaited, came_back=False),
    ),
    without(
        "R3p: a put that was not confirmed is published again",
        row(races=1, found={Wrong.BACKWARDS, Wrong.OVERLAP}),
        processor,
        was_put=always(False),
    ),
    without(
        "R4, joining: a first token is as far as what it is exchanged for",
        row(*PAUSED, outages=1, found={Wrong.OVERLAP, Wrong.RESETTLED}),
        epochs,
        was_settled=_as_far,
    ),
    *(
        without(
            f"R4, {verb.name.lower()}: its first token is run like any other",
            bounds,
            epochs,
            begun=_not_first(verb),
        )
        for verb, bounds in {
            Verb.TRIGGER: row(Verb.TRIGGER, found={Wrong.OVERLAP}),
            Verb.RESCHEDULE: row(Verb.RESCHEDULE, found={Wrong.OVERLAP}),
            Verb.REPAIR: row(repairs=1, found={Wrong.OVERLAP}),
            Verb.RESUME: row(*PAUSED, found={Wrong.OVERLAP}),
            Verb.SEED: row(*STARTED, found={Wrong.OVERLAP}),
        }.items()
    ),
    without(
        "R4, asking: nobody is asked",
        row(repairs=1, found={Wrong.OVERLAP}),
        epochs,
        awaited=always(()),
    ),
    without(
        "R4, waiting: all are asked, and no run is waited for",
        row(repairs=1, found={Wrong.OVERLAP}),
        epochs,
        awaited=_without_running,
    ),
    without(
        "R4, a creator that asks: it exchanges its token without a roll call",
        row(repairs=1, found={Wrong.OVERLAP}),
        creator,
        is_free=always(True),
    ),
    without(
        "R4, a creator that waits: it exchanges its token though an older run goes on",
        row(repairs=1, found={Wrong.OVERLAP}),
        creator,
        is_free=_knows,
    ),
    without(
        "R4, a creator that leaves it: it puts a token that is run at once",
        row(repairs=1, found={Wrong.OVERLAP}),
        creator,
        leaves=_joins,
    ),
    without(
        "R4, a creator that adopts: what a creator exchanges keeps its own progress",
        row(repairs=1, found={Wrong.BACKWARDS}),
        creator,
        heard=always(()),
    ),
    without(
        "R4, a creator's barrier: it reads the journal without one, and misses what was put last",
        row(repairs=1, found={Wrong.BACKWARDS}),
        creator,
        heard=_without_the_last,
    ),
    without(
        "R4, adopting: the first token keeps its own progress",
        row(repairs=1, found={Wrong.BACKWARDS}),
        epochs,
        adopted=the_first_of,
    ),
    without(
        "R4, life: progress of an earlier life is adopted",
        row(*STARTED, found={Wrong.SKIPPED}),
        epochs,
        adopted=_of_any_life,
    ),
    without(
        "R4, an end: what a run has stopped goes on if it was repaired in the meantime",
        row(repairs=1, stops=1, found={Wrong.STOPPED}),
        epochs,
        stays_ended=always(False),
    ),
    without(
        "R4, an end that was overridden: it holds though the loop was resumed",
        row(Verb.RESUME, stops=1, lost=1, found={Wrong.RESTOPPED}),
        epochs,
        stays_ended=always(True),
    ),
    without(
        "R4, what is finished: it runs again if it was paused and resumed in the meantime",
        row(*PAUSED, once=True, found={Wrong.RERUN}),
        epochs,
        stays_ended=with_other(stays_ended, was_only=False),
    ),
    without(
        "R4, what was moved: it stays finished, though other arguments were asked for",
        row(Ask(2), once=True, found={Wrong.UNDONE}),
        epochs,
        stays_ended=with_other(stays_ended, is_same=True),
        ends=with_other(ends, is_same=True),
    ),
    without(
        "C, an end, whose: another one-off is taken for finished",
        row(Ask(2), once=True, found={Wrong.UNDONE}),
        epochs,
        ends=with_other(ends, is_same=True),
    ),
    without(
        "C, an end, its life: a run of an earlier life ends the loop",
        row(Verb.REMOVE, Ask(1), once=True, found={Wrong.UNDONE}),
        epochs,
        ends=_in_any_life,
    ),
    without(
        "C, an end, whatever was asked: what was paused in its run is not gone when it is finished",
        row(Verb.PAUSE, once=True, found={Wrong.LOST}),
        epochs,
        ends=with_other(ends, was_only=False),
    ),
    without(
        "C, an end that is heard: supervision does not enter the end of a processor that died",
        row(Verb.PAUSE, outages=1, once=True, found={Wrong.LOST}),
        supervision,
        hears=always(False),
    ),
    without(
        "C, a new epoch: a creator puts a token of the same epoch",
        row(Verb.TRIGGER, found={Wrong.OVERLAP}),
        epochs,
        begun=_of_the_same_epoch,
        accepted=always(True),
    ),
    without(
        "C-accept: an entry counts if its epoch is later, though it is not based on the latest one",
        row(Verb.TRIGGER, Verb.PAUSE, at_once=2, found={Wrong.STOPPED}),
        epochs,
        accepted=always(True),
    ),
    without(
        "C, putting once: a creator publishes its put again, as it was not confirmed",
        row(Verb.TRIGGER, found={Wrong.OVERLAP}),
        creator,
        puts=_puts_twice,
    ),
    without(
        "C, calling: it returns without a roll call",
        row(*PAUSED, found={Wrong.STOPPED}),
        epochs,
        CALLING=frozenset[Verb](),
    ),
    without(
        "C, pausing again: what is paused is not paused again, though the one who did it died",
        row(Verb.PAUSE, Verb.PAUSE, deaths=1, found={Wrong.STOPPED}),
        epochs,
        begun=_once,
    ),
    without(
        "C, starting paused: a loop that is to wait until it is resumed gets a token that is due",
        row(*STARTED, paused=True, found={Wrong.STOPPED}),
        epochs,
        begun=_with_token,
    ),
    without(
        "P0, the roster: who starts does not read it",
        row(*PAUSED, outages=1, found={Wrong.STOPPED, Wrong.OVERLAP}),
        steps,
        STARTING=(Step.SUBSCRIBE,),
    ),
    without(
        "P0, its order: who starts reads the roster, and then subscribes",
        row(*PAUSED, outages=1, found={Wrong.STOPPED, Wrong.OVERLAP}),
        steps,
        STARTING=(Step.READ, Step.SUBSCRIBE),
    ),
    without(
        "renaming, the roster: the entry of the new name does not end the old one",
        row(NEW, outages=1, old=1, found={Wrong.OVERLAP}),
        State,
        told=_told_of_the_new_one,
    ),
    without(
        "renaming, learning: a first token's epoch is learned by the new name only",
        row(NEW, old=1, found={Wrong.BACKWARDS}),
        processor,
        known_on_receipt=_known_by_its_own_name,
    ),
    without(
        "renaming, R4: who has a run by an old name is not asked for it",
        row(NEW, old=1, found={Wrong.OVERLAP}),
        processor,
        names=_by_its_own_name,
    ),
    without(
        "renaming, R4, aliases: old names are those of the processor's code, not of the token",
        row(NEW, OLD, found={Wrong.OVERLAP}),
        processor,
        names=_by_aliases_of_the_code,
    ),
    without(
        "renaming, R4, adopting: what was put by an old name is not adopted",
        row(NEW, old=1, found={Wrong.BACKWARDS}),
        processor,
        history=_put_by_its_own_name,
    ),
    without(
        "renaming, R4, its creators: a creator exchanges the token, and asks for no old name",
        row(NEW, old=1, found={Wrong.OVERLAP}),
        creator,
        is_left=always(False),
    ),
    without(
        "renaming, calling: a pause calls the roll by the new name only",
        row(NEW, Verb.PAUSE, old=1, found={Wrong.STOPPED}),
        creator,
        names=_called_by_its_own_name,
    ),
    without(
        "renaming, an end: what has ended by its old name is not gone by the new one",
        row(NEW, Verb.PAUSE, once=True, found={Wrong.LOST}),
        processor,
        holds=_holds_for_its_own_name,
    ),
    without(
        "S1: no loop is lost", row(lost=1, found={Wrong.LOST}), supervision, is_lost=always(False)
    ),
    *(
        without(
            f"checkpoints, {what}: what the journal forgets is noted nowhere",
            bounds,
            broker,
            forgotten=always(Journal(forgot=True)),
        )
        for what, bounds in {
            "R4": row(repairs=1, forgets=1, found={Wrong.FORGOTTEN, Wrong.BACKWARDS}),
            "R3": row(outages=1, forgets=1, found={Wrong.OVERLAP, Wrong.BACKWARDS}),
            "an end": row(outages=1, forgets=1, stops=1, found={Wrong.STOPPED}),
        }.items()
    ),
    without(
        "S2, the last settled position: a processor runs what it has settled itself",
        row(doublings=1, processors=1, found={Wrong.BACKWARDS, Wrong.RESETTLED}),
        epochs,
        is_behind=always(False),
    ),
    without(
        "S2: no loop is doubled",
        row(doublings=1, found={Wrong.TWO_LINES}),
        epochs,
        is_doubled=always(False),
    ),
)
