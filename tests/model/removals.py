"""Rules that are taken out, each by putting something else in place of what decides it."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from scheduler.protocol import epochs
from scheduler.protocol.epochs import Answer, Beginning, Entry, LoopState, Position, Verb
from tests.model import broker, creator, processor, steps, supervision
from tests.model.moves import Actor, Move, Wrong
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


def _without_returns(token: Position, heard: Iterable[Position]) -> bool:
    return was_settled(token, [put._replace(returns=0) for put in heard])


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
    row(*PAUSED, found={Wrong.STOPPED, Wrong.OVERLAP}).without(
        "R1: void tokens are run", epochs, is_void=always(False)
    ),
    row(repairs=1, found={Wrong.BACKWARDS, Wrong.OVERLAP}).without(
        "R1, learning: a token's epoch is not learned on receipt",
        processor,
        known_on_receipt=the_first_of,
    ),
    row(repairs=1, found={Wrong.OLD_LINE}).without(
        "following: processors read the roster when they start, and never again",
        processor,
        reads_on=always(()),
    ),
    row(outages=1, found={Wrong.BACKWARDS, Wrong.OVERLAP}).without(
        "R3: redelivered tokens are run", epochs, was_settled=always(False)
    ),
    row(outages=1, found={Wrong.BACKWARDS, Wrong.OVERLAP}).without(
        "R3, the journal: timers and hands are asked in its place",
        processor,
        heard=_in_timers_and_hands,
    ),
    *(
        each.without(
            f"{rule}: a token that came too early is as far as before",
            epochs,
            was_settled=_without_returns,
        )
        for rule, each in {
            "R3": row(early=1, outages=1, found={Wrong.OVERLAP}),
            "R3p": row(early=1, races=1, found={Wrong.OVERLAP}),
        }.items()
    ),
    row(recalls=1, found={Wrong.OVERLAP}).without(
        "R3, waiting: who was not told that its token was taken back is not waited for",
        epochs,
        awaited=with_other(awaited, came_back=False),
    ),
    row(races=1, found={Wrong.BACKWARDS, Wrong.OVERLAP}).without(
        "R3p: a put that was not confirmed is published again", processor, was_put=always(False)
    ),
    row(*PAUSED, outages=1, found={Wrong.OVERLAP, Wrong.RESETTLED}).without(
        "R4, joining: a first token is as far as what it is exchanged for",
        epochs,
        was_settled=_as_far,
    ),
    *(
        each.without(
            f"R4, {verb.name.lower()}: its first token is run like any other",
            epochs,
            begun=_not_first(verb),
        )
        for verb, each in {
            Verb.TRIGGER: row(Verb.TRIGGER, found={Wrong.OVERLAP}),
            Verb.RESCHEDULE: row(Verb.RESCHEDULE, found={Wrong.OVERLAP}),
            Verb.REPAIR: row(repairs=1, found={Wrong.OVERLAP}),
            Verb.RESUME: row(*PAUSED, found={Wrong.OVERLAP}),
            Verb.SEED: row(*STARTED, found={Wrong.OVERLAP}),
        }.items()
    ),
    row(repairs=1, found={Wrong.OVERLAP}).without(
        "R4, asking: nobody is asked", epochs, awaited=always(())
    ),
    row(repairs=1, found={Wrong.OVERLAP}).without(
        "R4, waiting: all are asked, and no run is waited for", epochs, awaited=_without_running
    ),
    row(repairs=1, found={Wrong.OVERLAP}).without(
        "R4, a creator that asks: it exchanges its token without a roll call",
        creator,
        is_free=always(True),
    ),
    row(repairs=1, found={Wrong.OVERLAP}).without(
        "R4, a creator that waits: it exchanges its token though an older run goes on",
        creator,
        is_free=_knows,
    ),
    row(repairs=1, found={Wrong.OVERLAP}).without(
        "R4, a creator that leaves it: it puts a token that is run at once", creator, leaves=_joins
    ),
    row(repairs=1, found={Wrong.BACKWARDS}).without(
        "R4, a creator that adopts: what a creator exchanges keeps its own progress",
        creator,
        heard=always(()),
    ),
    row(repairs=1, found={Wrong.BACKWARDS}).without(
        "R4, a creator's barrier: it reads the journal without one, and misses what was put last",
        creator,
        heard=_without_the_last,
    ),
    row(repairs=1, found={Wrong.BACKWARDS}).without(
        "R4, adopting: the first token keeps its own progress", epochs, adopted=the_first_of
    ),
    row(*STARTED, found={Wrong.SKIPPED}).without(
        "R4, life: progress of an earlier life is adopted", epochs, adopted=_of_any_life
    ),
    row(repairs=1, stops=1, found={Wrong.STOPPED}).without(
        "R4, an end: what a run has stopped goes on if it was repaired in the meantime",
        epochs,
        stays_ended=always(False),
    ),
    row(Verb.RESUME, stops=1, lost=1, found={Wrong.RESTOPPED}).without(
        "R4, an end that was overridden: it holds though the loop was resumed",
        epochs,
        stays_ended=always(True),
    ),
    row(*PAUSED, once=True, found={Wrong.RERUN}).without(
        "R4, what is finished: it runs again if it was paused and resumed in the meantime",
        epochs,
        stays_ended=with_other(stays_ended, was_only=False),
    ),
    row(Ask(2), once=True, found={Wrong.UNDONE}).without(
        "R4, what was moved: it stays finished, though other arguments were asked for",
        epochs,
        stays_ended=with_other(stays_ended, is_same=True),
        ends=with_other(ends, is_same=True),
    ),
    row(Ask(2), once=True, found={Wrong.UNDONE}).without(
        "C, an end, whose: another one-off is taken for finished",
        epochs,
        ends=with_other(ends, is_same=True),
    ),
    row(Verb.REMOVE, Ask(1), once=True, found={Wrong.UNDONE}).without(
        "C, an end, its life: a run of an earlier life ends the loop", epochs, ends=_in_any_life
    ),
    row(Verb.PAUSE, once=True, found={Wrong.LOST}).without(
        "C, an end, whatever was asked: what was paused in its run is not gone when it is finished",
        epochs,
        ends=with_other(ends, was_only=False),
    ),
    row(Verb.PAUSE, outages=1, once=True, found={Wrong.LOST}).without(
        "C, an end that is heard: supervision does not enter the end of a processor that died",
        supervision,
        hears=always(False),
    ),
    row(Verb.TRIGGER, found={Wrong.OVERLAP}).without(
        "C, a new epoch: a creator puts a token of the same epoch",
        epochs,
        begun=_of_the_same_epoch,
        accepted=always(True),
    ),
    row(Verb.TRIGGER, Verb.PAUSE, at_once=2, found={Wrong.STOPPED}).without(
        "C-accept: an entry counts if its epoch is later, though it is not based on the latest one",
        epochs,
        accepted=always(True),
    ),
    row(Verb.TRIGGER, found={Wrong.OVERLAP}).without(
        "C, putting once: a creator publishes its put again, as it was not confirmed",
        creator,
        puts=_puts_twice,
    ),
    row(*PAUSED, found={Wrong.STOPPED}).without(
        "C, calling: it returns without a roll call", epochs, CALLING=frozenset[Verb]()
    ),
    row(Verb.PAUSE, Verb.PAUSE, deaths=1, found={Wrong.STOPPED}).without(
        "C, pausing again: what is paused is not paused again, though the one who did it died",
        epochs,
        begun=_once,
    ),
    row(*STARTED, paused=True, found={Wrong.STOPPED}).without(
        "C, starting paused: a loop that is to wait until it is resumed gets a token that is due",
        epochs,
        begun=_with_token,
    ),
    row(*PAUSED, outages=1, found={Wrong.STOPPED, Wrong.OVERLAP}).without(
        "P0, the roster: who starts does not read it", steps, STARTING=(Step.SUBSCRIBE,)
    ),
    row(*PAUSED, outages=1, found={Wrong.STOPPED, Wrong.OVERLAP}).without(
        "P0, its order: who starts reads the roster, and then subscribes",
        steps,
        STARTING=(Step.READ, Step.SUBSCRIBE),
    ),
    row(NEW, outages=1, old=1, found={Wrong.OVERLAP}).without(
        "renaming, the roster: the entry of the new name does not end the old one",
        State,
        told=_told_of_the_new_one,
    ),
    row(NEW, old=1, found={Wrong.BACKWARDS}).without(
        "renaming, learning: a first token's epoch is learned by the new name only",
        processor,
        known_on_receipt=_known_by_its_own_name,
    ),
    row(NEW, old=1, found={Wrong.OVERLAP}).without(
        "renaming, R4: who has a run by an old name is not asked for it",
        processor,
        names=_by_its_own_name,
    ),
    row(NEW, OLD, found={Wrong.OVERLAP}).without(
        "renaming, R4, aliases: old names are those of the processor's code, not of the token",
        processor,
        names=_by_aliases_of_the_code,
    ),
    row(NEW, old=1, found={Wrong.BACKWARDS}).without(
        "renaming, R4, adopting: what was put by an old name is not adopted",
        processor,
        history=_put_by_its_own_name,
    ),
    row(NEW, old=1, found={Wrong.OVERLAP}).without(
        "renaming, R4, its creators: a creator exchanges the token, and asks for no old name",
        creator,
        is_left=always(False),
    ),
    row(NEW, Verb.PAUSE, old=1, found={Wrong.STOPPED}).without(
        "renaming, calling: a pause calls the roll by the new name only",
        creator,
        names=_called_by_its_own_name,
    ),
    row(NEW, Verb.PAUSE, once=True, found={Wrong.LOST}).without(
        "renaming, an end: what has ended by its old name is not gone by the new one",
        processor,
        holds=_holds_for_its_own_name,
    ),
    row(lost=1, found={Wrong.LOST}).without(
        "S1: no loop is lost", supervision, is_lost=always(False)
    ),
    *(
        each.without(
            f"checkpoints, {what}: what the journal forgets is noted nowhere",
            broker,
            forgotten=always(Journal(forgot=True)),
        )
        for what, each in {
            "R4": row(repairs=1, forgets=1, found={Wrong.FORGOTTEN, Wrong.BACKWARDS}),
            "R3": row(outages=1, forgets=1, found={Wrong.OVERLAP, Wrong.BACKWARDS}),
            "an end": row(outages=1, forgets=1, stops=1, found={Wrong.STOPPED}),
        }.items()
    ),
    row(doublings=1, processors=1, found={Wrong.BACKWARDS, Wrong.RESETTLED}).without(
        "S2, the last settled position: a processor runs what it has settled itself",
        epochs,
        is_behind=always(False),
    ),
    row(doublings=1, found={Wrong.TWO_LINES}).without(
        "S2: no loop is doubled", epochs, is_doubled=always(False)
    ),
)
