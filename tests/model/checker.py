"""All states that can be reached, by breadth: what is found is found on a shortest way."""

import time
from array import array
from collections.abc import Collection, Hashable
from typing import Any

from tests.model import broker, creator, processor, properties, supervision
from tests.model.canonical import canonical
from tests.model.check import Check
from tests.model.graph import Graph
from tests.model.moves import Actor, Move, Moves, Wrong
from tests.model.state import Bounds, Processor, State, initial


def moves(state: State, bounds: Bounds) -> Moves:
    """All that can happen next."""
    yield from broker.moves(state, bounds)
    yield from processor.moves(state)
    yield from creator.moves(state, bounds)
    yield from supervision.moves(state, bounds)
    yield from processor.cuts(state)
    yield from processor.recalls(state)


def check(
    bounds: Bounds, *, until: Collection[Wrong] = (), limit: int | None = None
) -> Check[Wrong, Move]:
    """Reach all states, and see what is wrong.

    Args:
        until: end the search where these have been found.
        limit: end the search after so many states.
    """
    began = time.perf_counter()
    search = Search(bounds)
    complete = search.run(set(until), limit)
    ways = {wrong: search.way(*place) for wrong, place in search.found.items()}
    if complete:
        for wrong, place in properties.wrongs_of(search.graph, search.states, search.ways).items():
            ways[wrong] = search.way(place)
    return Check(len(search.states), complete, time.perf_counter() - began, ways)


class Search:
    """A search for all states, and what it has found."""

    def __init__(self, bounds: Bounds) -> None:
        self.graph = Graph()
        self.states: list[State] = []
        self.found: dict[Wrong, tuple[int, State]] = {}
        self._bounds = bounds
        self._numbers: dict[State, int] = {}
        self._parents = array("L")
        self._parts: dict[Any, Hashable] = {}

    def run(self, until: set[Wrong], limit: int | None) -> bool:
        """Whether all was searched."""
        self._number(initial(self._bounds), 0)
        number = 0
        while number < len(self.states):
            if (until and until <= self.found.keys()) or number == limit:
                return False
            self._expand(number)
            number += 1
        return True

    def ways(self, number: int) -> list[tuple[Processor, int]]:
        """What each processor can do in a state."""
        state = self.states[number]
        return [
            (state.processors[move.which], self._numbers[canonical(move.state)])
            for move in moves(state, self._bounds)
            if move.which is not None and move.actor is Actor.PROCESSOR
        ]

    def way(self, number: int, then: State | None = None) -> list[Move]:
        """A shortest way to a state, and a step more: epochs and progress as they are."""
        path = [] if then is None else [then]
        while number:
            path.append(self.states[number])
            number = self._parents[number]
        state, way = initial(self._bounds), list[Move]()
        for stop in reversed(path):
            way += self._moves_to(stop, state)
            state = way[-1].state
        return way

    def _moves_to(self, stop: State, state: State) -> list[Move]:
        """The move to the next stop; before it, such as make no difference, where it takes any."""
        found: list[Move] = []
        while True:
            options = [(canonical(move.state), move) for move in moves(state, self._bounds)]
            for after, move in options:
                if after == stop:
                    return [*found, move]
            here = canonical(state)
            found.append(
                next(move for after, move in options if after == here and move.state != state)
            )
            state = found[-1].state

    def _expand(self, number: int) -> None:
        state = self.states[number]
        edges: list[tuple[int, int]] = []
        for move in moves(state, self._bounds):
            target = self._number(move.state, number)
            edges.append((target, properties.marks_of(move, state)))
            if move.wrong is not None:
                self.found.setdefault(move.wrong, (number, self.states[target]))
        self.graph.add(edges)

    def _number(self, state: State, parent: int) -> int:
        # Many are canonical as they are, and known.
        if (number := self._numbers.get(state)) is not None:
            return number
        state = canonical(state)
        if (number := self._numbers.get(state)) is not None:
            return number
        state = State(*map(self._shared, state))
        number = self._numbers[state] = len(self.states)
        self.states.append(state)
        self._parents.append(parent)
        return number

    def _shared(self, part: Any) -> Any:
        return self._parts.setdefault((type(part), part), part)
