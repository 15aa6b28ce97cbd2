"""Work on tasks in one process until it is stopped."""

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Protocol

from scheduler.brokers.contract import Broker, Delivery, cancelled
from scheduler.control.seeding import Seeding
from scheduler.control.supervision import Supervisor
from scheduler.errors import BrokerError, QueueNotFound
from scheduler.events import (
    Connected,
    EscalationHook,
    MessageParked,
    ProcessorStarted,
    ProcessorStopped,
    ProcessorStopping,
    RunFinished,
    TaskPaused,
    TaskResumed,
)
from scheduler.middleware import Around, LifespanFunction
from scheduler.processor.call_reporter import CallReporter
from scheduler.processor.intake import ConcurrentIntake, InOrder, Intake, Paced
from scheduler.processor.knowledge import INTERRUPTIONS
from scheduler.processor.pipeline import Pipeline
from scheduler.processor.processes import prepare
from scheduler.protocol.calls import renamed
from scheduler.tasks.loops import App, queues_of
from scheduler.tasks.tasks import TaskSpec
from scheduler.timing.moments import Clock
from scheduler.timing.pacing import backoff

CLOSING_TIMEOUT = timedelta(seconds=5)


@dataclass(eq=False)
class Worker:
    """Consume from the queues of its tasks, and process deliveries.

    Attributes:
        grace: how long runs may take to finish, once it is stopped, before they are cancelled and
            their messages requeued.
    """

    pipeline: Pipeline
    tasks: Sequence[TaskSpec]
    grace: timedelta

    def __post_init__(self) -> None:
        self.space, self.shutdown = self.pipeline.space, self.pipeline.shutdown
        self.executions = self.pipeline.executions
        self.knowledge = self.pipeline.recognition.knowledge
        self._app, self._broker = self.space.app, self.space.broker
        self._why = ""
        self._intakes: dict[str, Intake] = {}
        self._handling: set[asyncio.Task[datetime | None]] = set()

    @property
    def stopping(self) -> bool:
        """Return whether it was stopped, and takes no more messages."""
        return self.shutdown.begun.done()

    @property
    def queues(self) -> list[str]:
        """Return the queues of its tasks that are not paused."""
        tasks = [task for task in self.tasks if not self.knowledge.is_held(task)]
        names = (name for task in tasks for name in task.names)
        return [queue for name in names for queue in queues_of(self._app, name)]

    @property
    def silent(self) -> list[str]:
        """Return its queues without deliveries, as far as this end knows.

        Threads may call it.
        """
        intakes = dict(self._intakes)
        return [queue for queue in self.queues if queue not in intakes or not intakes[queue].active]

    @property
    def listening(self) -> list[str]:
        """Return its queues that should have a consumer at the broker now."""
        intakes = dict(self._intakes)
        return [queue for queue in self.queues if queue in intakes and intakes[queue].listening]

    @property
    def paced(self) -> list[str]:
        """Return its queues whose next message waits for nothing but its turn."""
        intakes = self._intakes
        return [queue for queue in self.queues if queue in intakes and intakes[queue].is_paced]

    async def run(self) -> None:
        """Process messages until `stop` is called.

        Raises:
            QueueNotFound: a task has no queue yet; the message says how to create it.
        """
        heeding = list[asyncio.Task[None]]()
        try:
            for task in self.tasks:
                if not self.knowledge.is_held(task):
                    await self._take_in(task)
            for task in self.tasks:
                heed = self._heed_pauses(task)
                heeding.append(asyncio.create_task(heed, name=f"pauses of {task.name}"))
            named = tuple(task.name for task in self.tasks if not task.builtin)
            address, emit = self._broker.address, self._app.events.emit
            most = self.executions.concurrency
            emit(ProcessorStarted(self._app.namespace, address, named, most))
            await asyncio.wait([self.shutdown.begun])
        finally:
            for each in heeding:
                await cancelled(each)
            await self._shut_down()

    def stop(self, why: str = "") -> None:
        """Take no more messages, and end when all unacked ones are settled. May be called again.

        Args:
            why: the reason to report, such as the name of a signal.
        """
        self._why = self._why or why
        self.shutdown.begin()

    def abort(self) -> None:
        """Stop without waiting for runs: cancel them and requeue their messages."""
        self.shutdown.abort()

    async def _heed_pauses(self, task: TaskSpec) -> None:
        """Take no messages of a task while it is paused; runs in progress end, and are settled."""
        queues = [queue for name in task.names for queue in queues_of(self._app, name)]
        while True:
            await self.knowledge.until_held(task, True)
            opened = [queue for queue in queues if queue in self._intakes]
            # At once: one may wait for the turn of another.
            await asyncio.gather(*(self._intakes[queue].close() for queue in opened))
            for queue in opened:
                await self._intakes[queue].ended()
                del self._intakes[queue]
            if (pause := self.knowledge.pause_of(task)) is not None:
                self._app.events.emit(TaskPaused(task.name, pause.by, pause.reason))
            await self.knowledge.until_held(task, False)
            for pause in backoff():
                with suppress(BrokerError):
                    await self._take_in(task)
                    self._app.events.emit(TaskResumed(task.name))
                    break
                await asyncio.sleep(pause)

    async def _take_in(self, task: TaskSpec) -> None:
        for name in task.names:
            for shard, queue in enumerate(queues_of(self._app, name)):
                if queue in self._intakes:  # opened before another one failed
                    continue
                intake = self._intake(task, name, queue, shard)
                try:
                    await intake.open()
                except QueueNotFound:
                    raise QueueNotFound(
                        f"The task {name!r} has no queue in {self._broker.address} yet. "
                        "Nothing was started; run `scheduler seed` once, then this again."
                    ) from None
                self._intakes[queue] = intake

    def _intake(self, task: TaskSpec, name: str, queue: str, shard: int) -> Intake:
        title, loop = f"handle {queue}", asyncio.get_running_loop()

        def handle(delivery: Delivery) -> asyncio.Task[datetime | None]:
            if name != task.name:
                about = delivery.message, delivery.routing_key
                delivery.message, delivery.routing_key = renamed(*about, name, task.name)
            handling = loop.create_task(self.pipeline.handle(delivery, task), name=title)
            self._handling.add(handling)
            handling.add_done_callback(self._handling.discard)
            return handling

        of, pacer = (self._broker, queue, handle), self.executions.pacer_of(task)
        if task.ordered:
            return InOrder(*of, pacer=pacer, clock=self.space.clock)
        if pacer is not None:
            room = partial(self.executions.await_room, task)
            return Paced(*of, pacer=pacer, places=asyncio.Semaphore(task.concurrency), room=room)
        # Together, the queues of a task hand over as many as may run, if that is one each.
        at_once = min(task.concurrency, self.executions.concurrency)
        return ConcurrentIntake(*of, prefetch=max((at_once + shard) // task.shards, 1))

    async def _shut_down(self) -> None:
        """Stop consuming; let runs finish; cancel the others; wait until all are requeued."""
        self.shutdown.begin()
        # A broker blocked by an alarm does not respond; closing the connection has the same effect.
        await _all_within_timeout([each.close() for each in self._intakes.values()])
        self.shutdown.unsubscribe()
        if self._handling:
            emit = self._app.events.emit
            emit(ProcessorStopping(len(self.executions), self.grace, self._why))
            self.executions.let_through(len(self._handling))
            await self._drain()
        await _all_within_timeout([each.ended() for each in self._intakes.values()])
        self._app.events.emit(ProcessorStopped(self.pipeline.returned, self._why))

    async def _drain(self) -> None:
        drained = asyncio.create_task(self._all_handled())
        ends, grace = [self.shutdown.aborted, drained], self.grace.total_seconds()
        await asyncio.wait(ends, timeout=grace, return_when=asyncio.FIRST_COMPLETED)
        self.shutdown.abort()
        self.executions.cancel()
        # A task that swallows its cancellation may never end: the broker requeues its message when
        # the connection is closed.
        await asyncio.wait(ends, timeout=CLOSING_TIMEOUT.total_seconds())
        drained.cancel()

    async def _all_handled(self) -> None:
        while self._handling:
            await asyncio.wait(self._handling)


async def _all_within_timeout(waits: Sequence[Coroutine[Any, Any, None]]) -> None:
    if waits:
        tasks = [asyncio.ensure_future(each) for each in waits]
        await asyncio.wait(tasks, timeout=CLOSING_TIMEOUT.total_seconds())


class ProcessedApp(App, Protocol):
    """Declare what only a processor needs of an app."""

    @property
    def lifespan(self) -> LifespanFunction | None: ...

    @property
    def escalation_hooks(self) -> Sequence[EscalationHook]: ...

    @property
    def around_runs(self) -> Sequence[Around]: ...

    def lending(self, broker: Broker, clock: Clock) -> AbstractContextManager[None]: ...


@dataclass(eq=False)
class Processor:
    """Combine a worker with what it needs around its work, and with its part in supervision.

    Attributes:
        supervisor: None: another processor supervises.
    """

    app: ProcessedApp
    worker: Worker
    reporter: CallReporter
    seeding: Seeding
    supervisor: Supervisor | None

    async def run(self) -> None:
        """Process messages until the worker is stopped.

        Objects that were never seeded are seeded, if the broker's user may declare.

        Raises:
            QueueNotFound: something was never seeded, and this user may not declare it.
            LifespanError: the lifespan could not be opened, or has failed.
        """
        worker, listening = self.worker, self.app.events.listening
        tasks = [task for task in worker.tasks if not task.builtin]
        async with AsyncExitStack() as stack:
            if self.supervisor is not None:
                await self.seeding.prepare(tasks)
            stack.enter_context(listening(worker.knowledge.hear, *INTERRUPTIONS))
            await stack.enter_async_context(worker.knowledge)
            if any(task.called for task in tasks):
                await stack.enter_async_context(self.reporter)
                stack.enter_context(listening(self.reporter.hear, MessageParked, RunFinished))
            if self.supervisor is not None:
                await stack.enter_async_context(self.supervisor)
                stack.enter_context(listening(self.supervisor.hear, Connected))
            stack.enter_context(self.app.lending(worker.space.broker, worker.space.clock))
            prepare(tasks)
            # Last, as it may send; a processor stopped before that takes no messages.
            if (await stack.enter_async_context(worker.executions.lifespan)).is_open:
                await worker.run()
