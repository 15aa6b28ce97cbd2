"""Verify a token that may not be alone: ask the other processors, and the journal.

A redelivered token may have been settled by another processor (R3), and the first token of an epoch
may meet the last run of the epoch before (R4).
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import TypeVar

from scheduler.brokers.contract import Delivery, cancelled
from scheduler.control.first_tokens import joined
from scheduler.errors import BrokerError, DeliveryLost
from scheduler.events import PlaceLost, TokenDelayed
from scheduler.processor.knowledge import Knowledge, LastNote
from scheduler.processor.shutdown import Shutdown
from scheduler.protocol.epochs import awaited, is_void, was_settled
from scheduler.protocol.tokens import LoopId, Token
from scheduler.queues.journal import MARGIN, LoopRecord, born_at, look_backs
from scheduler.queues.namespace import Namespace
from scheduler.timing.durations import SECOND
from scheduler.timing.pacing import backoff

REPORT_AFTER = timedelta(seconds=30)
NEAR = timedelta(minutes=10)
R = TypeVar("R")


class Interrupted(BrokerError):
    """The processor stops."""


@dataclass(eq=False)
class Verification:
    """Ask about a token, as long as its delivery may run here."""

    space: Namespace
    knowledge: Knowledge
    shutdown: Shutdown

    def __post_init__(self) -> None:
        self._clock, self._emit = self.space.clock, self.space.app.events.emit
        self._listing = self.space.roster.listing

    async def successor_of(
        self, delivery: Delivery, token: Token, *, has_run: bool = False
    ) -> Token | None:
        """Return the last token that the journal has of a line after a token (R3, R3p).

        None: it was not settled.

        Args:
            has_run: it is about to be settled here, also while the processor stops.
        """
        came = token.due_at if token.act is None else min(token.due_at, token.act.at)
        came = min(came, self._clock.now())  # too early, if it returned to its timers
        heard = await self.unless_interrupted(
            delivery,
            partial(self._heard_since, delivery, token.loop, came - MARGIN),
            by=self.shutdown.aborted if has_run else self.shutdown.begun,
        )
        is_settled = was_settled(token.position, heard.positions)
        return heard.furthest[token.epoch] if is_settled else None

    async def exchanged(self, delivery: Delivery, first: Token) -> Token | None:
        """R4: Return the successor of the first token of an epoch; None: it is void."""
        if not await self.is_nobody_before(delivery, first):
            return None
        is_start = first.epoch == first.life
        heard = LoopRecord() if is_start else await self._history(delivery, first)
        token = joined(first, heard, await self.knowledge.entry_of(first))
        if self._is_void(first):
            return None
        if not is_start and heard.lacks_place_of(first):
            self._emit(PlaceLost(first.loop))
        return token

    async def is_nobody_before(
        self, delivery: Delivery, token: Token, *, came_back: bool = False
    ) -> bool:
        """Wait until all processors know its epoch, and none is in an earlier run.

        Returns:
            Whether it is still valid.
        """
        told_at, loops = self._clock.now(), token.names
        for pause in backoff(last=SECOND, jitter=0):
            answers = await self.unless_interrupted(
                delivery, lambda: self.space.roll_call.ask_all(dict.fromkeys(loops, token.epoch))
            )
            for loop, epoch in answers.known.items():
                self._listing.learn(loop, epoch)
            if self._is_void(token):
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

    async def unless_interrupted(
        self,
        delivery: Delivery,
        ask: Callable[[], Awaitable[R]],
        *,
        by: asyncio.Future[None] | None = None,
    ) -> R:
        """Retry a request as long as the delivery may run here.

        Args:
            by: the step of stopping that ends it; None: the first.
        """
        ends = [delivery.lost, by or self.shutdown.begun]
        for pause in backoff(jitter=0):
            asking = asyncio.ensure_future(ask())
            await asyncio.wait([asking, *ends], return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                await cancelled(asking)
                raise DeliveryLost if delivery.lost.done() else Interrupted
            try:
                return asking.result()
            except BrokerError as error:
                self._emit(TokenDelayed(delivery.routing_key, str(error)))
            await asyncio.wait(ends, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
        raise AssertionError("the loop is endless")

    async def _history(self, delivery: Delivery, first: Token) -> LoopRecord:
        """Read the history of its loop in this life, as far back as needed."""
        heard = LoopRecord()
        noted = await self.unless_interrupted(delivery, lambda: self.knowledge.noted(first))
        for since in self._look_backs(first, noted):
            heard = LoopRecord()
            for loop in first.names:
                past = await self.unless_interrupted(
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
        return await self.space.journal.heard_of(
            loop,
            since=since,
            is_near=since is not None and self._clock.now() - since <= NEAR,
            on_delay=lambda reason: self._emit(TokenDelayed(delivery.routing_key, reason)),
        )

    def _is_void(self, token: Token) -> bool:
        return is_void(token.epoch, self._listing.known(token.loop))
