"""Recognise a received token: whether it runs, or its loop's line is elsewhere; put its successor.

A message that must not be lost is published until it is confirmed, or until its delivery is lost.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

from scheduler.brokers.contract import AS_LONG_AS_IT_TAKES, Delivery
from scheduler.control.verbs import Endings
from scheduler.errors import BrokerError, DeliveryLost, Undecodable
from scheduler.events import Emit, SettlementDelayed
from scheduler.processor.knowledge import Knowledge
from scheduler.processor.shutdown import Shutdown
from scheduler.processor.verification import REPORT_AFTER, Verification
from scheduler.protocol.epochs import Position, is_behind, is_void
from scheduler.protocol.tokens import LoopId, Replay, Token
from scheduler.queues.listing import Listing
from scheduler.queues.namespace import Namespace
from scheduler.queues.roll_call import InHand
from scheduler.timing.moments import milliseconds_since_epoch
from scheduler.timing.pacing import backoff

CLOCKS_DIFFER_BY = timedelta(minutes=1)  # an epoch is the time at which it began
MOST_REMEMBERED = 100_000
"""Loops whose last settled position is known: supervision finds what this misses."""
VOID, SETTLED, JOINED = "void", "settled", "joined"
LAST_S = 3.0  # for what is published after the grace: less than the processor waits for that
SILENCE = "the broker does not confirm: it may be blocked by a memory or disk alarm."


class PatientPublisher:
    """Publish for deliveries that wait for it to be acked."""

    def __init__(self, shutdown: Shutdown, emit: Emit) -> None:
        self._shutdown = shutdown
        self._emit = emit
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[asyncio.Timeout, tuple[Delivery, float]] = {}
        self._reporting: asyncio.TimerHandle | None = None
        shutdown.aborted.add_done_callback(self._give_up_all)

    async def insist(
        self,
        delivery: Delivery,
        publish: Callable[[], Awaitable[object]],
        *,
        was_taken: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        """Publish until it is confirmed, or the delivery is lost.

        Args:
            was_taken: asked before it is published again: the broker may have queued an unconfirmed
                message (R3p).

        Raises:
            DeliveryLost: the broker has redelivered the message.
            BrokerError: not confirmed yet, and the wait was cancelled.
        """
        pauses: Iterator[float] | None = None
        while True:
            if delivery.lost.done():
                raise DeliveryLost
            try:
                if pauses is None or was_taken is None or not await was_taken():
                    await self._confirmed(delivery, publish)
                return
            except DeliveryLost:
                raise
            except BrokerError as error:
                if delivery.lost.done():
                    raise DeliveryLost from None
                if self._shutdown.aborted.done():
                    raise
                pauses = pauses or backoff(jitter=0)
                pause, reason = next(pauses), str(error)
                next_in = timedelta(seconds=pause)
                self._emit(SettlementDelayed(delivery.routing_key, reason, next_in))
            await asyncio.wait([delivery.lost], timeout=pause)

    async def _confirmed(
        self, delivery: Delivery, publish: Callable[[], Awaitable[object]]
    ) -> None:
        """Wait without a limit: a message that is published twice may be queued twice."""
        limit = asyncio.timeout(None)
        give_up = partial(expire, limit)
        try:
            async with limit:
                self._waiting[limit] = delivery, self._loop.time()
                if self._reporting is None:
                    self._report()
                delivery.lost.add_done_callback(give_up)
                if self._shutdown.aborted.done():  # the run ended with the cancellation
                    limit.reschedule(self._loop.time() + LAST_S)
                await publish()
        except TimeoutError:
            if not limit.expired():
                raise
            raise DeliveryLost from None
        finally:
            delivery.lost.remove_done_callback(give_up)
            del self._waiting[limit]

    def _report(self) -> None:
        """Report long unconfirmed messages, while there are any."""
        loop, self._reporting = self._loop, None
        while self._waiting:
            limit, (delivery, since) = next(iter(self._waiting.items()))
            if (report_at := since + REPORT_AFTER.total_seconds()) > loop.time():
                self._reporting = loop.call_at(report_at, self._report)
                return
            self._emit(SettlementDelayed(delivery.routing_key, SILENCE, REPORT_AFTER))
            del self._waiting[limit]
            self._waiting[limit] = delivery, loop.time()

    def _give_up_all(self, _: object) -> None:
        for limit in self._waiting:
            expire(limit)


def expire(limit: asyncio.Timeout, _: object = None) -> None:
    """Cancel what waits inside the limit, unless it has ended."""
    with suppress(RuntimeError):
        limit.reschedule(0)


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
                was_taken=lambda: self._was_settled(delivery, after, has_run=True),
            )
        if not is_behind(token.position, after.position):  # else it returns to its timers
            self.turns.settle(after)

    async def rest(self, delivery: Delivery, token: Token) -> None:
        """Publish an end of a loop: to the journal, then to the roster."""
        await self.publisher.insist(
            delivery, lambda: self.space.timers.record(token, timeout=AS_LONG_AS_IT_TAKES)
        )
        await self._enter(delivery, token)

    async def _was_settled(
        self, delivery: Delivery, token: Token, *, has_run: bool = False
    ) -> bool:
        """Return whether the journal has the successor of a token (R3, R3p)."""
        last = await self.verification.successor_of(delivery, token, has_run=has_run)
        if last is None:
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
