"""One process that works on tasks until it is stopped."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, AsyncExitStack
from typing import Protocol

from scheduler.brokers.contract import Broker
from scheduler.control.seeding import Seeding
from scheduler.control.supervision import Supervisor
from scheduler.events import Connected, EscalationHook, MessageParked, RunFinished
from scheduler.middleware import Around
from scheduler.processor.call_reporter import CallReporter
from scheduler.processor.knowledge import INTERRUPTIONS, Knowledge
from scheduler.processor.lifespan import HasLifespan, Lifespan
from scheduler.processor.processes import prepare
from scheduler.processor.threads import Threads
from scheduler.processor.worker import Worker
from scheduler.tasks.registry import App
from scheduler.tasks.tasks import TaskSpec
from scheduler.timing.clock import Clock


class ProcessedApp(App, HasLifespan, Protocol):
    """What a processor needs of an app, besides what all others need."""

    @property
    def escalation_hooks(self) -> Sequence[EscalationHook]: ...

    @property
    def around_runs(self) -> Sequence[Around]: ...

    def lending(self, broker: Broker, clock: Clock) -> AbstractContextManager[None]: ...


class Processor:
    """A worker, what it knows of its loops, and its part in supervision.

    Args:
        tasks: the tasks to work on.
        supervisor: None: somebody else supervises.

    Attributes:
        worker: does the work, and is told to stop.
        threads: of its runs; they may outlast it.
    """

    def __init__(
        self,
        app: ProcessedApp,
        broker: Broker,
        clock: Clock,
        worker: Worker,
        knowledge: Knowledge,
        reporter: CallReporter,
        seeding: Seeding,
        supervisor: Supervisor | None,
        lifespan: Lifespan,
        threads: Threads,
        tasks: Sequence[TaskSpec],
    ) -> None:
        self.worker = worker
        self.threads = threads
        self._app = app
        self._broker = broker
        self._clock = clock
        self._knowledge = knowledge
        self._reporter = reporter
        self._seeding = seeding
        self._supervisor = supervisor
        self._lifespan = lifespan
        self._tasks = tasks

    async def run(self) -> None:
        """Process messages until the worker is told to stop.

        What was never seeded is seeded, if the broker's user may declare.

        Raises:
            QueueNotFound: something was never seeded, and we may not do it.
            LifespanError: what the runs share could not be opened, or has failed.
        """
        async with AsyncExitStack() as stack:
            if self._supervisor is not None:
                await self._seeding.prepare(self._tasks)
            listening = self._app.events.listening
            stack.enter_context(listening(self._knowledge.hear, *INTERRUPTIONS))
            await stack.enter_async_context(self._knowledge)
            if any(task.called for task in self._tasks):
                await stack.enter_async_context(self._reporter)
                stack.enter_context(listening(self._reporter.hear, MessageParked, RunFinished))
            if self._supervisor is not None:
                await stack.enter_async_context(self._supervisor)
                stack.enter_context(listening(self._supervisor.hear, Connected))
            stack.enter_context(self._app.lending(self._broker, self._clock))
            prepare(self._tasks)
            # Last, as it may send; what is told to stop before it is open, takes nothing in.
            if (await stack.enter_async_context(self._lifespan)).is_open:
                await self.worker.run()
