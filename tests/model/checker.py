"""All states of loops and their epochs that can be reached, and what is wrong."""

from collections.abc import Set as AbstractSet
from typing import Any

from tests.model import broker, creator, processor, properties, supervision
from tests.model.breadth import Breadth, Check
from tests.model.canonical import canonical
from tests.model.moves import Actor, Move, Moves, Wrong
from tests.model.state import Bounds, Processor, State, initial

Search = Breadth[State, Wrong, Move]


def moves(state: State, bounds: Bounds) -> Moves:
    """All that can happen next."""
    yield from broker.moves(state, bounds)
    yield from processor.moves(state)
    yield from creator.moves(state, bounds)
    yield from supervision.moves(state, bounds)
    yield from processor.cuts(state)
    yield from processor.recalls(state)


def search_of(bounds: Bounds) -> Search:
    parts: dict[Any, Any] = {}

    def shared(state: State) -> State:
        return State(*[parts.setdefault((type(part), part), part) for part in state])

    return Breadth(
        initial(bounds),
        lambda state: moves(state, bounds),
        mark_of=properties.marks_of,
        canonical=canonical,
        kept=shared,
    )


def check(bounds: Bounds, *, until: AbstractSet[Wrong] = frozenset()) -> Check[Wrong, Move]:
    """Reach all states, and see what is wrong."""
    search = search_of(bounds)

    def ways(number: int) -> list[tuple[Processor, int]]:
        """What each processor can do in a state."""
        state = search.states[number]
        return [
            (state.processors[move.which], search.number_of(move.state))
            for move in moves(state, bounds)
            if move.which is not None and move.actor is Actor.PROCESSOR
        ]

    return search.check(until, lambda: properties.wrongs_of(search.graph, search.states, ways))
