"""The message at the head of an ordered task's queue: its attempts, its delays, its deaths.

It is noted in the broker, so that whichever processor gets it next goes on from there.
"""

from dataclasses import replace
from datetime import datetime, timedelta

from scheduler.brokers.contract import AS_LONG_AS_IT_TAKES
from scheduler.processor.publishing import PatientPublisher
from scheduler.processor.runs import Run
from scheduler.protocol.calls import Call
from scheduler.protocol.messages import failed_deliveries
from scheduler.queues.heads import Head, Heads


class Order:
    """Keeps the notes on the heads of ordered queues; of other tasks, the broker's own count."""

    def __init__(self, heads: Heads, publisher: PatientPublisher) -> None:
        self._heads = heads
        self._publisher = publisher

    async def resumed(self, run: Run) -> Run:
        """The run, with what became of its message before."""
        if not run.delivery.redelivered:
            return run
        message = run.delivery.message
        if not run.task.ordered:
            return run._replace(head=Head(begun=failed_deliveries(message)))
        head = await self._heads.of(run.task.name, message)
        if not isinstance(call := run.subject, Call):
            return run._replace(head=head)
        first = call.first_failed_at or head.first_failed_at
        call = replace(call, attempt=max(call.attempt, head.attempt), first_failed_at=first)
        return run._replace(subject=call, head=head)

    async def begin(self, run: Run) -> None:
        """Note that a run begins: should it end its processor, the next one knows."""
        if run.task.ordered and run.delivery.redelivered:
            await self._note(run, replace(run.head, begun=run.head.begun + 1))

    async def wait(self, run: Run, delay: timedelta, failed_at: datetime) -> datetime:
        """Note that an attempt failed; returns when the next one may begin."""
        assert isinstance(call := run.subject, Call)
        due_at, first = failed_at + delay, call.first_failed_at or failed_at
        await self._note(run, Head(call.attempt + 1, due_at=due_at, first_failed_at=first))
        return due_at

    async def end(self, run: Run) -> None:
        """Forget what was noted: the message is done with."""
        if run.task.ordered and run.delivery.redelivered:
            await self._heads.forget(run.task.name)

    async def _note(self, run: Run, head: Head) -> None:
        task, message = run.task.name, run.delivery.message
        await self._publisher.insist(
            run.delivery, lambda: self._heads.note(task, message, head, AS_LONG_AS_IT_TAKES)
        )
