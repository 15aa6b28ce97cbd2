"""What comes after a run, published and confirmed, as its settlement has decided."""

from dataclasses import replace
from datetime import timedelta

from scheduler.brokers.contract import SETTLEMENT_TIMEOUT, Broker
from scheduler.errors import TooLarge
from scheduler.events import Emit, SuccessorConfirmed, TokenOvertaken
from scheduler.processor.escalation import Escalation
from scheduler.processor.loop_turns import LoopTurns
from scheduler.processor.publishing import PatientPublisher
from scheduler.processor.runs import Run
from scheduler.processor.settlement import Disposition, Settlement
from scheduler.processor.shutdown import Shutdown
from scheduler.protocol.calls import Call, retried
from scheduler.protocol.tokens import Ending, Token
from scheduler.protocol.topology import Names
from scheduler.queues.delays import send_again
from scheduler.queues.hatchery import Hatchery
from scheduler.timing.clock import Clock


class Successors:
    """Publishes what the settlements of a processor's runs decide."""

    def __init__(
        self,
        broker: Broker,
        names: Names,
        hatchery: Hatchery,
        turns: LoopTurns,
        publisher: PatientPublisher,
        escalation: Escalation,
        shutdown: Shutdown,
        clock: Clock,
        emit: Emit,
    ) -> None:
        self._broker = broker
        self._names = names
        self._hatchery = hatchery
        self._turns = turns
        self._publisher = publisher
        self._escalation = escalation
        self._shutdown = shutdown
        self._clock = clock
        self._emit = emit
        self._held_back: dict[tuple[str, str], int] = {}

    async def perform(self, run: Run, settlement: Settlement) -> Disposition:
        """Publish what the settlement asks for; returns what to do with the delivery then."""
        if (parking := settlement.park) is not None:
            await self._escalation.escalate(run, settlement, parking)
        if (successor := settlement.put) is not None:
            await self.put(run, successor)
            self._emit(SuccessorConfirmed(*run.about))
        disposition = settlement.disposition
        if (delay := settlement.retry_in) is not None:
            disposition = await self._retry(run, settlement, delay)
        if disposition is Disposition.ACK:
            self._held_back.pop(_place_of(run), None)
        return disposition

    async def put(self, run: Run, token: Token) -> None:
        """Put a token into the slot of the run's loop, confirmed."""
        await self._publisher.insist(run.delivery, lambda: self._put(run, token))

    def attempts_of(self, task: str, call: Call) -> int:
        """How many attempts of a call that is held back in its queue have failed here."""
        return self._held_back.get((task, call.id), 0)

    async def _retry(self, run: Run, settlement: Settlement, delay: timedelta) -> Disposition:
        """Send the call through the delay ladder; one of an ordered task waits in its place.

        A message of somebody else may have so many headers that those of a retry find no room. To
        run the task on less than was sent is not for us to decide, so it is parked at once.
        """
        call = run.subject
        assert isinstance(call, Call)
        if run.task.ordered:
            self._held_back[_place_of(run)] = call.attempt + 1
            await self._shutdown.pause(run.delivery, delay.total_seconds())
            return Disposition.REQUEUE
        try:
            await self._publisher.insist(run.delivery, lambda: self._send_again(call, delay))
        except TooLarge:
            assert (parking := settlement.otherwise) is not None
            given_up = replace(settlement, ending=Ending.ESCALATED)
            await self._escalation.escalate(run, given_up, parking)
        else:
            self._emit(SuccessorConfirmed(*run.about))
        return Disposition.ACK

    async def _send_again(self, call: Call, delay: timedelta) -> None:
        now = self._clock.now()
        message = retried(call, due_at=now + delay, failed_at=now)
        await send_again(self._broker, self._names, call.task, message, delay, SETTLEMENT_TIMEOUT)

    async def _put(self, run: Run, token: Token) -> None:
        assert isinstance(run.subject, Token)
        with self._turns.putting(run.subject):
            waiting = await self._hatchery.put(token, timeout=SETTLEMENT_TIMEOUT)
        if waiting is not token:
            self._emit(TokenOvertaken(*run.about, by=waiting))


def _place_of(run: Run) -> tuple[str, str]:
    return run.task.name, run.about[-1]
