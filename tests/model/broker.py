"""What the broker does: tokens hatch, puts are taken or refused, and the journal hears them."""

from collections.abc import Iterator
from typing import NamedTuple

from scheduler.protocol import epochs
from scheduler.protocol.epochs import Position
from tests.model.moves import Actor, Move, Moves
from tests.model.state import Journal, State, Token


def hatches(state: State) -> Moves:
    """What waits at the head, and is not paused, becomes ready; twice, when a node fails."""
    if not state.slot or state.slot[0].paused:
        return
    token, *slot = state.slot
    journal = state.journal
    if (token.position.epoch, token.position.seq) == (state.roster.epoch, journal.checkpoint):
        journal = journal._replace(waits=False)
    hatched = state._replace(
        slot=tuple(slot), ready=(*state.ready, (token, False)), journal=journal
    )
    yield Move(Actor.BROKER, "hatches", hatched, token=token)
    if state.budget.doublings:
        yield Move(
            Actor.FAULT,
            "hatches twice",
            hatched._replace(
                ready=(*hatched.ready, (token, False)),
                budget=state.budget._replace(doublings=state.budget.doublings - 1),
            ),
            token=token,
        )


class Put(NamedTuple):
    """How a put went."""

    state: State
    taken: bool
    how: str = ""


def puts(state: State, token: Token, *, republished: bool) -> Iterator[Put]:
    """All ways in which a put may go.

    Args:
        republished: whether the journal has heard the message before, or a creator put it.
    """
    budget = state.budget
    taken = state._replace(slot=(*state.slot, token))
    journal = heard(state, token.position, republished=republished)
    if state.slot:
        yield Put(state._replace(journal=journal), taken=False)
        if budget.races:
            less = budget._replace(races=budget.races - 1)
            yield Put(taken._replace(journal=journal, budget=less), True, " beside the occupant")
        return
    yield Put(taken._replace(journal=journal), taken=True)
    if budget.unheard:
        less = budget._replace(unheard=budget.unheard - 1)
        yield Put(taken._replace(budget=less), True, ", and the journal misses it")


def heard(state: State, put: Position, *, republished: bool) -> Journal:
    """The journal after a put."""
    journal, roster = state.journal, state.roster
    of_epoch = {each.epoch: each for each in journal.greatest}
    before = of_epoch.get(put.epoch)
    doubled = not republished and epochs.is_doubled(put, before, roster.epoch)
    of_epoch[put.epoch] = max(put, before) if before else put
    after = journal._replace(greatest=tuple(of_epoch.values()), doubled=journal.doubled or doubled)
    if put.epoch < roster.life:
        return after
    since = journal.since if journal.waits else max(journal.since, put.seq)
    return after._replace(
        furthest=max(journal.furthest, put.seq), since=since if journal.notes else 0
    )
