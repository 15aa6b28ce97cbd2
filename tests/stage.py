"""An app on the embedded broker, in virtual time."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from scheduler import Scheduler, Settings
from scheduler.brokers.contract import Delivery
from scheduler.brokers.memory.broker import MemoryBroker
from scheduler.brokers.memory.server import MemoryServer
from scheduler.control.status import Where
from scheduler.errors import AccessRefused
from scheduler.events import Event, LoopRepaired, RunStarted
from scheduler.processor.processor import Processor
from scheduler.processor.worker import Worker
from scheduler.program import Program, processor
from scheduler.protocol.calls import task_key
from scheduler.protocol.ladder import entrance, key_of
from scheduler.protocol.messages import Message
from scheduler.protocol.tokens import LoopId, Token
from scheduler.protocol.topology import Names, QueueType, Topology, topology
from scheduler.queues.failed import Parked
from scheduler.tasks.tasks import SUPERVISION
from scheduler.testing import recording, run_virtually
from scheduler.timing.clock import LoopClock

START = datetime(2026, 6, 1, 12, tzinfo=UTC)
E = TypeVar("E", bound=Event)


def of(kind: type[E], events: list[Event]) -> list[E]:
    return [event for event in events if isinstance(event, kind)]


def new_app(queue_type: QueueType = "quorum", **settings: Any) -> Scheduler:
    # In memory, so that what a test forgets to lend a connection to reaches no broker.
    url: Any = "memory://"
    return Scheduler("test", Settings(broker_url=url, queue_type=queue_type, **settings))


def an_app(namespace: str, loops: Iterable[str]) -> Scheduler:
    """An app that has loops of these names, which do nothing."""
    app = Scheduler(namespace)

    async def nothing() -> None: ...

    for name in loops:
        app.periodic(every="1h", name=name)(nothing)
    return app


class Inspecting(MemoryBroker):
    """A broker that looks at each message first: what that raises, the publisher gets."""

    async def inspect(self, message: Message, exchange: str, routing_key: str) -> None: ...

    async def publish(
        self,
        message: Message,
        *,
        exchange: str,
        routing_key: str,
        timeout: timedelta = timedelta(seconds=30),
    ) -> None:
        await self.inspect(message, exchange, routing_key)
        await super().publish(message, exchange=exchange, routing_key=routing_key, timeout=timeout)


class NotAllowed(MemoryBroker):
    """A connection of a user who may not declare."""

    async def declare(self, topology: Topology) -> None:
        raise AccessRefused("No right to configure.")


class Stage:
    """An app on an embedded broker, seeded, with as many processors as the test starts."""

    def __init__(self, app: Scheduler, events: list[Event]) -> None:
        self.app = app
        self.events = events
        self.clock = LoopClock(START)
        self.server = MemoryServer(self.clock)
        self.broker = MemoryBroker(self.server)
        self.program = program = Program(app, self.broker, self.clock)
        self.seeding, self.verbs, self.removal = program.seeding, program.verbs, program.removal
        self.loops, self.locator, self.survey = program.loops, program.locator, program.survey
        self.failed, self.hatchery, self.journal = program.failed, program.hatchery, program.journal

    @asynccontextmanager
    async def processor(
        self, grace: float = 5, concurrency: int = 10, app: Scheduler | None = None
    ) -> AsyncGenerator[Worker]:
        """The worker of a processor alone: nobody supervises."""
        app = app or self.app
        async with MemoryBroker(self.server) as broker:
            alone = processor(
                app,
                broker,
                self.clock,
                tasks=app.select(None),
                concurrency=concurrency,
                grace=timedelta(seconds=grace),
                supervises=False,
            )
            running = asyncio.create_task(alone.run())
            try:
                yield alone.worker
            finally:
                alone.worker.stop()
                await running

    @asynccontextmanager
    async def supervised(
        self,
        *,
        app: Scheduler | None = None,
        tasks: Sequence[str] | None = None,
        grace: float = 5,
        over: MemoryBroker | None = None,
    ) -> AsyncGenerator[Processor]:
        """A whole processor: a worker that answers to roll calls, and supervises."""
        app = app or self.app
        async with over or MemoryBroker(self.server) as broker:
            whole = processor(
                app,
                broker,
                self.clock,
                tasks=app.select(tasks),
                concurrency=10,
                grace=timedelta(seconds=grace),
            )
            running = asyncio.create_task(whole.run())
            try:
                yield whole
            finally:
                whole.worker.stop()
                await running

    async def token(self, loop: LoopId) -> Token:
        """The token that waits in the slot of a loop."""
        token = await self.hatchery.look(loop)
        assert token is not None, f"no token of {loop} waits"
        return token

    async def lose(self, loop: LoopId) -> None:
        """Delete what waits in the slot of a loop."""
        assert await self.broker.purge(self.app.names.hatchery(loop))

    async def crowd(self, tokens: Iterable[Token]) -> None:
        """Put more tokens into a slot, as publishers do that race on a quorum queue."""
        for token in tokens:
            held = await self.hatchery.take_all(token.loop)
            assert await self.hatchery.offer(token)
            for occupant in held:
                await occupant.delivery.requeue()

    async def where(self, loop: LoopId) -> Where:
        """Where the token of a loop is, as an operator is told."""
        (where,) = [each.where for each in await self.survey.status() if each.loop.id == loop]
        return where

    async def history(self, loop: str | None = None) -> list[str]:
        """What the journal tells of a loop, in a word each."""
        return [entry.what async for entry in self.journal.entries(loop=loop)]

    def repairs(self) -> list[tuple[str, str]]:
        """What supervision has mended: loop and kind."""
        return [(str(event.loop), event.kind) for event in of(LoopRepaired, self.events)]

    async def tokens(self) -> int:
        names = self.app.names
        queues = [names.hatchery(loop) for loop in self.app.loops]
        queues += [names.processor_queue(task) for task in self.app.tasks]
        depths = [await self.broker.depth(queue) for queue in queues]
        return sum(depth.ready for depth in depths if depth)

    async def publish(self, message: Message, routing_key: str, exchange: str = "") -> None:
        """Publish as anybody may; to the processor exchange, unless another one is named."""
        exchange = exchange or self.app.names.processor
        await self.broker.publish(message, exchange=exchange, routing_key=routing_key)

    async def parked(self) -> list[Parked]:
        return await self.failed.browse(self.app.tasks)

    async def waiting(self) -> int:
        """How many messages there are, in all queues, that nobody has in hand."""
        names = self.app.names
        not_theirs = (
            names.hatchery(SUPERVISION),
            names.processor_queue(SUPERVISION.task),
            *(names.journal, names.roster, names.roll_call),
        )
        queues = {queue.name for queue in self.app.topology().queues}.difference(not_theirs)
        depths = [await self.broker.depth(queue) for queue in queues]
        return sum(depth.ready for depth in depths if depth)

    def starts(self) -> list[float]:
        """When each run started, in seconds since the beginning."""
        return seconds_of([run.started_at for run in of(RunStarted, self.events)])


def seconds_of(moments: Sequence[datetime]) -> list[float]:
    return [round((moment - START).total_seconds(), 3) for moment in moments]


def staged(app: Scheduler, play: Callable[[Stage], Awaitable[Any]]) -> None:
    """Play a test on a stage, in virtual time."""

    async def perform() -> None:
        with recording(app) as events:
            stage = Stage(app, events)
            async with stage.broker:
                app.outbox.use(stage.broker, stage.clock)
                await stage.seeding.seed()
                await play(stage)

    run_virtually(perform())


def climbed(
    delays: Sequence[timedelta], queue_type: QueueType
) -> list[tuple[timedelta, timedelta]]:
    """Put a message of each delay on the ladder, all at once.

    Returns:
        Each delay and when its message came, in the order in which they came.
    """
    names, arrived = Names("test"), list[tuple[timedelta, timedelta]]()

    async def perform() -> None:
        loop, all_here = asyncio.get_running_loop(), asyncio.Event()
        began = loop.time()

        def receive(delivery: Delivery) -> None:
            after = timedelta(seconds=round(loop.time() - began, 4))
            arrived.append((delays[int(delivery.message.body)], after))
            if len(arrived) == len(delays):
                all_here.set()

        async with MemoryBroker() as broker:
            await broker.declare(topology("test", ["t"], [], called=["t"], queue_type=queue_type))
            await broker.consume(names.processor_queue("t"), receive, prefetch=len(delays))
            for number, delay in enumerate(delays):
                unit = entrance(delay)
                exchange = names.processor if unit is None else names.delay(unit)
                message = Message(str(number).encode())
                await broker.publish(
                    message, exchange=exchange, routing_key=key_of(delay, task_key("t"))
                )
            await all_here.wait()

    run_virtually(perform())
    return arrived
