"""All states of the lock that can be reached, by breadth."""

import time
from array import array
from collections.abc import Collection

from tests.model.check import Check
from tests.model.graph import Graph
from tests.model.lock.world import FREE, KEPT, Move, State, Wrong, inside, moves

FAULT = 1


def check(contenders: int, kept: int, *, until: Collection[Wrong] = ()) -> Check[Wrong, Move]:
    """Reach all states, and see what is wrong.

    Args:
        contenders: how many want the lock, again and again.
        kept: how many queues of holders that are gone the broker may keep at once.
        until: end the search where these have been found.
    """
    began = time.perf_counter()
    search = _Search(State(FREE, FREE, ((),) * contenders), kept)
    complete = search.run(set(until))
    if complete:
        search.look_whether_stuck()
    return Check(len(search.states), complete, time.perf_counter() - began, search.found)


class _Search:
    def __init__(self, start: State, kept: int) -> None:
        self.states = [start]
        self.found: dict[Wrong, list[Move]] = {}
        self._kept = kept
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

    def _expand(self, number: int) -> None:
        state = self.states[number]
        if inside(state) > 1 and Wrong.TWO not in self.found:
            self.found[Wrong.TWO] = self._way(number)
        edges = [
            (self._number(move.state, number), FAULT * move.is_fault)
            for move in moves(state, self._kept)
        ]
        self._graph.add(edges)

    def look_whether_stuck(self) -> None:
        """See whether somebody can always get it, with no fault but those that were."""
        goals = bytearray(
            bool(inside(state)) or state.lock == state.next == KEPT for state in self.states
        )
        for number in self._graph.without(FAULT, lambda _: True).cannot_reach(goals)[:1]:
            self.found[Wrong.STUCK] = self._way(number)

    def _number(self, state: State, parent: int) -> int:
        number = self._numbers.setdefault(state, len(self.states))
        if number == len(self.states):
            self.states.append(state)
            self._parents.append(parent)
        return number

    def _way(self, number: int) -> list[Move]:
        """A shortest way to a state."""
        stops: list[State] = []
        while number:
            stops.append(self.states[number])
            number = self._parents[number]
        state, way = self.states[0], list[Move]()
        for stop in reversed(stops):
            way.append(next(move for move in moves(state, self._kept) if move.state == stop))
            state = stop
        return way
