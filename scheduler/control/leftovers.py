"""Find tasks that have queues in the broker, and are not in the code any more: renamed, or
removed.
"""

from collections.abc import Iterable
from contextlib import aclosing
from dataclasses import dataclass

from scheduler.brokers.contract import ready_in
from scheduler.control.installation import Installation
from scheduler.errors import UnknownLoop
from scheduler.protocol.topology import topology
from scheduler.queues.failed import Reason
from scheduler.queues.namespace import Namespace


@dataclass(frozen=True, slots=True)
class Leftover:
    """Describe a task that is not in the code, and its queues.

    Attributes:
        ready: messages that wait for a processor; None: it has no processor queue any more.
        parked: messages that wait for an operator; None: it has no failed queue any more.
        processors: consume its messages: they run older code.
    """

    task: str
    ready: int | None
    parked: int | None
    processors: int = 0

    def __str__(self) -> str:
        counts = f"{self.ready or 0} ready, {self.parked or 0} parked"
        return f"{self.task} ({counts}, {self.processors} processors)"


class Leftovers:
    """Find the tasks of earlier code, by the imprint, and remove their queues."""

    def __init__(self, namespace: Namespace, installation: Installation) -> None:
        self._broker, self._names = namespace.broker, namespace.app.names
        self._failed = namespace.failed
        self._installation = installation

    async def found(self) -> list[Leftover]:
        """Return the seeded tasks that the code does not have, by name."""
        there = [
            await self._leftover(task) for task in sorted(await self._installation.other_tasks())
        ]
        return [each for each in there if (each.ready, each.parked) != (None, None)]

    async def _leftover(self, task: str) -> Leftover:
        queue = await self._broker.depth(self._names.processor_queue(task))
        failed = await self._broker.depth(self._names.failed_queue(task))
        return Leftover(
            task,
            None if queue is None else queue.ready,
            None if failed is None else failed.ready,
            0 if queue is None else queue.consumers,
        )

    async def remove(self, tasks: Iterable[str]) -> None:
        """Park the messages of tasks, and delete their queues; senders get an error from then on.

        A queue with consumers is left alone, and so is a failed queue with messages.
        """
        for task in tasks:
            await self._remove(task)

    async def _remove(self, task: str) -> None:
        left = await self._leftover(task)
        if left.processors:
            return
        queue = self._names.processor_queue(task)
        # Senders get an error from here on, so no message arrives between the last look and the
        # end.
        of_task = topology(self._names.namespace, [task], called=[task]).bindings
        await self._broker.unbind(
            each
            for each in of_task
            if each.destination == queue or each.source == self._names.later_sent
        )
        error = UnknownLoop(f"The task {task!r} was removed, with this message in its queue.")
        async with aclosing(ready_in(self._broker, queue)) as waiting:
            async for delivery in waiting:
                await self._failed.park_taken(delivery, Reason.REMOVED, error)
        if left.ready is not None:
            await self._broker.delete(queue)
        if (left := await self._leftover(task)).parked == 0:
            await self._broker.delete(self._names.failed_queue(task))
