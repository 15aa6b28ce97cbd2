"""Publish the successors of a message, confirmed, as a settlement has decided, or park it."""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from scheduler.brokers.contract import AS_LONG_AS_IT_TAKES, Delivery
from scheduler.errors import InvalidArguments, TooLarge, Undecodable
from scheduler.events import Escalated, EscalationHook, MessageParked, SuccessorConfirmed
from scheduler.processor.publishing import PatientPublisher
from scheduler.processor.recognition import Recognition
from scheduler.processor.runs import Run
from scheduler.processor.settlement import Disposition, Parking, Settlement
from scheduler.protocol.calls import Call, placed, retried, spent, task_key
from scheduler.protocol.epochs import Verb
from scheduler.protocol.hatchery import LONGEST
from scheduler.protocol.messages import Message, failed_deliveries, one_line, summary_of
from scheduler.protocol.routing import loop_named_by
from scheduler.protocol.tokens import Act, Ending, LoopId, Replay, State, Token, decode, encode
from scheduler.queues.failed import Reason
from scheduler.queues.heads import Head, Heads
from scheduler.queues.namespace import Namespace
from scheduler.queues.timers import send_again
from scheduler.tasks.context import current_run
from scheduler.tasks.tasks import TaskSpec
from scheduler.user_code import UserCode

HOOK_TIMEOUT = timedelta(seconds=30)


@dataclass(eq=False)
class Order:
    """Keep the notes on the heads of ordered queues; for other tasks, the broker's own count.

    The attempts, delays and crashes of the message at the head are noted in the broker, so that the
    next processor that gets it continues from there.
    """

    heads: Heads
    publisher: PatientPublisher

    async def resume(self, run: Run) -> None:
        """Restore the progress of a redelivered message."""
        message = run.delivery.message
        if not run.task.ordered:
            run.head = Head(begun=failed_deliveries(message))
            return
        run.head = head = await self.heads.of(run.task.name, message)
        if isinstance(call := run.subject, Call):
            first = call.first_failed_at or head.first_failed_at
            attempt = max(call.attempt, head.attempt)
            run.subject = replace(call, attempt=attempt, first_failed_at=first)

    async def begin(self, run: Run) -> None:
        """Note that a run of such a message begins: the next processor knows after a crash."""
        if run.task.ordered:
            await self._note(run, replace(run.head, begun=run.head.begun + 1))

    async def wait(self, run: Run, delay: timedelta, failed_at: datetime) -> datetime:
        """Note that an attempt failed; return when the next one may begin."""
        assert isinstance(call := run.subject, Call)
        due_at, first = failed_at + delay, call.first_failed_at or failed_at
        await self._note(run, Head(call.attempt + 1, due_at=due_at, first_failed_at=first))
        return due_at

    async def end(self, run: Run) -> None:
        """Forget the note: the message is done."""
        await self.heads.forget(run.task.name)

    async def _note(self, run: Run, head: Head) -> None:
        task, message = run.task.name, run.delivery.message
        await self.publisher.insist(
            run.delivery, lambda: self.heads.note(task, message, head, AS_LONG_AS_IT_TAKES)
        )


