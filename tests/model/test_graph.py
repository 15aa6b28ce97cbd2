"""What the model's answers rest on: the graph, and states that stand for all that behave alike."""

import pytest

from scheduler.protocol.epochs import Verb
from tests.model.canonical import canonical
from tests.model.checker import search_of
from tests.model.graph import Graph
from tests.model.state import Bounds, Budget

MARK = 1


def graph_of(*edges: list[int], marked: tuple[int, int] | None = None) -> Graph:
    graph = Graph()
    for node, targets in enumerate(edges):
        graph.add([(to, MARK * ((node, to) == marked)) for to in targets])
    return graph


@pytest.mark.parametrize(
    ("edges", "circles"),
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
def test_circles_are_what_leads_round(edges: list[list[int]], circles: list[set[int]]):
    found = list(graph_of(*edges).circles())
    assert sorted(map(sorted, found)) == sorted(map(sorted, circles))


def test_an_edge_that_is_left_out_opens_a_circle():
    graph = graph_of([1], [2], [0], marked=(2, 0))
    assert list(graph.circles())
    assert not list(graph.without(MARK, lambda node: True).circles())
    assert not list(graph.without(0, lambda node: node != 1).circles())


def test_states_without_a_way_to_a_goal_are_found():
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
    search = search_of(bounds)
    assert search.check(set()).complete
    assert len(search.states) > 500
    assert all(canonical(state) == state for state in search.states)
