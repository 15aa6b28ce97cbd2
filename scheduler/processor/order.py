"""Keep the notes on the heads of ordered queues."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from scheduler.brokers.contract import AS_LONG_AS_IT_TAKES
from scheduler.processor.publishing import PatientPublisher
from scheduler.processor.runs import Run
from scheduler.protocol.calls import Call
from scheduler.protocol.messages import failed_deliveries
from scheduler.queues.heads import Head, Heads


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
