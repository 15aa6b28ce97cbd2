"""One token of a loop at a time; and what this processor can tell of those that it has in hand."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from scheduler.protocol.calls import Call
from scheduler.protocol.epochs import Position, is_behind, is_void
from scheduler.protocol.tokens import LoopId, State, Token
from scheduler.queues.listing import Listing
from scheduler.queues.roll_call import InHand

MOST_REMEMBERED = 100_000
"""Loops whose last settled position is known: supervision finds what this overlooks."""


@dataclass(slots=True)
class LoopTurn:
    """The tokens of one loop that this processor has in hand, and the one that it runs."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    tokens: list[Token] = field(default_factory=list[Token])
    running: Token | None = None


class LoopTurns:
    """The turns of all loops whose tokens this processor has in hand, and the epochs it knows of.

    Args:
        listing: the roster, as it is followed.
    """

    def __init__(self, listing: Listing) -> None:
        self.learn = listing.learn
        self.known = listing.known
        self._turns: dict[LoopId, LoopTurn] = {}
        self._settled: dict[LoopId, Position] = {}

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

    def settle(self, token: Token) -> None:
        """Take note that what comes after a token was put."""
        if token.state is State.REPLAY:
            return
        self._settled.pop(token.loop, None)  # the loops settled last come last
        self._settled[token.loop] = token.position
        if len(self._settled) > MOST_REMEMBERED:
            del self._settled[next(iter(self._settled))]

    def is_behind(self, token: Token) -> bool:
        """Return whether a token, or one as far, was settled here."""
        return is_behind(token.position, self._settled.get(token.loop))

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
            InHand(token.position, token is turn.running)
            for token in turn.tokens
            if token.state is not State.REPLAY
        ]
