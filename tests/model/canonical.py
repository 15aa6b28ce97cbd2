"""One state for all that behave alike: so there are fewer, and not without end.

Epochs are numbered anew: even numbers for those that tokens have, odd ones for all between; what
was before all tokens is as good as the oldest of them. Progress too: only what is ahead, level or
next matters, and whether there is any. Processors, and what is ready, have no order.
"""

from bisect import bisect_left

from scheduler.protocol.epochs import Entry, Position, Watch
from tests.model.state import (
    NOTHING,
    Creator,
    Journal,
    Processor,
    State,
    Supervisor,
    Token,
    Truth,
)

FARTHEST = 2
"""Progress that is farther ahead is taken for this far ahead: the rules ask for more or less."""


def canonical(state: State) -> State:
    """The state that stands for this one."""
    numbering = _Numbering(state)
    tokens, supervisor = numbering.tokens, state.supervisor
    return State(
        tuple([tokens[token] for token in state.slot]),
        tuple(sorted([(tokens[token], redelivered) for token, redelivered in state.ready])),
        tuple(sorted([numbering.processor(each) for each in state.processors])),
        numbering.creator(state.creator),
        Supervisor(supervisor.asked, numbering.watch(supervisor.watch, state.roster.epoch)),
        numbering.journal(state.journal),
        Entry(
            numbering.epoch(state.roster.epoch),
            state.roster.state,
            numbering.epoch(state.roster.life),
        ),
        state.budget,
        state.verbs,
        Truth(numbering.seqs[state.truth.settled], state.truth.stopped),
    )


class _Numbering:
    """The new numbers of a state's epochs and progress, and its tokens with these."""

    def __init__(self, state: State) -> None:
        tokens = set(state.tokens)
        tokens.update([each.delivered for each in state.processors])
        tokens.add(state.creator.token)
        tokens.discard(NOTHING)
        self._epochs = sorted({state.roster.epoch, *(token.position.epoch for token in tokens)})
        self._numbers = {epoch: 2 * at for at, epoch in enumerate(self._epochs, 1)}
        self._greatest = [put for put in state.journal.greatest if put.epoch in self._numbers]
        journal = state.journal
        seqs = {0, journal.furthest, journal.checkpoint or 0, journal.since, state.truth.settled}
        seqs.update([token.position.seq for token in tokens])
        seqs.update([put.seq for put in self._greatest])
        self.seqs = _spaced(seqs)
        self.tokens = {token: Token(self._position(token[0]), *token[1:]) for token in tokens}
        self.tokens[NOTHING] = NOTHING

    def epoch(self, epoch: int) -> int:
        return self._numbers.get(epoch) or max(2 * bisect_left(self._epochs, epoch) + 1, 2)

    def creator(self, creator: Creator) -> Creator:
        before = creator.before and self.epoch(creator.before)
        return Creator(creator.verb, creator.done, self.tokens[creator.token], before)

    def processor(self, each: Processor) -> Processor:
        tokens = self.tokens
        return Processor(
            each.phase,
            self.epoch(each.known),
            tokens[each.token],
            tokens[each.delivered],
            tokens[each.held],
            each.heard,
        )

    def journal(self, journal: Journal) -> Journal:
        greatest = tuple(sorted([self._position(put) for put in self._greatest]))
        return Journal(
            self.seqs[journal.furthest],
            journal.earlier,
            greatest,
            journal.doubled,
            None if journal.checkpoint is None else self.seqs[journal.checkpoint],
            journal.waits,
            self.seqs[journal.since],
            journal.notes,
        )

    def watch(self, watch: Watch, epoch: int) -> Watch:
        # Misses of an epoch that has passed count for nothing.
        counts = watch.epoch == epoch and watch.misses
        return Watch(self.epoch(epoch), watch.misses) if counts else Watch()

    def _position(self, position: Position) -> Position:
        epoch, seq = self._numbers[position.epoch], self.seqs[position.seq]
        return Position(epoch, seq, joined=position.joined)


def _spaced(progress: set[int]) -> dict[int, int]:
    """Each progress with its number: as far apart as they are, up to the farthest that counts."""
    spaced: dict[int, int] = {}
    last = number = 0
    for seq in sorted(progress):
        number += min(seq - last, FARTHEST)
        last = seq
        spaced[seq] = number
    return spaced
