"""What waits for the tasks that are sent messages: for loops, see `scheduler.control.status`."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from scheduler.brokers.contract import Broker
from scheduler.control.concurrency import side_by_side
from scheduler.control.leftovers import Leftover, Leftovers
from scheduler.control.loops import Loops
from scheduler.control.processors import Processors
from scheduler.errors import QueueNotFound
from scheduler.protocol.hatchery import timers
from scheduler.protocol.topology import Names
from scheduler.queues.history import History, Summary, Totals, totals_of
from scheduler.tasks.registry import App
from scheduler.tasks.tasks import TaskSpec
from scheduler.timing.clock import Clock

RECENT = timedelta(minutes=15)


@dataclass(frozen=True, slots=True)
class Backlog:
    """How many messages of a task there are, besides those that run or wait for their time.

    Attributes:
        ready: wait for a processor; None: the task was never seeded.
        parked: wait for an operator.
        recent: what became of its calls in the last quarter of an hour.
    """

    task: str
    ready: int | None
    processors: int
    parked: int
    recent: Totals = field(default_factory=Totals)

    @property
    def is_fine(self) -> bool:
        """Return whether it was seeded, and its calls do not fail."""
        return self.ready is not None and not self.recent.is_failing


async def recent_calls(app: App, history: History, clock: Clock) -> dict[str, Totals]:
    """Read what became of the calls of each task in the last quarter of an hour."""
    if not any(task.called for task in app.tasks.values()):
        return {}
    try:
        reading = history.read(since=clock.now() - RECENT, containing='"from_ms"')
        return totals_of([told async for told in reading if isinstance(told, Summary)])
    except QueueNotFound:  # nothing was seeded
        return {}


async def backlogs(
    broker: Broker,
    names: Names,
    processors: Processors,
    tasks: Iterable[TaskSpec],
    recent: Mapping[str, Totals],
) -> list[Backlog]:
    """Return the backlog of each of these tasks that is sent messages."""
    return [
        await _backlog(broker, names, processors, task.name, recent.get(task.name, Totals()))
        for task in tasks
        if task.called
    ]


async def _backlog(
    broker: Broker, names: Names, processors: Processors, task: str, recent: Totals
) -> Backlog:
    queue = await broker.depth(names.processor_queue(task))
    failed = await broker.depth(names.failed_queue(task))
    return Backlog(
        task,
        ready=queue.ready if queue else None,
        processors=await processors.of(task, queue) if queue else 0,
        parked=failed.ready if failed else 0,
        recent=recent,
    )


@dataclass(frozen=True, slots=True)
class Counts:
    """What there is besides the loops of an app, and what is ready for its tasks.

    Attributes:
        parked: the messages that wait for an operator, those of loops and of unknown tasks too.
        delayed: the messages that wait for their time, of retries too.
        void: the void tokens that wait in the timers of loops until they are due, at least.
        orphans: the loops in the broker that the code does not have.
        leftovers: the tasks in the broker that the code does not have.
    """

    parked: int = 0
    delayed: int = 0
    void: int = 0
    orphans: tuple[str, ...] = ()
    leftovers: tuple[Leftover, ...] = ()


async def counted(
    broker: Broker, app: App, loops: Loops, leftovers: Leftovers, waiting: int
) -> Counts:
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
        tuple(await leftovers.found()),
    )


async def _waiting_in(broker: Broker, queues: Collection[str]) -> int:
    depths = await side_by_side(broker.depth, queues)
    return sum(depth.ready for depth in depths if depth is not None)


async def _orphans(loops: Loops) -> tuple[str, ...]:
    try:
        return tuple(map(str, await loops.orphans()))
    except QueueNotFound:  # nothing was seeded
        return ()
