"""All states of loops and their epochs that can be reached, and what is wrong.

Of the whole graph this holds: there is a way back to one token, and nothing wrong lasts.
"""

from collections.abc import Collection

from scheduler.protocol.epochs import LoopState
from tests.model import broker, creator, processor, supervision
from tests.model.breadth import Breadth
from tests.model.canonical import canonical
from tests.model.graph import Graph
from tests.model.moves import Actor, Move, Moves, Wrong
from tests.model.state import Bounds, Phase, Processor, State, initial

PASSES = 1  # nobody has to take it, or not for ever
OF_AN_OLD_LINE = 2


class Search(Breadth[State, Wrong, Move]):
    """All states within these bounds."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        super().__init__(initial(bounds), canonical)

    def moves(self, state: State) -> Moves:
        yield from broker.moves(state, self._bounds)
        yield from processor.moves(state)
        yield from creator.moves(state, self._bounds)
        yield from supervision.moves(state, self._bounds)
        yield from processor.cuts(state)
        yield from processor.recalls(state)

    def mark_of(self, move: Move, before: State) -> int:
        passes = move.stale or move.actor in (Actor.CREATOR, Actor.FAULT)
        puts = move.what.startswith("puts") and move.which is not None
        old = puts and move.token.position.epoch != before.roster.epoch
        return PASSES * passes + OF_AN_OLD_LINE * old

    def wrong_in_all(self) -> dict[Wrong, int]:
        found: dict[Wrong, int] = {}
        lost = self.graph.cannot_reach(bytearray(map(is_well, self.states)))
        if lost:
            found[Wrong.LOST] = lost[0]
        # Where the journal shows two lines, a repair is at hand.
        lasting = self.graph.without(PASSES, lambda node: not self.states[node].journal.doubled)
        for cycle in lasting.cycles():
            wrongs = self._wrongs_in(cycle, lasting)
            if wrongs and not self._starves(cycle):
                found = wrongs | found
        return found

    def _wrongs_in(self, cycle: Collection[int], lasting: Graph) -> dict[Wrong, int]:
        found: dict[Wrong, int] = {}
        for node in cycle:
            if any(mark & OF_AN_OLD_LINE and to in cycle for to, mark in lasting.edges(node)):
                found.setdefault(Wrong.OLD_LINE, node)
            if sum(each.phase is Phase.RUNNING for each in self.states[node].processors) > 1:
                found.setdefault(Wrong.TWO_LINES, node)
        return found

    def _starves(self, cycle: Collection[int]) -> bool:
        """Whether it goes round only as long as a processor never does what it can do."""
        groups = [self.states[node].processors for node in cycle]
        for who in set(groups[0]).intersection(*groups):
            if who.phase in (Phase.AWAY, Phase.IDLE):
                continue
            targets = [self._targets(who, node) for node in cycle]
            if all(targets) and not any(to in cycle for each in targets for to in each):
                return True
        return False

    def _targets(self, who: Processor, node: int) -> list[int]:
        """What a processor can lead to."""
        state = self.states[node]
        return [
            self.number_of(move.state)
            for move in self.moves(state)
            if move.which is not None and move.actor is Actor.PROCESSOR
            if state.processors[move.which] == who
        ]


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
