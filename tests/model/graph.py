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
        backwards = self._reversed()
        reached = bytearray(goals)
        ahead = [node for node, goal in enumerate(goals) if goal]
        while ahead:
            for before, _ in backwards.edges(ahead.pop()):
                if not reached[before]:
                    reached[before] = 1
                    ahead.append(before)
        return [node for node, there in enumerate(reached) if not there]

    def cycles(self) -> Iterator[set[int]]:
        """The groups of nodes that lead round to each other."""
        backwards = self._reversed()
        left = self._on_cycles(backwards)
        for node in self._finished(left):
            if left[node]:
                cycle = backwards._component(node, left)
                if len(cycle) > 1 or any(to == node for to, _ in self.edges(node)):
                    yield cycle

    def _reversed(self) -> Self:
        counts = array("L", bytes(array("L").itemsize * (len(self) + 1)))
        for target in self._targets:
            counts[target + 1] += 1
        for node in range(len(self)):
            counts[node + 1] += counts[node]
        turned = type(self)()
        turned._first = array("L", counts)
        turned._targets = array("L", bytes(array("L").itemsize * len(self._targets)))
        turned._marks = array("B", bytes(len(self._marks)))
        for node in range(len(self)):
            for target, mark in self.edges(node):
                turned._targets[counts[target]] = node
                turned._marks[counts[target]] = mark
                counts[target] += 1
        return turned

    def _on_cycles(self, backwards: Self) -> bytearray:
        """All but what leads nowhere and, then, all but what nothing leads to."""
        left = bytearray(b"\1") * len(self)
        for ahead, behind in (self, backwards), (backwards, self):
            edges = [sum(left[to] for to, _ in ahead.edges(node)) for node in range(len(self))]
            ends = [node for node, many in enumerate(edges) if left[node] and not many]
            while ends:
                end = ends.pop()
                left[end] = 0
                for before, _ in behind.edges(end):
                    edges[before] -= 1
                    if left[before] and not edges[before]:
                        ends.append(before)
        return left

    def _finished(self, left: bytearray) -> list[int]:
        """Nodes, the last first that a walk by depth is done with (Kosaraju's order)."""
        seen, finished = bytearray(len(self)), list[int]()
        for start in range(len(self)):
            if seen[start] or not left[start]:
                continue
            seen[start] = 1
            walk = [(start, self.edges(start))]
            while walk:
                node, edges = walk[-1]
                to = next((to for to, _ in edges if left[to] and not seen[to]), None)
                if to is None:
                    finished.append(node)
                    walk.pop()
                else:
                    seen[to] = 1
                    walk.append((to, self.edges(to)))
        return finished[::-1]

    def _component(self, start: int, left: bytearray) -> set[int]:
        """What can be reached among those that are left; they are not left any more."""
        left[start] = 0
        taken, ahead = {start}, [start]
        while ahead:
            for to, _ in self.edges(ahead.pop()):
                if left[to]:
                    left[to] = 0
                    taken.add(to)
                    ahead.append(to)
        return taken
