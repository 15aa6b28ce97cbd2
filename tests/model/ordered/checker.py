"""All states of an ordered queue that can be reached, and what is wrong."""

import time
from collections.abc import Collection

from tests.model.breadth import Breadth
from tests.model.check import Check
from tests.model.ordered.state import Bounds, State, initial
from tests.model.ordered.world import Move, World, Wrong, canonical, is_over

PASSES_TIME = 1

Search = Breadth[State, Wrong, Move]


def check(bounds: Bounds, *, until: Collection[Wrong] = ()) -> Check[Wrong, Move]:
    """Reach all states, and see what is wrong.

    Args:
        until: end the search where these have been found.
    """
    began = time.perf_counter()
    search = Search(
        initial(bounds),
        World(bounds).moves,
        mark_of=lambda move: PASSES_TIME * move.passes_time,
        canonical=canonical,
    )
    complete = search.run(set(until))
    if complete:
        look_at_graph(search)
    return Check(len(search.states), complete, time.perf_counter() - began, search.found)


def look_at_graph(search: Search) -> None:
    """See whether there is always a way to the end, and nothing goes round without time."""
    for number in search.graph.cannot_reach(bytearray(map(is_over, search.states)))[:1]:
        search.found[Wrong.STUCK] = search.way(number)
    timeless = search.graph.without(PASSES_TIME, lambda node: True)
    for circle in timeless.circles():
        search.found[Wrong.BUSY] = search.way(min(circle))
        return
