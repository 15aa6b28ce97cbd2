"""Takes messages from the queues of its tasks until it is stopped."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from itertools import zip_longest

from scheduler.brokers.contract import Broker, Consumer, Delivery
from scheduler.errors import QueueNotFound
from scheduler.events import ProcessorStarted, ProcessorStopped, ProcessorStopping
from scheduler.processor.capacity import Capacity
from scheduler.processor.pipeline import Pipeline
from scheduler.processor.shutdown import Shutdown
from scheduler.tasks.registry import App
from scheduler.tasks.tasks import TaskSpec

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
        shutdown: Shutdown,
        tasks: Sequence[TaskSpec],
        concurrency: int,
        grace: timedelta,
    ) -> None:
        self._app = app
        self._broker = broker
        self._pipeline = pipeline
        self._capacity = capacity
        self._shutdown = shutdown
        self._tasks = tasks
        self._concurrency = concurrency
        self._grace = grace
        self._emit = app.events.emit
        self._consumers: list[Consumer] = []
        self._handling: set[asyncio.Task[None]] = set()

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
        active = [consumer.active for consumer in tuple(self._consumers)]
        pairs = zip_longest(self.queues, active, fillvalue=False)
        return [str(queue) for queue, delivers in pairs if not delivers]

    async def run(self) -> None:
        """Process messages until `stop` is called.

        Raises:
            QueueNotFound: a task has no queue yet; the message says how to make it.
        """
        try:
            for task in self._tasks:
                self._consumers.append(await self._consume(task))
            self._emit(self._started())
            await self._shutdown.until_begun()
        finally:
            await self._shut_down()

    def stop(self) -> None:
        """Take no more messages, and end when those in hand are settled. May be called again."""
        self._shutdown.begin()

    def abort(self) -> None:
        """Stop, and do not wait for runs: cancel them and give their messages back."""
        self._shutdown.abort()

    async def _consume(self, task: TaskSpec) -> Consumer:
        queue = self._app.names.processor_queue(task.name)

        def handle(delivery: Delivery) -> None:
            handling = asyncio.create_task(
                self._pipeline.handle(delivery, task), name=f"handle {queue}"
            )
            self._handling.add(handling)
            handling.add_done_callback(self._handling.discard)

        prefetch = min(task.concurrency, self._concurrency)
        try:
            return await self._broker.consume(queue, handle, prefetch=prefetch)
        except QueueNotFound:
            raise QueueNotFound(
                f"The task {task.name!r} has no queue in {self._broker.address} yet. "
                "Nothing was started; run `scheduler seed` once, then this again."
            ) from None

    async def _shut_down(self) -> None:
        """Stop consuming; let runs finish; cancel the others; wait until all are given back."""
        self._shutdown.begin()
        # A broker that is blocked by an alarm does not answer; closing the connection does it too.
        cancelling = [asyncio.ensure_future(each.cancel()) for each in self._consumers]
        if cancelling:
            await asyncio.wait(cancelling, timeout=CLOSING_TIMEOUT.total_seconds())
        self._shutdown.unsubscribe()
        if self._handling:
            self._emit(ProcessorStopping(self._pipeline.running, self._grace))
            self._capacity.let_through(len(self._handling))
            await self._drain()
        self._emit(ProcessorStopped(self._pipeline.returned))

    async def _drain(self) -> None:
        drained = asyncio.create_task(self._all_handled())
        ends = [self._shutdown.aborted, drained]
        await asyncio.wait(
            ends, timeout=self._grace.total_seconds(), return_when=asyncio.FIRST_COMPLETED
        )
        self._shutdown.abort()
        self._pipeline.cancel_runs()
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
