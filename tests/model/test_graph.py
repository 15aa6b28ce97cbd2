"""What the model's answers rest on: the graph, and states that stand for all that behave alike."""

import pytest

from scheduler.protocol.epochs import Verb
from tests.model.canonical import canonical
from tests.model.checker import Search
from tests.model.graph import Graph
from tests.model.state import Bounds, Budget

MARK = 1


def graph_of(*edges: list[int], marked: tuple[int, int] | None = None) -> Graph:
    graph = Graph()
    for node, targets in enumerate(edges):
        graph.add([(to, MARK * ((node, to) == marked)) for to in targets])
    return graph


@pytest.mark.parametrize(
    ("edges", "cycles"),
    [
        ([[1], [2], []], []),
        ([[0]], [{0}]),
        ([[1], [2], [0]], [{0, 1, 2}]),
        ([[1], [0, 2], [3], [2]], [{0, 1}, {2, 3}]),
        ([[1], [2], [1, 3], []], [{1, 2}]),
        ([[1, 2], [3], [3], [0]], [{0, 1, 2, 3}]),
        ([[1], [2], [3, 1], [4], [3]], [{1, 2}, {3, 4}]),
    ],
)
def test_cycles_are_found(edges: list[list[int]], cycles: list[set[int]]):
    found = list(graph_of(*edges).cycles())
    assert sorted(map(sorted, found)) == sorted(map(sorted, cycles))


def test_a_cycle_is_open_without_one_of_its_edges_or_nodes():
    graph = graph_of([1], [2], [0], marked=(2, 0))
    assert list(graph.cycles())
    assert not list(graph.without(MARK, lambda node: True).cycles())
    assert not list(graph.without(0, lambda node: node != 1).cycles())


def test_nodes_without_a_way_to_a_goal_are_found():
    graph = graph_of([1, 3], [2], [], [3])
    assert graph.cannot_reach(bytearray([0, 0, 1, 0])) == [3]
    assert graph.cannot_reach(bytearray([0, 0, 0, 1])) == [1, 2]


@pytest.mark.parametrize(
    "bounds",
    [
        Bounds(budget=Budget(outages=2)),
        Bounds(verbs=(Verb.REMOVE, Verb.SEED), at_once=2),
        Bounds(verbs=(Verb.RESUME,), budget=Budget(lost=1, stops=1, forgets=1)),
        Bounds(budget=Budget(doublings=1)),
    ],
)
def test_a_canonical_state_stands_for_itself(bounds: Bounds):
    search = Search(bounds)
    assert search.check(set()).complete
    assert len(search.states) > 500
    assert all(canonical(state) == state for state in search.states)
