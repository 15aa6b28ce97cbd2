"""Takes messages from the queues of its tasks until it is stopped."""

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta

from scheduler.brokers.contract import Broker, Delivery
from scheduler.errors import QueueNotFound
from scheduler.events import ProcessorStarted, ProcessorStopped, ProcessorStopping
from scheduler.processor.capacity import Capacity
from scheduler.processor.intake import Flow, Handle, InOrder, Intake, Paced, Source
from scheduler.processor.pipeline import Pipeline
from scheduler.processor.runs import Executions
from scheduler.processor.shutdown import Shutdown
from scheduler.tasks.registry import App
from scheduler.tasks.tasks import TaskSpec
from scheduler.timing.clock import Clock
from scheduler.timing.rates import Pacer

CLOSING_TIMEOUT = timedelta(seconds=5)


class Worker:
    """Consumes from the queues of its tasks, and hands what comes to the pipeline.

    Args:
        tasks: the tasks to work on.
        concurrency: how many runs may go on at once, over all tasks.
        grace: how long runs may take to finish, once it is stopped, before they are cancelled and
            their messages given back.
    """

    def __init__(
        self,
        app: App,
        broker: Broker,
        pipeline: Pipeline,
        capacity: Capacity,
        executions: Executions,
        shutdown: Shutdown,
        clock: Clock,
        tasks: Sequence[TaskSpec],
        concurrency: int,
        grace: timedelta,
    ) -> None:
        self._app = app
        self._broker = broker
        self._pipeline = pipeline
        self._capacity = capacity
        self._executions = executions
        self._shutdown = shutdown
        self._clock = clock
        self._tasks = tasks
        self._concurrency = concurrency
        self._grace = grace
        self._emit = app.events.emit
        self._why = ""
        self._intakes: dict[str, Intake] = {}
        self._handling: set[asyncio.Task[datetime | None]] = set()

    @property
    def stopping(self) -> bool:
        """Whether it was told to stop, and takes no more messages."""
        return self._shutdown.stopping

    @property
    def queues(self) -> list[str]:
        """Where it takes messages from."""
        return [self._app.names.processor_queue(task.name) for task in self._tasks]

    @property
    def silent(self) -> list[str]:
        """Those of its queues that nothing is delivered from, as far as this end knows.

        May be asked by another thread.
        """
        intakes = dict(self._intakes)
        return [queue for queue in self.queues if queue not in intakes or not intakes[queue].active]

    @property
    def listening(self) -> list[str]:
        """Those of its queues that the broker should know a consumer of now."""
        intakes = dict(self._intakes)
        return [queue for queue in self.queues if queue in intakes and intakes[queue].listening]

    async def run(self) -> None:
        """Process messages until `stop` is called.

        Raises:
            QueueNotFound: a task has no queue yet; the message says how to make it.
        """
        try:
            for task in self._tasks:
                await self._take_in(task)
            self._emit(self._started())
            await self._shutdown.until_begun()
        finally:
            await self._shut_down()

    def stop(self, why: str = "") -> None:
        """Take no more messages, and end when those in hand are settled. May be called again.

        Args:
            why: what is told of it, such as the name of a signal.
        """
        self._why = self._why or why
        self._shutdown.begin()

    def abort(self) -> None:
        """Stop, and do not wait for runs: cancel them and give their messages back."""
        self._shutdown.abort()

    async def _take_in(self, task: TaskSpec) -> None:
        queue = self._app.names.processor_queue(task.name)
        intake = self._intake(task, Source(self._broker, queue, self._handle(task), self._shutdown))
        try:
            await intake.open()
        except QueueNotFound:
            raise QueueNotFound(
                f"The task {task.name!r} has no queue in {self._broker.address} yet. "
                "Nothing was started; run `scheduler seed` once, then this again."
            ) from None
        self._intakes[queue] = intake

    def _intake(self, task: TaskSpec, source: Source) -> Intake:
        pacer = Pacer(task.rate) if task.rate is not None else None
        if task.ordered:
            return InOrder(source, pacer, self._clock)
        if pacer is not None:
            return Paced(source, pacer, task.concurrency)
        return Flow(source, min(task.concurrency, self._concurrency))

    def _handle(self, task: TaskSpec) -> Handle:
        def handle(delivery: Delivery) -> asyncio.Task[datetime | None]:
            handling = asyncio.create_task(
                self._pipeline.handle(delivery, task), name=f"handle {delivery.queue}"
            )
            self._handling.add(handling)
            handling.add_done_callback(self._handling.discard)
            return handling

        return handle

    async def _shut_down(self) -> None:
        """Stop consuming; let runs finish; cancel the others; wait until all are given back."""
        self._shutdown.begin()
        # A broker that is blocked by an alarm does not answer; closing the connection does it too.
        closing = [asyncio.ensure_future(each.close()) for each in self._intakes.values()]
        if closing:
            await asyncio.wait(closing, timeout=CLOSING_TIMEOUT.total_seconds())
        self._shutdown.unsubscribe()
        if self._handling:
            self._emit(ProcessorStopping(len(self._executions), self._grace, self._why))
            self._capacity.let_through(len(self._handling))
            await self._drain()
        ending = [asyncio.ensure_future(each.ended()) for each in self._intakes.values()]
        if ending:
            await asyncio.wait(ending, timeout=CLOSING_TIMEOUT.total_seconds())
        self._emit(ProcessorStopped(self._pipeline.returned, self._why))

    async def _drain(self) -> None:
        drained = asyncio.create_task(self._all_handled())
        ends = [self._shutdown.aborted, drained]
        await asyncio.wait(
            ends, timeout=self._grace.total_seconds(), return_when=asyncio.FIRST_COMPLETED
        )
        self._shutdown.abort()
        self._executions.cancel()
        # A task that swallows its cancellation may never end: the broker gives its message to
        # somebody else when the connection is closed.
        await asyncio.wait(ends, timeout=CLOSING_TIMEOUT.total_seconds())
        drained.cancel()

    async def _all_handled(self) -> None:
        while self._handling:
            await asyncio.wait(self._handling)

    def _started(self) -> ProcessorStarted:
        return ProcessorStarted(
            self._app.namespace,
            self._broker.address,
            tuple(task.name for task in self._tasks if not task.builtin),
            self._concurrency,
        )
