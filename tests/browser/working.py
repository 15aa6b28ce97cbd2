"""An app at work on either broker, shown by a dashboard, into whose queues a test can look."""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any, NamedTuple, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

from scheduler import Context, Retry, Scheduler, Settings
from scheduler.brokers.contract import Broker
from scheduler.brokers.memory.broker import MemoryBroker
from scheduler.brokers.memory.server import MemoryServer
from scheduler.brokers.opening import broker_of
from scheduler.control.loops import Where
from scheduler.dashboard import dashboard
from scheduler.dashboard.serving import serving
from scheduler.program import Program
from scheduler.protocol.tokens import LoopId
from scheduler.queues.failed import ParkedMessage
from scheduler.queues.journal import JournalEntry
from scheduler.queues.outbox import Posting
from scheduler.timing.moments import SystemClock
from tests.stage import at_work, processor_of, program_of
from tests.sweep import sweep as delete_all
from tests.tokens import count

T = TypeVar("T")
ANSWERS_WITHIN_S = 60
START_LIMIT_S = 30
NOBODYS = "night_watch"
"""The task of which no processor takes messages."""


class Dashboard(NamedTuple):
    """A program that shows an app, at a port of its own."""

    process: subprocess.Popen[str]
    address: str


@contextmanager
def shown(*command: str, **environment: str) -> Generator[Dashboard]:
    """A `scheduler` that answers at an address, which it prints; in a session of its own."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("SCHEDULER_")}
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "scheduler", *command],
        env=clean | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        said = process.stdout.readline()
        found = re.search(r"http://\S+", said)
        assert found, said
        yield Dashboard(process, found[0].rstrip("/"))
    finally:
        process.terminate()
        process.wait(START_LIMIT_S)
        process.stdout.close()


class Ward:
    """A hospital's app, and what its broker knows of it.

    Attributes:
        mended: whether letters go through also where the address is none.
    """

    def __init__(self, namespace: str, broker_url: str | None) -> None:
        url: Any = broker_url or "memory://"
        self.app = Scheduler(namespace, Settings(broker_url=url))
        self.address = ""
        self.mended = False
        self._server = MemoryServer() if broker_url is None else None
        self._portal: BlockingPortal
        self._program: Program
        register(self)

    def connect(self) -> Broker:
        if self._server is not None:
            return MemoryBroker(self._server)
        return broker_of(self.app.settings, emit=self.app.events.emit, patient=True)

    def ask(self, question: Callable[[Program], Awaitable[T]]) -> T:
        """Ask the broker, by the parts that the commands are made of."""
        return self._portal.start_task_soon(question, self._program).result(ANSWERS_WITHIN_S)

    def send(self, task: str, *addresses: str) -> None:
        """Send a letter or a bill to each."""

        async def post(_: Program) -> None:
            for to in addresses:
                await self.app.outbox.send(task, {"to": to}, Posting())

        self.ask(post)

    def where(self, name: str) -> Where:
        """Return where the token of a loop is, as `scheduler status` tells."""

        async def where(program: Program) -> Where:
            (found,) = await program.survey.status(await program.loops.find(name))
            return found.where

        return self.ask(where)

    def is_paused(self, name: str) -> bool:
        return self.where(name) is Where.PAUSED

    def history(self, name: str) -> list[JournalEntry]:
        """What the journal tells of a loop."""

        async def entries(program: Program) -> list[JournalEntry]:
            return [entry async for entry in program.journal.entries(loop=name)]

        return self.ask(entries)

    def parked(self, task: str) -> list[ParkedMessage]:
        return self.ask(lambda program: program.failed.browse([task]))

    def tokens(self, loop: LoopId) -> int:
        """How many tokens of a loop there are that are not void."""
        return self.ask(lambda it: count(it.broker, self.app.names, [loop]))[str(loop)]

    @contextmanager
    def at_work(self) -> Generator[None]:
        """Have it work in a thread of its own: this one has the event loop of the browser."""
        with (
            start_blocking_portal() as self._portal,
            self._portal.wrap_async_context_manager(self._working()),
        ):
            yield

    @asynccontextmanager
    async def _working(self) -> AsyncGenerator[None]:
        app, clock = self.app, SystemClock()
        taken = [task for task in app.tasks if task != NOBODYS]
        async with AsyncExitStack() as stack:
            broker = await stack.enter_async_context(self.connect())
            ours = await stack.enter_async_context(self.connect())
            self._program = program_of(app, ours)
            await self._program.seeding.seed()
            stack.push_async_callback(self._sweep, ours)
            stack.enter_context(app.lending(broker, clock))
            await stack.enter_async_context(at_work(processor_of(app, broker, tasks=taken)))
            pages = dashboard(app, connect=self.connect)
            self.address = await stack.enter_async_context(serving(pages, "127.0.0.1", 0))
            yield

    async def _sweep(self, broker: Broker) -> None:
        """Leave nothing in a broker that others share."""
        await delete_all(broker, (queue.name for queue in self.app.topology().queues))


async def nothing() -> None: ...


def register(ward: Ward) -> None:
    """Give the app loops and tasks: of those that tests change, each has its own."""
    app = ward.app
    for name in ("laundry", "library", "chapel", "garden"):
        app.periodic(name=name, every="1h")(nothing)
    for name in ("bed-north", "bed-south"):
        app.periodic(name=name, every="1h")(nothing)
    app.periodic(name=NOBODYS, every="1s")(nothing)

    @app.periodic(every="1s")
    async def pulse(ctx: Context) -> None:
        ctx.carry({"beats": ctx.seq})

    @app.periodic(every="1s", retry=Retry(0), after_failure="pause")
    async def scanner() -> None:
        raise RuntimeError("the scanner is too warm")

    @app.periodic(every="1h", retry=Retry(0))
    async def dialysis(ctx: Context) -> None:
        ctx.progress(0.25, "a quarter")
        await asyncio.sleep(3600)

    @app.task
    async def visit(ward: str, beds: int = 2) -> None: ...

    @app.task(retry=Retry(0))
    async def letter(to: str) -> None:
        if "@" not in to and not ward.mended:
            raise ValueError(f"no address: {to!r}")

    @app.task(retry=Retry(0))
    async def bill(to: str) -> None:
        if "@" not in to and not ward.mended:
            raise ValueError(f"nobody of this name: {to!r}")
