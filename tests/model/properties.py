"""What holds of the whole graph: a way back to one token, and nothing wrong that lasts."""

from collections.abc import Callable, Collection, Sequence

from scheduler.protocol.epochs import LoopState
from tests.model.graph import Graph
from tests.model.moves import Actor, Move, Wrong
from tests.model.state import Phase, Processor, State

PASSES = 1  # nobody has to take it, or not for ever
OF_AN_OLD_LINE = 2

# What each processor can do in a state, by number: who moves, and to which state.
Ways = Callable[[int], list[tuple[Processor, int]]]


def marks_of(move: Move, before: State) -> int:
    """The marks of its edge."""
    passes = move.stale or move.actor in (Actor.CREATOR, Actor.FAULT)
    puts = move.what.startswith("puts") and move.which is not None
    old = puts and move.token.position.epoch != before.roster.epoch
    return PASSES * passes + OF_AN_OLD_LINE * old


def is_well(state: State) -> bool:
    """Whether there is one token, of the current epoch; of a loop that is paused or gone, none.

    A one-off that has run is gone.
    """
    if state.creators:
        return False
    if state.truth.is_over and state.roster.state is not LoopState.GONE:
        return False
    epochs = [token.position.epoch for token in state.tokens]
    return epochs == ([state.roster.epoch] if state.roster.state is LoopState.ACTIVE else [])


def wrongs_of(graph: Graph, states: Sequence[State], ways: Ways) -> dict[Wrong, int]:
    """What is wrong with the graph, each with a state that shows it."""
    found: dict[Wrong, int] = {}
    lost = graph.cannot_reach(bytearray(map(is_well, states)))
    if lost:
        found[Wrong.LOST] = lost[0]
    # Where the journal shows two lines, a repair is at hand.
    lasting = graph.without(PASSES, lambda node: not states[node].journal.doubled)
    for cycle in lasting.cycles():
        wrongs = _wrongs_in(cycle, lasting, states)
        if wrongs and not _starves(cycle, states, ways):
            found = wrongs | found
    return found


def _wrongs_in(cycle: Collection[int], lasting: Graph, states: Sequence[State]) -> dict[Wrong, int]:
    found: dict[Wrong, int] = {}
    for node in cycle:
        if any(mark & OF_AN_OLD_LINE and to in cycle for to, mark in lasting.edges(node)):
            found.setdefault(Wrong.OLD_LINE, node)
        if sum(each.phase is Phase.RUNNING for each in states[node].processors) > 1:
            found.setdefault(Wrong.TWO_LINES, node)
    return found


def _starves(cycle: Collection[int], states: Sequence[State], ways: Ways) -> bool:
    """Whether the cycle goes round only as long as a processor never does what it can do."""
    idle = {Phase.AWAY, Phase.IDLE}
    always = set[Processor].intersection(*(set(states[node].processors) for node in cycle))
    for processor in (each for each in always if each.phase not in idle):
        targets = [[to for who, to in ways(node) if who == processor] for node in cycle]
        if all(targets) and not any(to in cycle for each in targets for to in each):
            return True
    return False
