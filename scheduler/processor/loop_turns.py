"""One token of a loop at a time; and what this processor can tell of those that it has in hand."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from scheduler.errors import Rejected
from scheduler.protocol.calls import Call
from scheduler.protocol.epochs import is_void
from scheduler.protocol.tokens import LoopId, State, Token
from scheduler.queues.roll_call import InHand
from scheduler.queues.roster import Listing


@dataclass(slots=True)
class LoopTurn:
    """The tokens of one loop that this processor has in hand.

    Attributes:
        running: the one that it runs.
        refused: the one after which the slot has not taken what was to be put last.
    """

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    tokens: list[Token] = field(default_factory=list[Token])
    running: Token | None = None
    refused: Token | None = None


@dataclass(frozen=True, slots=True)
class Putting:
    """What is put after a token, until its slot has taken it, or has not."""

    turn: LoopTurn
    token: Token

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is None:
            self.turn.refused = None
        elif isinstance(error, Rejected):
            self.turn.refused = self.token


class LoopTurns:
    """The turns of all loops whose tokens this processor has in hand, and the epochs it knows of.

    Args:
        listing: the roster, as it is followed.
    """

    def __init__(self, listing: Listing) -> None:
        self._listing = listing
        self._turns: dict[LoopId, LoopTurn] = {}

    def learn(self, loop: LoopId, epoch: int) -> None:
        """Take note that this epoch of a loop has begun."""
        self._listing.learn(loop, epoch)

    def known(self, loop: LoopId) -> int:
        """The greatest epoch of a loop that is known here."""
        return self._listing.known(loop)

    def is_void(self, token: Token) -> bool:
        """Whether a token is acked without a run (R1)."""
        return token.state is not State.REPLAY and is_void(token.epoch, self.known(token.loop))

    async def take(self, token: Token) -> Callable[[], None]:
        """Wait for the loop's turn; returns what ends it.

        After a reconnect a token can come back while its cancelled run is still cleaning up; and
        the first token of an epoch meets the last run of the one before here.
        """
        if (turn := self._turns.get(token.loop)) is None:
            turn = self._turns[token.loop] = LoopTurn()
        turn.tokens.append(token)
        try:
            await turn.lock.acquire()
        except BaseException:
            self._leave(turn, token)
            raise
        return partial(self._end, turn, token)

    def begin(self, subject: Token | Call) -> None:
        """Have it known, until its turn ends, that the run of a token has begun."""
        if isinstance(subject, Token):
            self._turns[subject.loop].running = subject

    def putting(self, token: Token) -> Putting:
        """Have it known whether the slot takes what is put inside the block, after this token."""
        return Putting(self._turns[token.loop], token)

    def _end(self, turn: LoopTurn, token: Token) -> None:
        turn.running = None
        turn.lock.release()
        self._leave(turn, token)

    def _leave(self, turn: LoopTurn, token: Token) -> None:
        turn.tokens.remove(token)
        if not turn.tokens:
            del self._turns[token.loop]

    def in_hand(self, loop: LoopId) -> Sequence[InHand]:
        """The tokens of a loop that are in hand, but those that run beside it."""
        turn = self._turns.get(loop, LoopTurn())
        return [
            InHand(token.position, token is turn.running, token is turn.refused)
            for token in turn.tokens
            if token.state is not State.REPLAY
        ]
