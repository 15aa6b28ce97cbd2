"""Real processes on a real broker, and what they wrote down."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
from yarl import URL

from scheduler import Scheduler, Settings
from scheduler.brokers.amqp.broker import AmqpBroker
from scheduler.brokers.contract import Broker
from scheduler.protocol.tokens import LoopId
from scheduler.protocol.topology import Names, QueueType, Topology
from tests.contract.proxy import Proxy
from tests.contract.wire import RabbitWire
from tests.integration.scene import Scene
from tests.integration.shop import Shop
from tests.stage import an_app
from tests.sweep import clear, new_namespace
from tests.tokens import count
from tests.warm import Program, start

APP = f"{Path(__file__).parent / 'apps' / 'recorder.py'}:app"


@dataclass
class Field:
    """One namespace in one broker, the processes that work in it, and the record of their runs.

    Attributes:
        declares: what is deleted at the end; None: what the recorder's loops have.
    """

    url: str
    namespace: str
    queue_type: QueueType
    record: Path
    app: str = APP
    declares: Topology | None = None
    processes: list[Program] = field(default_factory=list[Any])
    _notes: list[dict[str, Any]] = field(default_factory=list[Any])
    _read: int = 0

    def start(self, *arguments: str, **environment: str) -> Program:
        """Start `scheduler` with these arguments, on the app."""
        return self._start(arguments, environment)

    def _start(
        self, arguments: Sequence[str], environment: Mapping[str, str], output: Path | None = None
    ) -> Program:
        # What it prints is in its log, with its errors, unless there is a file for it.
        command, *options = arguments
        # A file, because a pipe that nobody reads fills up, and blocks the process that logs.
        with (
            self.log_of(len(self.processes)).open("w") as log,
            (output or Path(os.devnull)).open("w") as printed,
            Path(os.devnull).open() as nothing,
        ):
            process = start(
                [command, self.app, *options],
                directory=Path.cwd(),
                environment={
                    **os.environ,
                    "SCHEDULER_BROKER_URL": self.url,
                    "SCHEDULER_QUEUE_TYPE": self.queue_type,
                    "NAMESPACE": self.namespace,
                    "RECORD": str(self.record),
                    **environment,
                },
                streams=(nothing.fileno(), (printed if output else log).fileno(), log.fileno()),
            )
        self.processes.append(process)
        return process

    async def until_killed(self, *arguments: str, **environment: str) -> None:
        """Start `scheduler`, and wait until it has killed itself."""
        doomed = self.start(*arguments, **environment)
        await self.until(lambda: doomed.poll() is not None, seconds=60)
        assert doomed.returncode == -signal.SIGKILL

    def log_of(self, number: int) -> Path:
        return self.record.with_name(f"process-{number}.log")

    def output_of(self, process: Program) -> str:
        """Wait until the process has ended; what it printed."""
        process.wait(timeout=100)
        return self.log_of(self.processes.index(process)).read_text()

    def call(self, *arguments: str, **environment: str) -> Any:
        """Run a command to its end; what it printed as JSON."""
        return self.calling(*arguments, **environment)()

    def calling(self, *arguments: str, **environment: str) -> Callable[[], Any]:
        """Start a command; the result waits for its end, and returns what it printed as JSON."""
        output = self.record.with_name(f"output-{len(self.processes)}.json")
        process = self._start((*arguments, "--json"), environment, output)

        def printed() -> Any:
            log = self.output_of(process)
            assert process.returncode == 0, log
            return json.loads(output.read_text())

        return printed

    def notes(self, what: str | None = None) -> list[dict[str, Any]]:
        """What the runs wrote down, in order."""
        if self.record.exists():
            with self.record.open("rb") as record:
                record.seek(self._read)
                # The last line may be seen before it was written to its end.
                whole, end, _ = record.read().rpartition(b"\n")
            self._read += len(whole + end)
            self._notes += map(json.loads, whole.splitlines())
        return [note for note in self._notes if what in (None, note["what"])]

    async def until(self, condition: Callable[[], bool], seconds: float = 30) -> None:
        """Wait until the record shows something; where it does not, the processes tell why."""
        try:
            async with asyncio.timeout(seconds):
                while not condition():  # noqa: ASYNC110 - the record is written by other processes
                    await asyncio.sleep(0.02)
        except TimeoutError as error:
            for number in range(len(self.processes)):
                error.add_note(f"process {number}:\n{self.log_of(number).read_text()[-5000:]}")
            error.add_note("\n".join(map(str, self.notes()[-50:])))
            raise

    async def tokens(self, broker: Broker, loops: int) -> dict[str, int]:
        """How many tokens of each loop wait or are ready. Nobody may be working meanwhile."""
        wanted = [LoopId(f"loop{number}") for number in range(loops)]
        names = Names(self.namespace)
        return dict(await at_rest(lambda: count(broker, names, wanted)))

    def kill(self) -> None:
        """End all processes."""
        for process in self.processes:
            process.kill()
            process.wait()

    def stop(self) -> None:
        """End all processes in good order."""
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait(timeout=30)


async def ready(broker: Broker, *queues: str) -> int:
    """How many messages are ready in these queues."""
    depths = [await broker.depth(queue) for queue in queues]
    return sum(depth.ready for depth in depths if depth is not None)


C = TypeVar("C")


async def at_rest(count: Callable[[], Awaitable[C]]) -> C:
    """Count until nothing moves: a token that hatches meanwhile is counted twice, or not at all."""
    before = await count()
    for _ in range(50):
        await asyncio.sleep(0.3)
        now = await count()
        if now == before:
            break
        before = now
    return before


@pytest.fixture
def queue_type() -> QueueType:
    return "quorum"


@pytest.fixture
def field_(
    broker_url: str, namespace: str, queue_type: QueueType, tmp_path: Path
) -> Iterator[Field]:
    field = Field(broker_url, namespace, queue_type, tmp_path / "record")
    yield field
    field.kill()
    asyncio.run(sweep(field))


async def sweep(field: Field, loops: int = 50) -> None:
    """Delete the queues of the namespace."""
    names = [f"loop{number}" for number in range(loops)]
    await clear(field.url, field.declares or an_app(field.namespace, names).topology())


@pytest.fixture(scope="session")
def shared(broker_url: str) -> Iterator[Shop]:
    """A shop for all tests of this process, seeded once."""
    shop = Shop(broker_url, new_namespace())
    try:
        asyncio.run(shop.seed(broker_url))
        yield shop
    finally:
        asyncio.run(clear(broker_url, shop.app.topology()))


@pytest.fixture
async def shop(shared: Shop) -> Shop:
    """What is seeded is shared; what happened begins anew."""
    await shared.empty()
    return Shop(shared.url, shared.namespace)


@pytest.fixture
async def proxy(broker_url: str) -> AsyncIterator[Proxy]:
    url = URL(broker_url)
    assert url.host
    assert url.port
    async with Proxy(url.host, url.port) as proxy:
        yield proxy


@pytest.fixture
def through(broker_url: str, proxy: Proxy) -> str:
    """The URL of the broker as it is reached through the proxy."""
    return str(URL(broker_url).with_port(proxy.port))


@pytest.fixture
async def wire(broker_url: str) -> AsyncIterator[RabbitWire]:
    async with RabbitWire("quorum", broker_url) as wire:
        yield wire


@pytest.fixture
async def queue(wire: RabbitWire) -> str:
    return await wire.declare_queue()


@pytest.fixture
async def broker(broker_url: str) -> AsyncIterator[Broker]:
    async with AmqpBroker(broker_url) as broker:
        yield broker


@pytest.fixture
def app(namespace: str, queue_type: QueueType) -> Scheduler:
    return Scheduler(namespace, Settings(queue_type=queue_type))


@pytest.fixture
async def swept(app: Scheduler, broker_url: str) -> AsyncIterator[None]:
    yield
    await clear(broker_url, app.topology())


@pytest.fixture
async def scene(namespace: str, broker_url: str) -> AsyncIterator[Scene]:
    async with Scene(namespace, broker_url) as scene:
        yield scene
