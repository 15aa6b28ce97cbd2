"""What waits for the tasks that are sent messages: for loops, see `scheduler.control.status`."""

from collections.abc import Iterable
from dataclasses import dataclass

from scheduler.brokers.contract import Broker
from scheduler.control.processors import Processors
from scheduler.protocol.topology import Names
from scheduler.tasks.tasks import TaskSpec


@dataclass(frozen=True, slots=True)
class Backlog:
    """How many messages of a task there are, besides those that run or wait for their time.

    Attributes:
        ready: wait for a processor; None: the task was never seeded.
        parked: wait for an operator.
    """

    task: str
    ready: int | None
    processors: int
    parked: int


async def backlogs(
    broker: Broker, names: Names, processors: Processors, tasks: Iterable[TaskSpec]
) -> list[Backlog]:
    """The backlog of each of these tasks that is sent messages."""
    return [await _backlog(broker, names, processors, task.name) for task in tasks if task.called]


async def _backlog(broker: Broker, names: Names, processors: Processors, task: str) -> Backlog:
    queue = await broker.depth(names.processor_queue(task))
    failed = await broker.depth(names.failed_queue(task))
    return Backlog(
        task,
        ready=queue.ready if queue else None,
        processors=await processors.of(task, queue) if queue else 0,
        parked=failed.ready if failed else 0,
    )
