"""Recognise a received token: whether it runs, or its loop's line is elsewhere."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import TypeVar

from scheduler.brokers.contract import AS_LONG_AS_IT_TAKES, Delivery, cancelled
from scheduler.control.first_tokens import joined
from scheduler.control.verbs import Endings
from scheduler.errors import BrokerError, DeliveryLost, StreamTooLong, Undecodable
from scheduler.events import PlaceLost, TokenDelayed
from scheduler.processor.knowledge import Knowledge, LastNote
from scheduler.processor.publishing import LONGEST_PAUSE, REPORT_AFTER, PatientPublisher
from scheduler.processor.shutdown import Shutdown
from scheduler.protocol.calls import Call
from scheduler.protocol.epochs import Position, awaited, is_behind, is_void, was_settled
from scheduler.protocol.tokens import LoopId, Replay, Token
from scheduler.queues.journal import MARGIN, LoopRecord, born_at, look_backs
from scheduler.queues.listing import Listing
from scheduler.queues.namespace import Namespace
from scheduler.queues.roll_call import InHand
from scheduler.timing.durations import SECOND
from scheduler.timing.moments import milliseconds_since_epoch
from scheduler.timing.pacing import backoff

FIRST_PAUSE = timedelta(milliseconds=50)
CLOCKS_DIFFER_BY = timedelta(minutes=1)  # an epoch is the time at which it began
SHARED = timedelta(minutes=10)  # shorter reads do not wait for longer ones
MOST_REMEMBERED = 100_000
"""Loops whose last settled position is known: supervision finds what this misses."""
R = TypeVar("R")
VOID, SETTLED, JOINED = "void", "settled", "joined"


class Interrupted(BrokerError):
    """The processor stops."""


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

    def begin(self, subject: Token | Call) -> None:
        """Mark the run of a token as begun, until its turn ends."""
        if isinstance(subject, Token):
            self._turns[subject.loop].running = subject

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
    turns: LoopTurns
    endings: Endings
    publisher: PatientPublisher
    shutdown: Shutdown

    def __post_init__(self) -> None:
        self._clock, self._emit = self.space.clock, self.space.app.events.emit

    async def why_not(self, delivery: Delivery, token: Token) -> str | None:
        """Return why a token whose turn it is does not run, if so.

        Raises:
            Undecodable: its epoch cannot have begun yet.
            DeliveryLost: another processor has it.
            BrokerError: it could not be decided, and the processor stops.
        """
        if isinstance(token, Replay):
            return None
        if not self.knowledge.is_current:
            await self._unless_interrupted(delivery, self.knowledge.current)
        # An epoch of the future would make the loop's true tokens void for long.
        known = self.turns.known(token.loop)
        if token.epoch > known:
            latest = milliseconds_since_epoch(self._clock.now() + CLOCKS_DIFFER_BY)
            if token.epoch > latest:
                raise Undecodable(f"Its epoch, {token.epoch}, lies in the future.")
        elif is_void(token.epoch, known):
            return VOID
        if token.epoch > known or token.former:
            for loop in token.names:
                self.turns.learn(loop, token.epoch)
        if self.turns.is_behind(token):
            return SETTLED
        # A node of a cluster that hung requeues a token of a processor whose connection survives,
        # without notice (seen on 3.10).
        came_back = delivery.redelivered
        if came_back and not await self._is_nobody_before(delivery, token, came_back=True):
            return VOID
        if came_back and await self._was_settled(delivery, token):
            return SETTLED
        return await self._exchanged(delivery, token) if token.first else None

    async def put(self, delivery: Delivery, token: Token, after: Token) -> None:
        """Publish a successor of a token, or its replacement.

        Raises:
            DeliveryLost, BrokerError: it may not be known.
        """
        if token.rests:
            await self.rest(delivery, token)
        else:
            # After a void run only the journal needs to know the loop's progress.
            put = self.space.timers.tell if self.turns.is_void(token) else self.space.timers.put
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
            delivery, lambda: self.space.timers.tell(token, timeout=AS_LONG_AS_IT_TAKES)
        )
        await self._enter(delivery, token)

    async def _enter(self, delivery: Delivery, token: Token) -> None:
        if token.rests:
            await self.publisher.insist(delivery, lambda: self.endings.enter(token))

    async def _was_settled(self, delivery: Delivery, token: Token) -> bool:
        """Return whether the journal has the successor of a token (R3, R3p)."""
        came = token.due_at if token.act is None else min(token.due_at, token.act.at)
        heard = await self._unless_interrupted(
            delivery, partial(self._heard_since, delivery, token.loop, came - MARGIN)
        )
        if not was_settled(token.position, heard.positions):
            return False
        # The processor that put it may have died before the roster had it.
        await self._enter(delivery, heard.furthest[token.epoch])
        return True

    async def _exchanged(self, delivery: Delivery, first: Token) -> str:
        """R4: Exchange the first token of an epoch for its successor."""
        if not await self._is_nobody_before(delivery, first):
            return VOID
        is_start = first.epoch == first.life
        heard = LoopRecord() if is_start else await self._history(delivery, first)
        token = joined(first, heard, await self.knowledge.entry_of(first))
        if self.turns.is_void(first):
            return VOID
        await self.put(delivery, token, first)
        if not is_start and heard.lacks_place_of(first):
            self._emit(PlaceLost(first.loop))
        return JOINED

    async def _is_nobody_before(
        self, delivery: Delivery, token: Token, *, came_back: bool = False
    ) -> bool:
        """Wait until all processors know its epoch, and none is in an earlier run.

        Returns:
            Whether it is still valid.
        """
        told_at, loops = self._clock.now(), token.names
        for pause in backoff(FIRST_PAUSE, SECOND, jitter=0):
            answers = await self._unless_interrupted(
                delivery, lambda: self.space.roll_call.ask_all(dict.fromkeys(loops, token.epoch))
            )
            for loop, epoch in answers.known.items():
                self.turns.learn(loop, epoch)
            if self.turns.is_void(token):
                return False
            said = [answers.of(loop, token.epoch) for loop in loops]
            others = {
                other for each in said for other in awaited(token.epoch, each, came_back=came_back)
            }
            if not others:
                return True
            if self._clock.now() - told_at >= REPORT_AFTER:
                told_at = self._clock.now()
                named = ", ".join(sorted(others))
                reason = f"waiting for older runs, or for their absence to be confirmed, by {named}"
                self._emit(TokenDelayed(delivery.routing_key, reason))
            await self.shutdown.pause(delivery, pause)
        raise AssertionError("the loop is endless")

    async def _history(self, delivery: Delivery, first: Token) -> LoopRecord:
        """Read the history of its loop in this life, as far back as needed."""
        heard = LoopRecord()
        noted = await self._unless_interrupted(delivery, lambda: self.knowledge.noted(first))
        for since in self._look_backs(first, noted):
            heard = LoopRecord()
            for loop in first.names:
                past = await self._unless_interrupted(
                    delivery, partial(self._heard_since, delivery, loop, since)
                )
                # Old code may have started a loop of an old name again, in another life. If the
                # roster was lost, the life is unknown: it is 0.
                for token in past.furthest.values():
                    if first.life in (0, token.life):
                        heard.note(replace(token, loop=first.loop))
            if noted is not None:
                heard.note(noted[0])
            if heard.has_line(first.life):
                break
        return heard

    def _look_backs(self, first: Token, noted: LastNote | None) -> tuple[datetime | None, ...]:
        if noted is not None:
            return (noted[1] - MARGIN,)
        born = born_at(first.life)
        return *(max(each, born) for each in look_backs(first.schedule, self._clock)), born

    async def _heard_since(
        self, delivery: Delivery, loop: LoopId, since: datetime | None
    ) -> LoopRecord:
        journal = self.space.journal
        if since is not None and self._clock.now() - since <= SHARED:
            with suppress(StreamTooLong):
                return await journal.heard_of(loop, since=since)
        return await journal.heard_for_long(
            loop,
            since=since,
            tell=lambda reason: self._emit(TokenDelayed(delivery.routing_key, reason)),
        )

    async def _unless_interrupted(self, delivery: Delivery, ask: Callable[[], Awaitable[R]]) -> R:
        """Retry a request as long as the delivery may run here."""
        for pause in backoff(FIRST_PAUSE, LONGEST_PAUSE, jitter=0):
            asking = asyncio.ensure_future(ask())
            ends = [asking, delivery.lost, self.shutdown.begun]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                await cancelled(asking)
                raise DeliveryLost if delivery.lost.done() else Interrupted
            try:
                return asking.result()
            except BrokerError as error:
                self._emit(TokenDelayed(delivery.routing_key, str(error)))
            await self.shutdown.pause(delivery, pause)
        raise AssertionError("the loop is endless")
