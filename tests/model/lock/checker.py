"""All states of the lock that can be reached, and what is wrong."""

import time
from collections.abc import Collection
from functools import partial

from tests.model.breadth import Breadth
from tests.model.check import Check
from tests.model.lock.world import FREE, KEPT, Move, State, Wrong, inside, moves

FAULT = 1

Search = Breadth[State, Wrong, Move]


def check(contenders: int, kept: int, *, until: Collection[Wrong] = ()) -> Check[Wrong, Move]:
    """Reach all states, and see what is wrong.

    Args:
        contenders: how many want the lock, again and again.
        kept: how many queues of holders that are gone the broker may keep at once.
        until: end the search where these have been found.
    """
    began = time.perf_counter()
    search = Search(
        State(FREE, FREE, ((),) * contenders),
        partial(moves, kept=kept),
        mark_of=lambda move: FAULT * move.is_fault,
    )
    complete = search.run(set(until))
    if complete:
        look_whether_stuck(search)
    return Check(len(search.states), complete, time.perf_counter() - began, search.found)


def look_whether_stuck(search: Search) -> None:
    """See whether somebody can always get it, with no fault but those that were."""
    goals = bytearray(
        bool(inside(state)) or state.lock == state.next == KEPT for state in search.states
    )
    for number in search.graph.without(FAULT, lambda node: True).cannot_reach(goals)[:1]:
        search.found[Wrong.STUCK] = search.way(number)
