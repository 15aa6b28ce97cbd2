"""Recognise a received token: whether it runs, or its loop's line is elsewhere."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

from scheduler.brokers.contract import AS_LONG_AS_IT_TAKES, Delivery
from scheduler.control.verbs import Endings
from scheduler.errors import Undecodable
from scheduler.processor.knowledge import Knowledge
from scheduler.processor.publishing import PatientPublisher
from scheduler.processor.verification import Verification
from scheduler.protocol.epochs import Position, is_behind, is_void
from scheduler.protocol.tokens import LoopId, Replay, Token
from scheduler.queues.listing import Listing
from scheduler.queues.namespace import Namespace
from scheduler.queues.roll_call import InHand
from scheduler.timing.moments import milliseconds_since_epoch

CLOCKS_DIFFER_BY = timedelta(minutes=1)  # an epoch is the time at which it began
MOST_REMEMBERED = 100_000
"""Loops whose last settled position is known: supervision finds what this misses."""
VOID, SETTLED, JOINED = "void", "settled", "joined"


@dataclass(slots=True)
class LoopTurn:
    """Track the unacked tokens of one loop on this processor, and the one that it runs."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    tokens: list[Token] = field(default_factory=list[Token])
    running: Token | None = None


class LoopTurns:
    """Track the turns of all loops with unacked tokens on this processor, and known epochs.

    Args:
        listing: the roster, as it is followed.
    """

    def __init__(self, listing: Listing) -> None:
        self.learn = listing.learn
        self.known = listing.known
        self._turns: dict[LoopId, LoopTurn] = {}
        self._settled: dict[LoopId, Position] = {}

    def is_void(self, token: Token) -> bool:
        """Return whether a token is acked without a run (R1)."""
        return not isinstance(token, Replay) and is_void(token.epoch, self.known(token.loop))

    async def take(self, token: Token) -> Callable[[], None]:
        """Wait for the loop's turn; return a function that ends it.

        After a reconnect a token can be redelivered while its cancelled run is still cleaning up;
        and the first token of an epoch meets the last run of the one before here.
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

    def begin(self, token: Token) -> None:
        """Mark the run of a token as begun, until its turn ends."""
        self._turns[token.loop].running = token

    def settle(self, token: Token) -> None:
        """Note that the successor of a token was put."""
        if isinstance(token, Replay):
            return
        self._settled.pop(token.loop, None)  # the loops settled last come last
        self._settled[token.loop] = token.position
        if len(self._settled) > MOST_REMEMBERED:
            del self._settled[next(iter(self._settled))]

    def is_behind(self, token: Token) -> bool:
        """Return whether a token, or one with equal progress, was settled here."""
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
        """Return the unacked tokens of a loop, without replays."""
        turn = self._turns.get(loop, LoopTurn())
        return [
            InHand(token.position, token is turn.running)
            for token in turn.tokens
            if not isinstance(token, Replay)
        ]


@dataclass(eq=False)
class Recognition:
    """Apply the rules of `scheduler.protocol.epochs` to received and put tokens."""

    space: Namespace
    knowledge: Knowledge
    verification: Verification
    turns: LoopTurns
    endings: Endings
    publisher: PatientPublisher

    async def why_not(self, delivery: Delivery, token: Token) -> str | None:
        """Return why a token whose turn it is does not run, if so.

        Raises:
            Undecodable: its epoch cannot have begun yet.
            DeliveryLost: another processor has it.
            BrokerError: it could not be decided, and the processor stops.
        """
        if isinstance(token, Replay):
            return None
        if not self.knowledge.current.is_set():
            await self.verification.unless_interrupted(delivery, self.knowledge.current.wait)
        known = self.turns.known(token.loop)
        if is_void(token.epoch, known):
            return VOID
        if token.epoch > known:
            # One of the future would make the loop's true tokens void for long.
            latest = self.space.clock.now() + CLOCKS_DIFFER_BY
            if token.epoch > milliseconds_since_epoch(latest):
                raise Undecodable(f"Its epoch, {token.epoch}, lies in the future.")
        if token.epoch > known or token.former:
            for loop in token.names:
                self.turns.learn(loop, token.epoch)
        if self.turns.is_behind(token):
            return SETTLED
        # A node of a cluster that hung requeues a token of a processor whose connection survives,
        # without notice (seen on 3.10).
        if delivery.redelivered:
            if not await self.verification.is_nobody_before(delivery, token, came_back=True):
                return VOID
            if await self._was_settled(delivery, token):
                return SETTLED
        return await self._joined(delivery, token) if token.first else None

    async def put(self, delivery: Delivery, token: Token, after: Token) -> None:
        """Publish a successor of a token, or its replacement.

        Raises:
            DeliveryLost, BrokerError: it may not be known.
        """
        if token.rests:
            await self.rest(delivery, token)
        else:
            # After a void run only the journal needs to know the loop's progress.
            put = self.space.timers.record if self.turns.is_void(token) else self.space.timers.put
            await self.publisher.insist(
                delivery,
                lambda: put(token, timeout=AS_LONG_AS_IT_TAKES),
                was_taken=lambda: self._was_settled(delivery, after),
            )
        if token is not after:  # else it came too early, and returns to its timer
            self.turns.settle(after)

    async def rest(self, delivery: Delivery, token: Token) -> None:
        """Publish an end of a loop: to the journal, then to the roster."""
        await self.publisher.insist(
            delivery, lambda: self.space.timers.record(token, timeout=AS_LONG_AS_IT_TAKES)
        )
        await self._enter(delivery, token)

    async def _was_settled(self, delivery: Delivery, token: Token) -> bool:
        """Return whether the journal has the successor of a token (R3, R3p)."""
        if (last := await self.verification.successor_of(delivery, token)) is None:
            return False
        # The processor that put it may have died before the roster had it.
        await self._enter(delivery, last)
        return True

    async def _joined(self, delivery: Delivery, first: Token) -> str:
        """R4: Exchange the first token of an epoch for its successor."""
        if (token := await self.verification.exchanged(delivery, first)) is None:
            return VOID
        await self.put(delivery, token, first)
        return JOINED

    async def _enter(self, delivery: Delivery, token: Token) -> None:
        if token.rests:
            await self.publisher.insist(delivery, lambda: self.endings.enter(token))
