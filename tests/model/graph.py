"""The graph of all states: what can be reached from where, and what goes round."""

from array import array
from collections.abc import Callable, Iterator
from typing import Self


class Graph:
    """Nodes are numbers, in the order in which their edges are added; edges are marked."""

    def __init__(self) -> None:
        self._first = array("L", [0])
        self._targets = array("L")
        self._marks = array("B")

    def __len__(self) -> int:
        return len(self._first) - 1

    def add(self, edges: list[tuple[int, int]]) -> None:
        """The edges of the next node: targets and marks."""
        for target, mark in edges:
            self._targets.append(target)
            self._marks.append(mark)
        self._first.append(len(self._targets))

    def edges(self, node: int) -> Iterator[tuple[int, int]]:
        """Targets and marks."""
        of_node = slice(self._first[node], self._first[node + 1])
        return zip(self._targets[of_node], self._marks[of_node], strict=True)

    def without(self, mark: int, nodes: Callable[[int], bool]) -> Self:
        """The same nodes, and the edges between these that do not bear the mark."""
        rest = type(self)()
        for node in range(len(self)):
            kept = self.edges(node) if nodes(node) else ()
            rest.add([(to, marks) for to, marks in kept if not marks & mark and nodes(to)])
        return rest

    def cannot_reach(self, goals: bytearray) -> list[int]:
        """The nodes from which no way leads to a goal."""
        leading = [array("L") for _ in range(len(self))]
        for node in range(len(self)):
            for to, _ in self.edges(node):
                leading[to].append(node)
        reached = bytearray(goals)
        ahead = [node for node, goal in enumerate(goals) if goal]
        while ahead:
            for before in leading[ahead.pop()]:
                if not reached[before]:
                    reached[before] = 1
                    ahead.append(before)
        return [node for node, there in enumerate(reached) if not there]

    def cycles(self) -> Iterator[set[int]]:
        """The groups of nodes that lead round to each other, by Tarjan's algorithm."""
        numbers, lowest = _zeros(len(self)), _zeros(len(self))
        count, left, walk = 0, list[int](), list[tuple[int, Iterator[tuple[int, int]]]]()
        for start in range(len(self)):
            ahead = None if numbers[start] else start
            while walk or ahead is not None:
                if ahead is not None:
                    count += 1
                    numbers[ahead] = lowest[ahead] = count
                    left.append(ahead)
                    walk.append((ahead, self.edges(ahead)))
                node, edges = walk[-1]
                ahead = next((to for to, _ in edges if not numbers[to]), None)
                if ahead is not None:
                    continue
                walk.pop()
                lowest[node] = min([numbers[node], *(lowest[to] for to, _ in self.edges(node))])
                if lowest[node] == numbers[node]:
                    cycle = set[int]()
                    while node not in cycle:
                        cycle.add(left.pop())
                    for each in cycle:
                        lowest[each] = len(self) + 1  # no way leads back from there
                    if len(cycle) > 1 or node in dict(self.edges(node)):
                        yield cycle


def _zeros(count: int) -> "array[int]":
    return array("L", bytes(array("L").itemsize * count))
