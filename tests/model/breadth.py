"""All states that can be reached in a model, by breadth: what is found is so on a shortest way."""

import time
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from tests.model.graph import Graph


class Step(Protocol):
    """What happens in a model: the state after it, and what is wrong with that."""

    @property
    def state(self) -> Any: ...
    @property
    def wrong(self) -> Any: ...


S = TypeVar("S", bound=tuple[Any, ...])
W = TypeVar("W")
M = TypeVar("M", bound=Step)


@dataclass(frozen=True)
class Check(Generic[W, M]):
    """What was found.

    Attributes:
        complete: whether all states were reached.
        found: what is wrong, each with the moves that lead there.
    """

    states: int
    complete: bool
    seconds: float
    found: dict[W, list[M]]


class Breadth(ABC, Generic[S, W, M]):
    """A search for all states, and what it has found.

    Args:
        canonical: the state that stands for all that behave alike.
    """

    def __init__(self, start: S, canonical: Callable[[S], S]) -> None:
        self.states: list[S] = []
        self.graph = Graph()
        self._found: dict[W, tuple[int, S | None]] = {}
        self._start = start
        self._canonical = canonical
        self._numbers: dict[S, int] = {}
        self._parts: dict[Any, Any] = {}  # states share them
        self._parents = array("L")
        self._reach(start, 0)

    @abstractmethod
    def moves(self, state: S) -> Iterable[M]:
        """All that can happen next."""

    @abstractmethod
    def mark_of(self, move: M, before: S) -> int:
        """The mark in the graph of a move from a state."""

    @abstractmethod
    def wrong_in_all(self) -> Mapping[W, int]:
        """What is wrong with the whole graph, each with a state that shows it."""

    def check(self, until: AbstractSet[W]) -> Check[W, M]:
        """Reach all states, and see what is wrong; end where these have been found."""
        began = time.perf_counter()
        complete = self._run(until)
        if complete:
            self._found |= {wrong: (at, None) for wrong, at in self.wrong_in_all().items()}
        ways = {wrong: self._way(*place) for wrong, place in self._found.items()}
        return Check(len(self.states), complete, time.perf_counter() - began, ways)

    def number_of(self, state: S) -> int:
        return self._numbers[self._canonical(state)]

    def _run(self, until: AbstractSet[W]) -> bool:
        """Whether all was searched; not, where it ended as these were found."""
        number = 0
        while number < len(self.states):
            if until and until <= self._found.keys():
                return False
            self._expand(number)
            number += 1
        return True

    def _expand(self, number: int) -> None:
        state, edges = self.states[number], list[tuple[int, int]]()
        for move in self.moves(state):
            target = self._reach(move.state, number)
            edges.append((target, self.mark_of(move, state)))
            if move.wrong is not None:
                self._found.setdefault(move.wrong, (number, self.states[target]))
        self.graph.add(edges)

    def _reach(self, state: S, parent: int) -> int:
        # Many are canonical as they are, and known.
        if (number := self._numbers.get(state)) is not None:
            return number
        state = self._canonical(state)
        if (number := self._numbers.get(state)) is not None:
            return number
        state = type(state)(*[self._parts.setdefault((type(part), part), part) for part in state])
        number = self._numbers[state] = len(self.states)
        self.states.append(state)
        self._parents.append(parent)
        return number

    def _way(self, number: int, then: S | None) -> list[M]:
        """A shortest way to a state, and a step more: from the start as it is, not renumbered."""
        path = [] if then is None else [then]
        while number:
            path.append(self.states[number])
            number = self._parents[number]
        state, way = self._start, list[M]()
        for stop in reversed(path):
            way += self._moves_to(stop, state)
            state = way[-1].state
        return way

    def _moves_to(self, stop: S, state: S) -> list[M]:
        """The move to the next stop; before it, such as make no difference, where it takes any."""
        found: list[M] = []
        while True:
            options = [(self._canonical(move.state), move) for move in self.moves(state)]
            for after, move in options:
                if after == stop:
                    return [*found, move]
            here = self._canonical(state)
            found.append(
                next(move for after, move in options if after == here and move.state != state)
            )
            state = found[-1].state
