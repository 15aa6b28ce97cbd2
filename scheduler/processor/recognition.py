"""What a token is worth that comes: whether it is run, or its loop's line is elsewhere."""

import asyncio
import math
from datetime import datetime, timedelta

from scheduler.brokers.cancellation import cancelled
from scheduler.brokers.contract import SETTLEMENT_TIMEOUT, Delivery
from scheduler.errors import BrokerError, DeliveryLost
from scheduler.events import Connected, Emit, Event, LoopRepaired, SettlementDelayed
from scheduler.processor.joining import joined
from scheduler.processor.knowledge import Knowledge
from scheduler.processor.loop_turns import LoopTurns
from scheduler.processor.publishing import REPORT_AFTER, PatientPublisher
from scheduler.processor.shutdown import Shutdown
from scheduler.protocol.epochs import awaited, was_settled
from scheduler.protocol.tokens import State, Token
from scheduler.queues.hatchery import Hatchery
from scheduler.queues.journal import MARGIN, Heard, Journal, look_backs
from scheduler.queues.roll_call import RollCall
from scheduler.tasks.tasks import TaskSpec
from scheduler.timing.backoff import backoff
from scheduler.timing.clock import Clock
from scheduler.timing.durations import SECOND

# A broker that was away may have handed a token on without noting it; then it does so once more,
# after its dead_letter_worker_publisher_confirm_timeout of 180 s.
DUPLICATES_EXPECTED_S = 200.0
FIRST_PAUSE = timedelta(milliseconds=50)
VOID, SETTLED, JOINED = "void", "settled", "joined"


class Interrupted(BrokerError):
    """The processor stops."""


class Recognition:
    """Keeps the rules of `scheduler.protocol.epochs` for whoever receives a token."""

    def __init__(
        self,
        knowledge: Knowledge,
        turns: LoopTurns,
        journal: Journal,
        roll_call: RollCall,
        hatchery: Hatchery,
        publisher: PatientPublisher,
        shutdown: Shutdown,
        clock: Clock,
        emit: Emit,
    ) -> None:
        self._knowledge = knowledge
        self._turns = turns
        self._journal = journal
        self._roll_call = roll_call
        self._hatchery = hatchery
        self._publisher = publisher
        self._shutdown = shutdown
        self._clock = clock
        self._emit = emit
        self._duplicates_until = -math.inf

    def hear(self, event: Event) -> None:
        """Learn that the broker was away; to be called with each event."""
        if isinstance(event, Connected):  # anew: the first time is not an event
            self._duplicates_until = asyncio.get_running_loop().time() + DUPLICATES_EXPECTED_S

    async def why_not(self, delivery: Delivery, task: TaskSpec, token: Token) -> str | None:
        """Why a token whose turn it is is not run, if it is not.

        Raises:
            DeliveryLost: somebody else has it.
            BrokerError: it could not be found out, and the processor stops.
        """
        if token.state is State.REPLAY:
            return None
        await self._until_current(delivery)
        self._turns.learn(token.loop, token.epoch)
        if self._turns.is_void(token):
            return VOID
        if self._may_be_settled(delivery) and await self._was_settled(delivery, token):
            return SETTLED
        return await self._exchanged(delivery, task, token) if token.first else None

    async def _until_current(self, delivery: Delivery) -> None:
        """P0: wait until all epochs are known, for as long as the delivery is ours."""
        if self._knowledge.is_current:
            return
        current = asyncio.create_task(self._knowledge.current())
        ends = [current, delivery.lost, self._shutdown.begun]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if not current.done():
            await cancelled(current)
            raise DeliveryLost if delivery.lost.done() else Interrupted

    def _may_be_settled(self, delivery: Delivery) -> bool:
        return delivery.redelivered or asyncio.get_running_loop().time() < self._duplicates_until

    async def _was_settled(self, delivery: Delivery, token: Token) -> bool:
        """R3: whether its successor was put."""
        came = token.due_at if token.act is None else min(token.due_at, token.act.at)
        heard = await self._heard(delivery, token, came - MARGIN)
        return was_settled(token.position, heard.positions)

    async def _exchanged(self, delivery: Delivery, task: TaskSpec, first: Token) -> str:
        """R4: have the line go on with what the first token of its epoch is exchanged for."""
        if not await self._is_nobody_before(delivery, first):
            return VOID
        heard = await self._history(delivery, first)
        token, was_parked = joined(first, heard, task.policy, self._clock.now())
        await self._publisher.insist(
            delivery, lambda: self._hatchery.put(token, timeout=SETTLEMENT_TIMEOUT)
        )
        if was_parked:
            detail = f"tick {token.seq - 1} is parked: it goes on with the next"
            self._emit(LoopRepaired(token.loop, "parked", detail))
        return JOINED

    async def _is_nobody_before(self, delivery: Delivery, first: Token) -> bool:
        """Wait until all processors know its epoch, and none is in an older run.

        Returns:
            Whether it has not become void meanwhile.
        """
        told_at = self._clock.now()
        for pause in backoff(FIRST_PAUSE, SECOND, jitter=0):
            answers = await self._publisher.insist(
                delivery, lambda: self._roll_call.ask_all({first.loop: first.epoch})
            )
            for loop, epoch in answers.known.items():
                self._turns.learn(loop, epoch)
            if self._turns.is_void(first):
                return False
            if not (others := awaited(first.epoch, answers.of(first.loop, first.epoch))):
                return True
            if delivery.lost.done():
                raise DeliveryLost
            if self._shutdown.stopping:
                break
            if self._clock.now() - told_at >= REPORT_AFTER:
                told_at = self._clock.now()
                reason = f"it waits for older runs, or to hear of none, of: {', '.join(others)}"
                self._emit(SettlementDelayed(delivery.routing_key, reason, REPORT_AFTER))
            await self._shutdown.pause(delivery, pause)
        raise Interrupted

    async def _history(self, delivery: Delivery, first: Token) -> Heard:
        """What the journal tells of its loop since its creator knew, or as far back as it takes."""
        if first.epoch == first.life:
            return Heard()
        if first.known_until is not None:
            return await self._heard(delivery, first, first.known_until - MARGIN)
        heard = Heard()
        for since in look_backs([first.schedule], self._clock):
            heard = await self._heard(delivery, first, since)
            if heard.has_line(first.life):
                break
        return heard

    async def _heard(self, delivery: Delivery, token: Token, since: datetime | None) -> Heard:
        heard = await self._publisher.insist(
            delivery, lambda: self._journal.heard([token.loop], since=since)
        )
        return heard[token.loop]
