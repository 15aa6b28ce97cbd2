"""What waits for the tasks that are sent messages: for loops, see `scheduler.control.status`."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from scheduler.brokers.contract import Broker
from scheduler.control.concurrency import side_by_side
from scheduler.control.loops import Loops
from scheduler.control.processors import Processors
from scheduler.errors import QueueNotFound
from scheduler.protocol.hatchery import timers
from scheduler.protocol.topology import Names
from scheduler.tasks.registry import App
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


@dataclass(frozen=True, slots=True)
class Counts:
    """What there is besides the loops of an app, and what is ready for its tasks.

    Attributes:
        parked: the messages that wait for an operator, those of loops and of unknown tasks too.
        delayed: the messages that wait for their time, of retries too.
        void: the void tokens that wait in the timers of loops until they are due, at least.
        orphans: the loops in the broker that the code does not have.
    """

    parked: int = 0
    delayed: int = 0
    void: int = 0
    orphans: tuple[str, ...] = ()


async def counted(broker: Broker, app: App, loops: Loops, waiting: int) -> Counts:
    """Count them by asking the broker how long queues are; no message is touched.

    Args:
        waiting: how many loops wait for their time, each with one token that is not void.
    """
    names = app.names
    parked = [*map(names.failed_queue, app.tasks), names.failed]
    is_called = any(task.called for task in app.tasks.values())
    delays = [names.later_timer(timer) for timer in timers()] if is_called else []
    return Counts(
        await _waiting_in(broker, parked),
        await _waiting_in(broker, delays),
        max(await _waiting_in(broker, [names.timer(timer) for timer in timers()]) - waiting, 0),
        await _orphans(loops),
    )


async def _waiting_in(broker: Broker, queues: Collection[str]) -> int:
    depths = await side_by_side(broker.depth, queues)
    return sum(depth.ready for depth in depths if depth is not None)


async def _orphans(loops: Loops) -> tuple[str, ...]:
    try:
        return tuple(map(str, await loops.orphans()))
    except QueueNotFound:  # nothing was seeded
        return ()
