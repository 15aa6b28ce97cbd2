"""What the broker does: tokens wait in shared timers and hatch, puts are taken, the journal hears.

Nothing is refused, nothing is looked at, nothing is purged: any number of tokens wait, and any of
them may hatch at any moment.
"""

from collections.abc import Iterator
from typing import NamedTuple

from scheduler.protocol import epochs
from scheduler.protocol.epochs import Position
from tests.model.moves import Actor, Move, Moves
from tests.model.state import Bounds, Journal, State, Token


def moves(state: State, bounds: Bounds) -> Moves:
    """What becomes of the tokens that wait, and of what the journal has heard."""
    budget = state.budget
    for token, waiting in _each(state.waiting):
        rest = state._replace(waiting=waiting)
        hatched = ready(rest, token)
        yield Move(Actor.BROKER, "hatches", hatched, token=token)
        if budget.doublings:
            twice = ready(hatched, token).less("doublings")
            yield Move(Actor.FAULT, "hatches twice", twice, token=token)
        if budget.lost:
            lost = rest.less("lost")
            yield Move(Actor.FAULT, "is lost as it hatches", lost, token=token)
        if budget.stopped:
            stuck = rest.less("stopped")._replace(stuck=(*state.stuck, token))
            yield Move(Actor.FAULT, "is in a timer that stops", stuck, token=token)
    for token, stuck in _each(state.stuck):
        rest = state._replace(stuck=stuck)
        yield Move(Actor.FAULT, "goes with its timer", rest, token=token)
        yield Move(Actor.BROKER, "hatches much later", ready(rest, token), token=token)
    for token, late in _each(state.late):
        journal, truth = heard(state, token.position, republished=True), state.truth
        if token.position.epoch >= state.roster.life:
            truth = truth._replace(settled=max(truth.settled, token.position.seq))
        waiting = (*state.waiting, token)
        arrived = state._replace(late=late, waiting=waiting, journal=journal, truth=truth)
        yield Move(Actor.BROKER, "arrives late", arrived, token=token)
    if budget.forgets:
        after = state.less("forgets")._replace(journal=forgotten(state, bounds))
        yield Move(Actor.FAULT, "the journal forgets", after)


def ready(state: State, token: Token) -> State:
    return state._replace(ready=(*state.ready, (token, False)))


def _each(tokens: tuple[Token, ...]) -> Iterator[tuple[Token, tuple[Token, ...]]]:
    """Each token, of those that are alike one, with all others."""
    for at, token in enumerate(tokens):
        if token not in tokens[:at]:
            yield token, tokens[:at] + tokens[at + 1 :]


class Put(NamedTuple):
    """How a put went."""

    state: State
    how: str = ""
    confirmed: bool = True
    arrived: bool = True


def puts(state: State, token: Token, *, republished: bool) -> Iterator[Put]:
    """All ways in which the put of a processor may go.

    Args:
        republished: whether it was published before.
    """
    budget = state.budget
    waits = state._replace(waiting=(*state.waiting, token))
    journal = heard(state, token.position, republished=republished)
    arrived = [("", waits._replace(journal=journal))]
    if budget.unheard:
        missed = waits.less("unheard")
        arrived.append((", and the journal misses it", missed))
    for how, after in arrived:
        yield Put(after, how)
    if budget.races:
        for how, after in [*arrived, (" in the journal only", state._replace(journal=journal))]:
            lost = f"{how}, and the confirmation is lost"
            yield Put(after.less("races"), lost, confirmed=False)
        yield Put(state.less("races"), " in vain", confirmed=False, arrived=False)
    if budget.late:
        flies = state.less("late")._replace(late=(*state.late, token))
        yield Put(flies, ", which has not arrived yet", confirmed=False, arrived=False)


def heard(state: State, put: Position, *, republished: bool) -> Journal:
    """The journal after a put.

    Args:
        republished: whether it was published before, or is a creator's.
    """
    journal, roster = state.journal, state.roster
    of_epoch = {each.epoch: each for each in journal.greatest}
    before = of_epoch.get(put.epoch)
    doubled = not republished and epochs.is_doubled(put, before, roster.epoch)
    of_epoch[put.epoch] = max(put, before) if before else put
    after = journal._replace(greatest=tuple(of_epoch.values()), doubled=journal.doubled or doubled)
    if put.epoch < roster.life:
        return after
    return after._replace(furthest=max(journal.furthest, put.seq))


def forgotten(state: State, bounds: Bounds) -> Journal:
    """The journal after it has dropped all that it has heard of, as it is full.

    The roster has noted how far the loop had come in this life, also that a run has ended it.
    """
    journal, life = state.journal, state.roster.life
    if not bounds.checkpoints:
        return Journal(forgot=True)
    last = epochs.adopted(Position(life, 0, joined=False), journal.positions(life), life)
    ends = tuple(end for end in journal.ends if end.position == last)
    return Journal(checkpoint=last, ends=ends, forgot=True)
