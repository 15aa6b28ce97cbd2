"""All states that can be reached in a model, by breadth: so each is found on a shortest way."""

from array import array
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Generic, Protocol, TypeVar

from tests.model.graph import Graph


class Step(Protocol):
    """What happens in a model: the state after it, and what is wrong with that."""

    @property
    def state(self) -> Any: ...
    @property
    def wrong(self) -> Any: ...


S = TypeVar("S", bound=Hashable)
W = TypeVar("W")
M = TypeVar("M", bound=Step)


class Breadth(Generic[S, W, M]):
    """A search for all states, and what it has found.

    Args:
        moves: all that can happen next.
        mark_of: a move's mark in the graph.
        canonical: the state that stands for all that behave alike.
    """

    def __init__(
        self,
        start: S,
        moves: Callable[[S], Iterable[M]],
        *,
        mark_of: Callable[[M], int],
        canonical: Callable[[S], S] = lambda state: state,
    ) -> None:
        self.states = [start]
        self.graph = Graph()
        self.found: dict[W, list[M]] = {}
        self._moves = moves
        self._mark_of = mark_of
        self._canonical = canonical
        self._numbers = {start: 0}
        self._parents = array("L", [0])

    def run(self, until: set[W]) -> bool:
        """Whether all was searched; not, where it ended as these were found."""
        number = 0
        while number < len(self.states):
            if until and until <= self.found.keys():
                return False
            self._expand(number)
            number += 1
        return True

    def way(self, number: int) -> list[M]:
        """A shortest way to a state, with those who take part as they were numbered first."""
        stops: list[S] = []
        while number:
            stops.append(self.states[number])
            number = self._parents[number]
        state, way = self.states[0], list[M]()
        for stop in reversed(stops):
            moves = self._moves(state)
            way.append(next(move for move in moves if self._canonical(move.state) == stop))
            state = way[-1].state
        return way

    def _expand(self, number: int) -> None:
        edges: list[tuple[int, int]] = []
        for move in self._moves(self.states[number]):
            edges.append((self._number(move.state, number), self._mark_of(move)))
            if (wrong := move.wrong) is not None and wrong not in self.found:
                self.found[wrong] = self._way_on(number, move)
        self.graph.add(edges)

    def _number(self, state: S, parent: int) -> int:
        state = self._canonical(state)
        number = self._numbers.setdefault(state, len(self.states))
        if number == len(self.states):
            self.states.append(state)
            self._parents.append(parent)
        return number

    def _way_on(self, number: int, then: M) -> list[M]:
        """A shortest way to a state, and a move more."""
        way = self.way(number)
        state = way[-1].state if way else self.states[0]
        after = self._canonical(then.state)
        moves = (each for each in self._moves(state) if each.wrong)
        return [*way, next(each for each in moves if self._canonical(each.state) == after)]
