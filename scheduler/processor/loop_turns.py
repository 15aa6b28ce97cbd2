"""One token of a loop at a time; and what this processor can tell of those that it has in hand."""

import asyncio
from collections.abc import AsyncGenerator, Collection, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

from scheduler.processor.shutdown import Shutdown
from scheduler.protocol.calls import Call
from scheduler.protocol.tokens import LoopId, Token
from scheduler.queues.roll_call import Claims, Progress, Settled


@dataclass(slots=True)
class LoopTurn:
    """The tokens of one loop that this processor has in hand.

    Attributes:
        running: the one that it runs.
        occupied: whether something else was seen in the slot.
        refused: whether the slot has not taken what was to be put last.
    """

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    tokens: list[Token] = field(default_factory=list[Token])
    running: Token | None = None
    occupied: bool = False
    refused: bool = False


class LoopTurns:
    """The turns of all loops whose tokens this processor has in hand."""

    def __init__(self, shutdown: Shutdown) -> None:
        self._shutdown = shutdown
        self._turns: dict[LoopId, LoopTurn] = {}
        self._settled: dict[LoopId, tuple[str, Progress]] = {}

    def __getitem__(self, loop: LoopId) -> LoopTurn:
        """The turn of a loop of which a token is in hand."""
        return self._turns[loop]

    @asynccontextmanager
    async def taken(self, token: Token) -> AsyncGenerator[bool]:
        """Have the loop's turn inside the block; says whether another token had it before.

        There should be no other, but after a reconnect a token can come back while its cancelled
        run is still cleaning up, and duplicates come together here.
        """
        turn = self._turns.setdefault(token.loop, LoopTurn())
        turn.tokens.append(token)
        waited = turn.lock.locked()
        try:
            async with turn.lock:
                yield waited
        finally:
            turn.tokens.remove(token)
            if not turn.tokens:
                del self._turns[token.loop]

    @contextmanager
    def begun(self, subject: Token | Call) -> Generator[None]:
        """Have it known, inside the block, that the run of a token has begun."""
        turn = self._turns[subject.loop] if isinstance(subject, Token) else LoopTurn()
        turn.running = subject if isinstance(subject, Token) else None
        try:
            yield
        finally:
            turn.running, turn.refused = None, False

    def note_put(self, token: Token) -> None:
        """Remember a successor: its ack may get lost with the broker, and it be out of sight."""
        self._settled[token.loop] = token.generation, token.progress

    @property
    def stopping(self) -> bool:
        """Whether no more are taken, and those in hand are the last."""
        return self._shutdown.stopping

    def in_hand(self) -> Claims:
        """The tokens in hand, and how far each has come."""
        return {
            loop: max(token.progress for token in turn.tokens) for loop, turn in self._turns.items()
        }

    def running(self) -> Claims:
        """Those of them whose run has begun, and is not settled."""
        turns = self._turns.items()
        return {loop: turn.running.progress for loop, turn in turns if turn.running is not None}

    def refused(self) -> Collection[LoopId]:
        """The loops whose slot takes no token from us, though none waits there."""
        return [loop for loop, turn in self._turns.items() if turn.refused]

    def settled(self) -> Settled:
        """The last token that was put for each loop: its generation, and how far it had come."""
        return self._settled
