"""What comes after a run, published and confirmed, as its settlement has decided."""

from dataclasses import replace
from datetime import datetime, timedelta

from scheduler.brokers.contract import AS_LONG_AS_IT_TAKES, Broker
from scheduler.errors import TooLarge
from scheduler.events import Emit, HatchedEarly, SuccessorConfirmed
from scheduler.processor.ends import Ends
from scheduler.processor.escalation import Escalation
from scheduler.processor.loop_turns import LoopTurns
from scheduler.processor.order import Order
from scheduler.processor.publishing import PatientPublisher
from scheduler.processor.punctuality import Punctuality
from scheduler.processor.recognition import Recognition
from scheduler.processor.runs import NO_TIME, Run
from scheduler.processor.settlement import Disposition, Settlement
from scheduler.protocol.calls import Call, retried
from scheduler.protocol.hatchery import LONGEST
from scheduler.protocol.messages import Message, taken_out_by
from scheduler.protocol.tokens import Ending, Token
from scheduler.protocol.topology import Names
from scheduler.queues.timers import Timers, send_again, waits_in_legs
from scheduler.timing.clock import Clock


class Successors:
    """Publishes what the settlements of a processor's runs decide."""

    def __init__(
        self,
        broker: Broker,
        names: Names,
        timers: Timers,
        turns: LoopTurns,
        recognition: Recognition,
        ends: Ends,
        publisher: PatientPublisher,
        escalation: Escalation,
        order: Order,
        punctuality: Punctuality,
        clock: Clock,
        emit: Emit,
    ) -> None:
        self._broker = broker
        self._names = names
        self._timers = timers
        self._turns = turns
        self._recognition = recognition
        self._ends = ends
        self._publisher = publisher
        self._escalation = escalation
        self._order = order
        self._punctuality = punctuality
        self._clock = clock
        self._emit = emit

    async def perform(self, run: Run, settlement: Settlement) -> datetime | None:
        """Publish what the settlement asks for.

        Returns:
            Until when the message waits in its place, for another attempt; None: it has none there.
        """
        if (parking := settlement.park) is not None:
            await self._escalation.escalate(run, settlement, parking)
        if (successor := settlement.put) is not None:
            await self._insist_on(run, successor)
            self._emit(SuccessorConfirmed(*run.about))
        if (delay := settlement.retry_in) is not None:
            if run.task.ordered:
                return await self._order.wait(run, delay, self._clock.now())
            await self._retry(run, settlement, delay)
        if settlement.disposition is Disposition.ACK:
            await self._order.end(run)
        return None

    async def go_back(self, run: Run) -> bool:
        """Put a message that came too early back into its timers; return whether it was early."""
        early = run.may_begin_at - self._clock.now()
        if early <= NO_TIME:
            return False
        if not (isinstance(run.subject, Token) and waits_in_legs(run.subject)):
            self._emit(HatchedEarly(*run.about, *_taken_out_by(run), early))
        await self._punctuality.until_next_round(run)
        if isinstance(subject := run.subject, Token):
            await self._insist_on(run, subject)
        else:
            await self._publisher.insist(run.delivery, lambda: self._wait_on(run, subject))
        return True

    async def _wait_on(self, run: Run, call: Call) -> None:
        rest = max(run.may_begin_at - self._clock.now(), NO_TIME)
        await self._send_again(call.task, call.message, rest)

    async def _insist_on(self, run: Run, token: Token) -> None:
        assert isinstance(subject := run.subject, Token)
        if token.rests:
            await self._ends.rest(run.delivery, token)
        else:
            # After a void run only the journal needs to hear how far its loop came.
            put = self._timers.tell if self._turns.is_void(token) else self._timers.put
            await self._publisher.insist(
                run.delivery,
                lambda: put(token, timeout=AS_LONG_AS_IT_TAKES),
                was_taken=lambda: self._recognition.was_settled(run.delivery, subject),
            )
        if token is not subject:  # else it came too early, and goes back to its timer
            self._turns.settle(subject)

    async def _retry(self, run: Run, settlement: Settlement, delay: timedelta) -> None:
        """Send the call through the timers of calls.

        A message of somebody else may have so many headers that those of a retry find no room. To
        run the task on less than was sent is not for us to decide, so it is parked at once.
        """
        assert isinstance(call := run.subject, Call)
        try:
            await self._publisher.insist(run.delivery, lambda: self._send_retry(call, delay))
        except TooLarge:
            assert (parking := settlement.otherwise) is not None
            given_up = replace(settlement, ending=Ending.ESCALATED)
            await self._escalation.escalate(run, given_up, parking)
        else:
            self._emit(SuccessorConfirmed(*run.about))

    async def _send_retry(self, call: Call, delay: timedelta) -> None:
        now = self._clock.now()
        message = retried(call, due_at=now + delay, failed_at=now)
        await self._send_again(call.task, message, delay)

    async def _send_again(self, task: str, message: Message, delay: timedelta) -> None:
        # What is longer than the timers can hold comes back in between, too early.
        delay = min(delay, LONGEST)
        await send_again(self._broker, self._names, task, message, delay, AS_LONG_AS_IT_TAKES)


def _taken_out_by(run: Run) -> tuple[str, str]:
    reason, queue = taken_out_by(run.delivery.message)
    return ("unrouted" if run.is_rerouted else reason or "early"), queue