@dataclass(eq=False)
class Successors:
    """Publish the successors of a processor's runs, and park its messages.

    Attributes:
        hooks: called for each message that is parked; may grow.
    """

    space: Namespace
    recognition: Recognition
    publisher: PatientPublisher
    order: Order
    hooks: Iterable[EscalationHook]

    def __post_init__(self) -> None:
        self._names, self._clock = self.space.app.names, self.space.clock
        self._emit, events = self.space.app.events.emit, self.space.app.events
        self._is_heard = events.listeners_of

    async def perform(self, run: Run, settlement: Settlement) -> datetime | None:
        """Publish everything that the settlement requires.

        Returns:
            Until when the message waits in its place, for another attempt; None: it does not wait
            there.
        """
        if (parking := settlement.park) is not None:
            await self._escalate(run, settlement, parking)
        if (successor := settlement.put) is not None:
            assert isinstance(run.subject, Token)
            await self.recognition.put(run.delivery, successor, run.subject)
            if self._is_heard(SuccessorConfirmed):
                self._emit(SuccessorConfirmed(*run.about))
        if (delay := settlement.retry_in) is not None:
            if run.task.ordered:
                return await self.order.wait(run, delay, self._clock.now())
            await self._retry(run, settlement, delay)
        if (
            run.task.ordered
            and run.delivery.redelivered
            and settlement.disposition is Disposition.ACK
        ):
            await self.order.end(run)
        return None

    async def _retry(self, run: Run, settlement: Settlement, delay: timedelta) -> None:
        """Send the call through the timers of calls.

        The headers of a foreign message may leave no room for those of a retry. A run without some
        of them could be wrong, so the message is parked at once.
        """
        assert isinstance(call := run.subject, Call)

        async def send() -> None:
            now = self._clock.now()
            message = retried(call, due_at=now + delay, failed_at=now)
            # A delay longer than the timers can hold ends too early, and starts again.
            wait = min(delay, LONGEST)
            await send_again(
                self.space.broker, self._names, call.task, message, wait, AS_LONG_AS_IT_TAKES
            )

        try:
            await self.publisher.insist(run.delivery, send)
        except TooLarge:
            assert (parking := settlement.otherwise) is not None
            given_up = settlement._replace(ending=Ending.ESCALATED)
            await self._escalate(run, given_up, parking)
        else:
            self._emit(SuccessorConfirmed(*run.about))

    async def refuse(self, delivery: Delivery, task: TaskSpec, error: Exception) -> None:
        """Park a message that cannot be run."""
        reason, message = _reason_of(error), delivery.message
        paused = reason is Reason.INVALID_ARGUMENTS and await self._suspend(delivery, error)
        if task.reads is not None:
            message = placed(message, delivery.exchange, delivery.routing_key)
        await self._park(delivery, task, message, reason, error)
        brought = delivery.exchange in self._names.token_exchanges
        loop = loop_named_by(delivery.routing_key) if brought else None
        about = loop or LoopId(task.name), None, 1, message.message_id or ""
        await self._announce(Escalated(*about, error=error, paused=paused, reason=reason.value))

    async def _escalate(self, run: Run, settlement: Settlement, parking: Parking) -> None:
        """Park a copy of a run's message, and call the hooks."""
        message = self._copy(run, parking)
        await self._park(run.delivery, run.task, message, Reason(parking.reason), parking.error)
        paused = settlement.put is not None and settlement.put.state is State.PAUSED
        event = Escalated(
            *run.about, error=parking.error, paused=paused, reason=str(parking.reason)
        )
        if settlement.ending is Ending.ESCALATED:
            self._emit(event)
        await self._announce(event)

    async def _suspend(self, delivery: Delivery, error: Exception) -> bool:
        """Pause the loop whose token does not fit its task: the next one would not either.

        Returns:
            Whether there is one.
        """
        if delivery.exchange not in self._names.token_exchanges:
            return False
        token = decode(delivery.message, self._names.namespace)
        if isinstance(token, Replay):
            return False
        act = Act(Verb.PAUSE, self._clock.now())
        paused = replace(token, state=State.PAUSED, reason=one_line(str(error)), act=act)
        await self.recognition.rest(delivery, paused)
        return True

    def _copy(self, run: Run, parking: Parking) -> Message:
        if parking.token is not None:
            return encode(parking.token, self._names.namespace)
        assert isinstance(call := run.subject, Call)
        if parking.reason == "expired":  # this was no attempt
            return placed(call.message, call.exchange, call.routing_key)
        return spent(call, failed_at=self._clock.now())

    async def _park(
        self,
        delivery: Delivery,
        task: TaskSpec,
        message: Message,
        reason: Reason,
        error: Exception,
    ) -> None:
        # The failed exchange knows the keys of tasks, not those of foreign exchanges.
        brought = delivery.exchange in self._names.token_exchanges
        key = delivery.routing_key if brought else task_key(task.name)
        await self.publisher.insist(
            delivery,
            lambda: self.space.failed.park(
                message, key, reason, error, timeout=AS_LONG_AS_IT_TAKES
            ),
        )
        self._emit(MessageParked(key, message.message_id, reason.value, summary_of(error)))

    async def _announce(self, event: Escalated) -> None:
        current_run.set((str(event.loop), event.message_id if event.seq is None else event.seq))
        for hook in self.hooks:
            # In a separate task: a hook that cancels must not cancel the settlement.
            calling = asyncio.create_task(_call_hook(hook, event), name="escalation hook")
            await asyncio.wait([calling])
            error = None if calling.cancelled() else calling.exception()
            if calling.cancelled() or error is not None:
                logging.getLogger(__name__).error(
                    "The escalation hook %r failed", hook, exc_info=error
                )


async def _call_hook(hook: EscalationHook, event: Escalated) -> None:
    async with asyncio.timeout(HOOK_TIMEOUT.total_seconds()):
        with UserCode("the hook"):
            if (awaitable := hook(event)) is not None:
                await awaitable


def _reason_of(error: Exception) -> Reason:
    match error:
        case Undecodable():
            return Reason.UNDECODABLE
        case InvalidArguments():
            return Reason.INVALID_ARGUMENTS
        case _:
            return Reason.BROKEN
