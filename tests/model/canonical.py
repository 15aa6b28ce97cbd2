"""One state for all that behave alike: so there are fewer, and not without end.

Epochs are numbered anew: even numbers for those that tokens have, odd ones for all between; what
was before all tokens is as good as the oldest of them. Progress too: only what is ahead, level or
next matters, and whether there is any. Processors, creators and tokens have no order.
"""

from bisect import bisect_left

from scheduler.protocol import epochs
from scheduler.protocol.epochs import Beginning, Entry, Position, Verb
from tests.model.state import NOTHING, Creator, Journal, Processor, Renaming, State, Token

FARTHEST = 2
"""Progress that is farther ahead is taken for this far ahead: the rules ask for more or less."""

OF_NO_TOKEN = 0
"""The epoch of what was heard of tokens that are nowhere any more."""


def canonical(state: State) -> State:
    """The state that stands for this one."""
    numbering = _Numbering(state)
    tokens = numbering.tokens
    return State(
        tuple(sorted([tokens[token] for token in state.waiting])),
        tuple(sorted([tokens[token] for token in state.stuck])),
        tuple(sorted([tokens[token] for token in state.late])),
        tuple(sorted([(tokens[token], redelivered) for token, redelivered in state.ready])),
        tuple(sorted([numbering.processor(each) for each in state.processors], key=_key)),
        tuple(sorted([numbering.creator(each) for each in numbering.creators], key=_creator_key)),
        numbering.journal(state.journal),
        numbering.roster,
        state.what,
        numbering.renamings,
        state.budget,
        state.verbs,
        numbering.truth,
    )


def _key(processor: Processor) -> tuple[object, ...]:
    return (*processor[:5], processor.settled or (), processor.old)


def _creator_key(creator: Creator) -> tuple[object, ...]:
    entry, token = creator.beginning
    name = creator.name
    return creator.verb, creator.what, creator.done, entry, creator.resumed, token or (), name


class _Numbering:
    """The new numbers of a state's epochs and progress, and its tokens with these."""

    def __init__(self, state: State) -> None:
        roster, journal = state.roster, state.journal
        tokens = set(state.tokens)
        tokens.update([each.delivered for each in state.processors])
        tokens.discard(NOTHING)
        # Who has been overtaken is as good as not there: its entry will not be accepted any more.
        self.creators = [
            each
            for each in state.creators
            if each.done or epochs.accepted(each.beginning.entry, roster)
        ]
        firsts = [each.pending.position for each in self.creators if each.done]
        self._comes = [token.position for token in tokens]
        self._comes += [first for first in firsts if first != NOTHING.position]
        numbered = {roster.epoch, *[position.epoch for position in self._comes]}
        entries = [each.beginning.entry.epoch for each in self.creators]
        numbered.update([epoch for epoch in entries if epoch <= roster.epoch])
        ends = journal.ends
        numbered.update([end.position.epoch for end in ends if self._matters_as_end(end, roster)])
        self._ends = [end for end in ends if end.position.epoch in numbered]
        self._epochs = sorted(numbered)
        self._numbers = {epoch: 2 * at for at, epoch in enumerate(self._epochs, 1)}
        self._greatest = [put for put in journal.greatest if put.epoch in self._numbers]
        seqs = {0, journal.furthest, state.truth.settled}
        seqs.update([position.seq for position in self._comes])
        seqs.update([put.seq for put in self._greatest])
        seqs.update([end.position.seq for end in self._ends])
        if journal.checkpoint:
            seqs.add(journal.checkpoint.seq)
        settled = [each.settled for each in state.processors if each.settled]
        seqs.update([each.seq for each in settled if self._matters(each)])
        self.seqs = _spaced(seqs)
        self.tokens = {token: self._token(token) for token in tokens}
        self.tokens[NOTHING] = NOTHING
        settled = self.seqs[(truth := state.truth).settled]
        self.truth = truth if settled == truth.settled else truth._replace(settled=settled)
        self.roster = Entry(
            self.epoch(roster.epoch),
            roster.state,
            self.epoch(roster.life),
            asked=self.epoch(roster.asked) if self._ends or state.budget.stops else 0,
        )
        self.renamings = tuple(
            [Renaming(self.epoch(each.epoch), each.name) for each in state.renamings]
        )

    def epoch(self, epoch: int) -> int:
        return self._numbers.get(epoch) or max(2 * bisect_left(self._epochs, epoch) + 1, 2)

    def creator(self, creator: Creator) -> Creator:
        """Of one that has not appended yet, the entry is as if it had just read the roster."""
        verb, (entry, token), what, done, resumed, name = creator
        number = self._numbers.get(entry.epoch, self.roster.epoch + 1)
        if done:
            entry, name = Entry(number, entry.state, 0), 0
        else:
            entry = entry._replace(
                epoch=number,
                life=number if verb is Verb.SEED else self.roster.life,
                base=epochs.base_of(self.roster),
                asked=number if entry.asked == entry.epoch else self.roster.asked,
            )
        token = token and token._replace(epoch=number, seq=self.seqs[token.seq])
        return Creator(verb, Beginning(entry, token), what, done, resumed, name)

    def processor(self, each: Processor) -> Processor:
        tokens, settled = self.tokens, each.settled
        return Processor(
            each.phase,
            tuple([self.epoch(known) for known in each.known]),
            tokens[each.token],
            tokens[each.delivered],
            each.unconfirmed,
            self._position(settled) if settled and self._matters(settled) else None,
            each.old,
        )

    def journal(self, journal: Journal) -> Journal:
        greatest = tuple(sorted([self._position(put) for put in self._greatest]))
        return Journal(
            self.seqs[journal.furthest],
            journal.earlier,
            greatest,
            journal.doubled,
            tuple(sorted([self._token(end) for end in self._ends])),
            journal.checkpoint and self._position(journal.checkpoint),
            journal.forgot,
        )

    def _matters(self, settled: Position) -> bool:
        """Whether something may come that a processor has settled: what comes later is ahead."""
        return any(epochs.is_behind(each, settled) for each in self._comes)

    def _matters_as_end(self, end: Token, roster: Entry) -> bool:
        """Whether a run's end of its loop holds, or may again: of one-offs, in this life."""
        if end.what:
            return end.position.epoch >= roster.life
        return epochs.stays_ended(end.position, roster, was_only=False, is_same=True)

    def _token(self, token: Token) -> Token:
        return Token(self._position(token.position), token.what)

    def _position(self, position: Position) -> Position:
        number = self._numbers.get(position.epoch, OF_NO_TOKEN)
        return Position(number, self.seqs[position.seq], 0, position.joined, position.returns)


def _spaced(progress: set[int]) -> dict[int, int]:
    """Each progress with its number: as far apart as they are, up to the farthest that counts."""
    spaced: dict[int, int] = {}
    last = number = 0
    for seq in sorted(progress):
        number += min(seq - last, FARTHEST)
        last = seq
        spaced[seq] = number
    return spaced
