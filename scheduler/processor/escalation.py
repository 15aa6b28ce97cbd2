"""Park messages, confirmed, and call the hooks."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import timedelta

from scheduler.brokers.contract import AS_LONG_AS_IT_TAKES, Delivery
from scheduler.errors import InvalidArguments, Undecodable
from scheduler.events import Escalated, EscalationHook, MessageParked
from scheduler.processor.recognition import Recognition
from scheduler.processor.runs import Run
from scheduler.processor.settlement import Parking, Settlement
from scheduler.processor.shutdown import Shutdown
from scheduler.protocol.calls import Call, placed, spent, task_key
from scheduler.protocol.epochs import Verb
from scheduler.protocol.messages import Message, one_line, summary_of
from scheduler.protocol.tokens import (
    Act,
    Ending,
    LoopId,
    Replay,
    State,
    decode,
    encode,
    loop_named_by,
)
from scheduler.queues.failed import Reason, parked
from scheduler.queues.namespace import Namespace
from scheduler.tasks.context import current_run
from scheduler.tasks.tasks import TaskSpec
from scheduler.user_code import UserCode, log_of

HOOK_TIMEOUT = timedelta(seconds=30)
"""The time that all hooks of a message have, before its loop continues without them."""
A_MOMENT_S = 1.0


@dataclass(eq=False)
class Escalation:
    """Park the messages of a processor.

    Attributes:
        hooks: called for each message that is parked; may grow.
    """

    space: Namespace
    recognition: Recognition
    hooks: Iterable[EscalationHook]
    shutdown: Shutdown

    def __post_init__(self) -> None:
        self._names, self._clock = self.space.app.names, self.space.clock
        self._emit = self.space.app.events.emit

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

    async def escalate(self, run: Run, settlement: Settlement, parking: Parking) -> None:
        """Park a copy of a run's message, and call the hooks."""
        message = self._copy(run, parking)
        await self._park(run.delivery, run.task, message, parking.reason, parking.error)
        paused = settlement.put is not None and settlement.put.state is State.PAUSED
        event = Escalated(
            *run.about, error=parking.error, paused=paused, reason=parking.reason.value
        )
        if settlement.ending is Ending.ESCALATED:
            self._emit(event)
        await self._announce(event)

    async def _suspend(self, delivery: Delivery, error: Exception) -> bool:
        """Pause the loop of a token that does not fit its task, if it has one; return whether."""
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
        if parking.reason is Reason.EXPIRED:  # this was no attempt
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
        insist, failed = self.recognition.publisher.insist, self.space.failed

        def copy() -> Message:
            return parked(message, key, reason, error, self._clock.now())

        # Apart: while the journal takes no record, no further copy is parked.
        await insist(delivery, lambda: failed.put(copy(), key, AS_LONG_AS_IT_TAKES))
        await insist(delivery, lambda: failed.record(copy(), AS_LONG_AS_IT_TAKES))
        self._emit(MessageParked(key, message.message_id, reason.value, summary_of(error)))

    async def _announce(self, event: Escalated) -> None:
        """Call all hooks at once, and wait for them, up to a limit: the loop waits, too.

        They have a moment more if their processor is aborted: it must ack the parked message.
        """
        current_run.set((str(event.loop), event.message_id if event.seq is None else event.seq))
        # In separate tasks: a hook that cancels must not cancel the settlement.
        calls = {
            asyncio.create_task(_call_hook(hook, event), name="escalation hook"): hook
            for hook in self.hooks
        }
        if not calls:
            return
        all_done = asyncio.ensure_future(asyncio.wait(calls))
        await asyncio.wait(
            [all_done, self.shutdown.aborted],
            timeout=HOOK_TIMEOUT.total_seconds(),
            return_when=asyncio.FIRST_COMPLETED,
        )
        all_done.cancel()
        if self.shutdown.aborted.done():
            await asyncio.wait(calls, timeout=A_MOMENT_S)
        for call, hook in calls.items():
            if is_late := not call.done():  # not waited for: it may ignore its cancellation
                call.cancel()
                error = TimeoutError(
                    "its processor was stopped"
                    if self.shutdown.aborted.done()
                    else f"it ran longer than {HOOK_TIMEOUT.total_seconds():g} s"
                )
            else:
                error = None if call.cancelled() else call.exception()
            if is_late or call.cancelled() or error is not None:
                log_of(__name__).error("The escalation hook %r failed", hook, exc_info=error)


async def _call_hook(hook: EscalationHook, event: Escalated) -> None:
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
