"""All states of an ordered queue that can be reached, by breadth."""

import time
from array import array
from collections.abc import Collection

from tests.model.check import Check
from tests.model.graph import Graph
from tests.model.ordered.state import Bounds, State, initial
from tests.model.ordered.world import Move, World, Wrong, canonical, is_over

PASSES_TIME = 1


def check(bounds: Bounds, *, until: Collection[Wrong] = ()) -> Check[Wrong, Move]:
    """Reach all states, and see what is wrong.

    Args:
        until: end the search where these have been found.
    """
    began = time.perf_counter()
    search = _Search(World(bounds), initial(bounds))
    complete = search.run(set(until))
    if complete:
        search.look_at_graph()
    return Check(len(search.states), complete, time.perf_counter() - began, search.found)


class _Search:
    def __init__(self, world: World, start: State) -> None:
        self.states = [start]
        self.found: dict[Wrong, list[Move]] = {}
        self._world = world
        self._numbers = {start: 0}
        self._parents = array("L", [0])
        self._graph = Graph()

    def run(self, until: set[Wrong]) -> bool:
        """Whether all was searched."""
        number = 0
        while number < len(self.states):
            if until and until <= self.found.keys():
                return False
            self._expand(number)
            number += 1
        return True

    def look_at_graph(self) -> None:
        """See whether there is always a way to the end, and nothing goes round without time."""
        for number in self._graph.cannot_reach(bytearray(map(is_over, self.states)))[:1]:
            self.found[Wrong.STUCK] = self._way(number)
        timeless = self._graph.without(PASSES_TIME, lambda node: True)
        for circle in timeless.circles():
            self.found[Wrong.BUSY] = self._way(min(circle))
            return

    def _expand(self, number: int) -> None:
        edges: list[tuple[int, int]] = []
        for move in self._world.moves(self.states[number]):
            target = self._number(move.state, number)
            edges.append((target, PASSES_TIME * move.passes_time))
            if move.wrong is not None and move.wrong not in self.found:
                self.found[move.wrong] = self._way_on(number, move)
        self._graph.add(edges)

    def _number(self, state: State, parent: int) -> int:
        state = canonical(state)
        number = self._numbers.setdefault(state, len(self.states))
        if number == len(self.states):
            self.states.append(state)
            self._parents.append(parent)
        return number

    def _way_on(self, number: int, then: Move) -> list[Move]:
        """A shortest way to a state, and a move more."""
        way = self._way(number)
        state = way[-1].state if way else self.states[0]
        moves = self._world.moves(state)
        after = canonical(then.state)
        way.append(next(each for each in moves if each.wrong and canonical(each.state) == after))
        return way

    def _way(self, number: int) -> list[Move]:
        """A shortest way to a state, with the processors as they were numbered first."""
        stops: list[State] = []
        while number:
            stops.append(self.states[number])
            number = self._parents[number]
        state, way = self.states[0], list[Move]()
        for stop in reversed(stops):
            moves = self._world.moves(state)
            way.append(next(move for move in moves if canonical(move.state) == stop))
            state = way[-1].state
        return way
