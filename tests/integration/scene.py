"""A namespace, the releases and pods that work in it, and what their runs wrote down."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Self, cast

from scheduler import Context, Scheduler, Settings
from scheduler.brokers.amqp.broker import AmqpBroker
from scheduler.brokers.contract import Broker, Consumer, Delivery
from scheduler.control.loops import Where
from scheduler.errors import BrokerUnavailable, DeliveryLost
from scheduler.events import Event
from scheduler.processor.processor import Worker
from scheduler.program import Program
from scheduler.protocol.messages import Message
from scheduler.queues.failed import ParkedMessage
from tests.contract.wire import has_depth
from tests.integration.witness import News
from tests.stage import SYSTEM_CLOCK, at_work, processor_of, program_of
from tests.sweep import clear


@dataclass(eq=False)
class Run:
    """A run, as it saw itself.

    Attributes:
        release: of which release its pod was.
        began: in seconds of the event loop, as `ended`; where it has not, that is None.
    """

    loop: str
    seq: int
    release: str
    began: float
    ended: float | None = None
    facts: tuple[Any, ...] = ()


class Diary(News):
    """The runs of all pods, in the order in which they began."""

    def __init__(self) -> None:
        self.runs: list[Run] = []
        super().__init__(self.runs)

    async def write(self, ctx: Context, *facts: Any, takes: float = 0, release: str = "") -> None:
        """Write down a run that takes so long, in seconds."""
        time = asyncio.get_running_loop().time
        run = Run(ctx.loop, ctx.seq, release, time(), facts=facts)
        self.runs.append(run)
        self._news.set()
        try:
            await asyncio.sleep(takes)
        finally:
            run.ended = time()
            self._news.set()

    def of(self, loop: str) -> list[Run]:
        return [run for run in self.runs if run.loop == loop]

    def seqs(self, loop: str) -> list[int]:
        return [run.seq for run in self.of(loop)]

    def overlaps(self, loop: str) -> list[str]:
        """The runs of a loop that began while another one of it was going on."""
        runs = self.of(loop)
        return [
            f"run {place}, of tick {run.seq}, at {run.began - runs[0].began:.1f} s"
            for place, run in enumerate(runs)
            if any(before.ended is None or before.ended > run.began for before in runs[:place])
        ]


class Mortal:
    """A connection whose process dies; all else is as over the one that it wraps.

    Args:
        unacked: it dies instead of acking what came from this queue.
    """

    def __init__(self, broker: Broker, *, unacked: str = "") -> None:
        self._broker = broker
        self._unacked = unacked
        self.dead = asyncio.Event()
        self._dies = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)

    async def die(self) -> None:
        """Lose the connection, with what is in hand, and never come back."""
        self._dies = True
        try:
            await self._broker.__aexit__(None, None, None)
        finally:
            self.dead.set()

    async def publish(self, message: Message, **options: Any) -> None:
        if self._dies:
            raise BrokerUnavailable
        await self._broker.publish(message, **options)

    async def consume(
        self, queue: str, handler: Callable[[Delivery], object], *, prefetch: int
    ) -> Consumer:
        async def die() -> None:
            await self.die()
            raise DeliveryLost

        def handle(delivery: Delivery) -> None:
            handler(replace(delivery, ack=die) if queue == self._unacked else delivery)

        return await self._broker.consume(queue, handle, prefetch=prefetch)


@dataclass
class Pod:
    """A processor, and the connection over which it works."""

    worker: Worker
    connection: Mortal

    async def die(self) -> None:
        """End as a process that is killed: what it has in hand is the broker's again."""
        await self.connection.die()  # first: what is given back, RabbitMQ 4.3 does not count
        self.worker.abort()


class Scene:
    """One namespace.

    Attributes:
        broker: a connection, for what is done from outside.
        events: what all releases have told.
    """

    def __init__(self, namespace: str, url: str) -> None:
        self.namespace = namespace
        self.broker = AmqpBroker(url)
        self.diary = Diary()
        self.events: list[Event] = []
        self._url = url
        self._apps: list[Scheduler] = []

    async def __aenter__(self) -> Self:
        await self.broker.__aenter__()
        return self

    async def __aexit__(self, *exception: object) -> None:
        for app in self._apps:
            await clear(self._url, app.topology())
        await self.broker.__aexit__(*exception)

    def release(self, **settings: Any) -> Scheduler:
        """The code of a release, to which a test adds its tasks."""
        knobs: Any = {"supervision_interval": "1s", **settings}
        app = Scheduler(self.namespace, Settings(**knobs))
        app.listen(self.events.append)
        app.outbox.use(self.broker, SYSTEM_CLOCK)
        self._apps.append(app)
        return app

    def operator(self, app: Scheduler) -> Program:
        """What an operator with this code can do."""
        return program_of(app, self.broker)

    @asynccontextmanager
    async def pod(
        self,
        app: Scheduler,
        *,
        tasks: Sequence[str] | None = None,
        concurrency: int = 10,
        grace: float = 0,
        unacked: str = "",
    ) -> AsyncGenerator[Pod]:
        """A whole processor, until the block ends or it dies.

        Args:
            grace: how long its runs may take when it is stopped, in seconds.
            unacked: the task whose first message it dies of, when that is to be acked.
        """
        async with AmqpBroker(self._url) as broker:
            queue = app.names.processor_queue(unacked) if unacked else ""
            connection = Mortal(broker, unacked=queue)
            process = processor_of(
                app, cast(Broker, connection), tasks=tasks, concurrency=concurrency, grace=grace
            )
            async with at_work(process):
                yield Pod(process.worker, connection)

    async def until_ready(self, app: Scheduler, task: str, messages: int = 1) -> None:
        """Wait until so many messages are ready for a task of which no pod is there."""
        await has_depth(self.broker, app.names.processor_queue(task), ready=messages)

    async def until_parked(self, app: Scheduler, task: str) -> None:
        """Wait until a message of a task is parked, also where the broker does it."""
        await has_depth(self.broker, app.names.failed_queue(task), ready=1)

    async def parked(self, app: Scheduler) -> list[ParkedMessage]:
        return await self.operator(app).failed.browse(app.tasks)

    async def where(self, app: Scheduler, loop: str) -> Where:
        """Where a loop is, as an operator is told."""
        (found,) = [
            each.where
            for each in await self.operator(app).survey.status()
            if str(each.loop) == loop
        ]
        return found
