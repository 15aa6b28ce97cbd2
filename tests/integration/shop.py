"""An app of one-off tasks on a real broker: seeded once, for all tests of a process."""

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from scheduler import Context, Retry, RetryLater, Scheduler, Settings
from scheduler.brokers.amqp.broker import AmqpBroker
from scheduler.protocol.messages import Message
from scheduler.queues.failed import FailedQueues, ParkedMessage
from tests.contract.wire import eventually
from tests.integration.witness import Witness
from tests.stage import failed_of
from tests.sweep import empty


@dataclass(frozen=True)
class Run:
    """A run of a task, as it saw itself."""

    task: str
    value: Any
    attempt: int
    at: datetime
    message: Message
    routing_key: str


class Shop(Witness):
    """The app, and what happened in this process since the test began."""

    def __init__(self, url: str, namespace: str) -> None:
        self.url, self.namespace = url, namespace
        settings: Any = {"broker_url": url}
        super().__init__(Scheduler(namespace, Settings(**settings)))
        self.runs: list[Run] = []
        self._register()

    @property
    def orders(self) -> str:
        """The exchange of somebody else."""
        return f"{self.namespace}.orders"

    def _note(self, ctx: Context, task: str, value: Any = None) -> None:
        now = datetime.now(UTC)
        self.runs.append(Run(task, value, ctx.attempt, now, ctx.message, ctx.routing_key))
        self._news.set()

    def _register(self) -> None:
        app, note = self.app, self._note

        @app.task(concurrency=100)
        async def work(ctx: Context, n: int) -> None:
            note(ctx, "work", n)

        @app.task(retry=Retry(3, delays=["200ms", "1.5s", "1s"], jitter=0))
        async def fails(ctx: Context, n: int) -> None:
            note(ctx, "fails", n)
            raise ValueError(f"boom {n}")

        @app.task(ordered=True, retry=Retry(7, delays=["100ms"], jitter=0))
        async def book(ctx: Context, n: int) -> None:
            note(ctx, "book", n)
            if n == 1:
                raise ValueError("boom")
            if n == 3 and ctx.attempt == 1:
                raise RetryLater("1500ms")

        @app.task(
            subscribe=[(self.orders, "order.#", "topic")],
            retry=Retry(3, delays=["200ms", "1.1s"], jitter=0),
        )
        async def bill(ctx: Context, order: bytes) -> None:
            note(ctx, "bill", order)
            if ctx.attempt <= 2:
                raise ValueError("boom")

        @app.task(subscribe=[(self.orders, "order.shipped", "topic")])
        async def ship(ctx: Context, order: bytes) -> None:
            note(ctx, "ship", order)

        self.work, self.fails, self.book = work, fails, book

    def working(self, *tasks: str) -> AbstractAsyncContextManager[AmqpBroker]:
        """A processor, in this process."""
        return self.at_work(self.url, tasks=tasks or None, concurrency=200, supervises=False)

    def failed(self, broker: AmqpBroker) -> FailedQueues:
        return failed_of(self.app.names, broker)

    async def parked(self, broker: AmqpBroker) -> list[ParkedMessage]:
        return await self.failed(broker).browse(self.app.tasks, limit=1000)

    async def until_parked(self, broker: AmqpBroker, count: int) -> None:
        """Wait for what the broker parks by itself as well, of which no event tells."""
        names = self.app.names
        queues = [names.failed, *map(names.failed_queue, self.app.tasks)]

        async def all_parked() -> bool:
            depths = [await broker.depth(queue) for queue in queues]
            return sum(depth.ready for depth in depths if depth) == count

        await eventually(all_parked)

    async def empty(self) -> None:
        """Forget what other tests left behind."""
        names = self.app.names
        queues = [names.failed, *map(names.failed_queue, self.app.tasks)]
        queues += map(names.processor_queue, self.app.tasks)
        async with AmqpBroker(self.url) as broker:
            for queue in queues:
                await empty(broker, queue)
