"""What cannot be run, or has failed for the last time: parked with the reason, and told."""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta

from scheduler.brokers.contract import AS_LONG_AS_IT_TAKES, Delivery
from scheduler.errors import InvalidArguments, Undecodable
from scheduler.events import Emit, Escalated, EscalationHook, MessageParked
from scheduler.processor.ends import Ends
from scheduler.processor.publishing import PatientPublisher
from scheduler.processor.runs import Run
from scheduler.processor.settlement import Parking, Settlement
from scheduler.protocol.calls import Call, placed, spent, task_key
from scheduler.protocol.epochs import Verb
from scheduler.protocol.messages import Message, one_line, summary_of
from scheduler.protocol.tokens import Act, Ending, LoopId, State, decode, encode
from scheduler.protocol.topology import Names, loop_named_by
from scheduler.queues.failed import FailedQueues, Reason
from scheduler.tasks.context import current_run
from scheduler.tasks.tasks import TaskSpec
from scheduler.timing.clock import Clock
from scheduler.user_code import UserCode

HOOK_TIMEOUT = timedelta(seconds=30)


class Escalation:
    """Parks the messages of a processor.

    Args:
        hooks: called for each message that is parked; may grow.
    """

    def __init__(
        self,
        names: Names,
        failed: FailedQueues,
        ends: Ends,
        publisher: PatientPublisher,
        hooks: Iterable[EscalationHook],
        clock: Clock,
        emit: Emit,
    ) -> None:
        self._names = names
        self._failed = failed
        self._ends = ends
        self._publisher = publisher
        self._hooks = hooks
        self._clock = clock
        self._emit = emit

    async def refuse(self, delivery: Delivery, task: TaskSpec, error: Exception) -> None:
        """Park a message that cannot be run."""
        reason, message = _reason_of(error), delivery.message
        paused = reason is Reason.INVALID_ARGUMENTS and await self._suspend(delivery, error)
        if task.reads is not None:
            message = placed(message, delivery.exchange, delivery.routing_key)
        await self._park(delivery, task, message, reason, error)
        loop = self._names.bring_tokens(delivery.exchange) and loop_named_by(delivery.routing_key)
        about = loop or LoopId(task.name), None, 0, message.message_id or ""
        await self._announce(Escalated(*about, error=error, paused=paused, reason=reason.value))

    async def escalate(self, run: Run, settlement: Settlement, parking: Parking) -> None:
        """Park a copy of a run's message, and tell the hooks."""
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
        if not self._names.bring_tokens(delivery.exchange):
            return False
        token = decode(delivery.message, self._names.namespace)
        if token.state is State.REPLAY:
            return False
        act = Act(Verb.PAUSE, self._clock.now())
        paused = replace(token, state=State.PAUSED, reason=one_line(str(error)), act=act)
        await self._ends.rest(delivery, paused)
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
        # The failed exchange knows our keys, not those of somebody else's exchange.
        brought = self._names.bring_tokens(delivery.exchange)
        key = delivery.routing_key if brought else task_key(task.name)
        await self._publisher.insist(
            delivery,
            lambda: self._failed.park(message, key, reason, error, timeout=AS_LONG_AS_IT_TAKES),
        )
        self._emit(MessageParked(key, message.message_id, reason.value, summary_of(error)))

    async def _announce(self, event: Escalated) -> None:
        current_run.set((str(event.loop), event.message_id if event.seq is None else event.seq))
        for hook in self._hooks:
            # In a task of its own: what a hook cancels is not the settlement.
            told = asyncio.create_task(_tell(hook, event), name="escalation hook")
            await asyncio.wait([told])
            if told.cancelled() or told.exception() is not None:
                error = None if told.cancelled() else told.exception()
                logging.getLogger(__name__).error(
                    "The escalation hook %r failed", hook, exc_info=error
                )


async def _tell(hook: EscalationHook, event: Escalated) -> None:
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
