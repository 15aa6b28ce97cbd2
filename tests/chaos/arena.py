"""Broker nodes, processors behind proxies, a sender and an operator: what faults strike."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Self

from scheduler.brokers.amqp.broker import AmqpBroker
from scheduler.protocol.topology import QueueType
from tests.chaos.record import Note, Pen, Reader
from tests.chaos.storm import app, released, written
from tests.chaos.verdict import Pulse
from tests.contract.proxy import Proxy
from tests.rabbitmq import TRIES_AGAIN, PrivateCluster, PrivateNode
from tests.stage import roster_of

HEARTBEAT = 1  # seconds: so that a dead peer is noticed soon
APP = "tests.chaos.storm:app"
SEED_TRIES = 3
# Of a cluster, so that a node that stands still is noticed soon by the others.
QUICK_TICKS = "net_ticktime = 5"


class Member:
    """A process of the storm, and its own way to the broker.

    Attributes:
        name: of the present process; a new one has a new name.
        release: the version of the app's schedules that its processes are started with.
    """

    def __init__(self, role: str, command: Sequence[str], proxy: Proxy, arena: "Arena") -> None:
        self.role = role
        self.proxy = proxy
        self.name = role
        self.release = 0
        self._command = command
        self._arena = arena
        self._order = arena.directory / f"{role}.order"
        self._clock = arena.directory / f"{role}.clock"
        self._lives = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start a process; it is up when it has told so."""
        self._lives += 1
        self.name = f"{self.role}.{self._lives}"
        with (self._arena.directory / f"{self.name}.log").open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *self._command],
                env=self._environment(),
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def ended(self, seconds: float = 60) -> int:
        """Wait until the process is gone; its exit code.

        Raises:
            TimeoutError: it is still there.
        """
        assert self._process is not None
        try:
            code = await asyncio.to_thread(self._process.wait, seconds)
        except subprocess.TimeoutExpired as error:
            raise TimeoutError(f"{self.name} goes on") from error
        self._arena.note("died", who=self.name, detail=str(code))
        return code

    async def kill(self) -> None:
        self.signal(signal.SIGKILL)
        await self.ended()

    async def stop(self) -> None:
        """End it in good order."""
        self.signal(signal.SIGTERM)
        if code := await self.ended():
            self._arena.note("failed to stop", who=self.name, detail=str(code))

    async def replace(self, *, release: int | None = None) -> None:
        """End it in good order, and start a new one; of another release, if one is given."""
        await self.stop()
        self.release = self.release if release is None else release
        self.start()

    def freeze(self) -> None:
        self.signal(signal.SIGSTOP)
        self._arena.note("frozen", who=self.name)

    def thaw(self) -> None:
        self._arena.note("thawed", who=self.name)
        self.signal(signal.SIGCONT)

    async def die_at(self, moment: str, within: float) -> None:
        """Have it kill itself when `storm.obey` is told of this moment; else kill it."""
        self._order.write_text(moment)
        try:
            await self.ended(within)
        except TimeoutError:
            self._order.unlink(missing_ok=True)
            await self.kill()

    def set_clock_wrong(self, seconds: float) -> None:
        self._clock.write_text(str(seconds))

    def set_clock_right(self) -> None:
        self._clock.unlink(missing_ok=True)

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _environment(self) -> Mapping[str, str]:
        return self._arena.environment(self.proxy, self.release) | {
            "WHO": self.name,
            "ORDER": str(self._order),
            "CLOCK": str(self._clock),
        }


class Arena:
    """Everything that runs.

    Args:
        directory: for the record, the logs, and what the runner tells the processes.

    Attributes:
        note: the runner's pen.
        pulse: which loops have run again since the last fault.
        release: the version of the app's schedules that processes are started with.
    """

    def __init__(
        self,
        directory: Path,
        nodes: Sequence[PrivateNode],
        *,
        cluster: PrivateCluster | None = None,
        queue_type: QueueType = "quorum",
    ) -> None:
        self.directory = directory
        self.nodes = nodes
        self.cluster = cluster
        self.queue_type: QueueType = queue_type
        self.release = 1
        self.record = directory / "record"
        self.note = Pen(self.record, "runner")
        self.pulse = Pulse(map(str, app.loops))
        self.notes: list[Note] = []
        self.processors: list[Member] = []
        self._reader = Reader(self.record)
        self._others: list[Member] = []
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self._console = await self._stack.enter_async_context(self._proxy(0))
        for number in range(3):
            command = ("scheduler", "run", APP)
            self.processors.append(await self._member(f"processor-{number}", command, number))
        self._others = [
            await self._member("sender", ("tests.chaos.sender",), 1),
            await self._member("operator", ("tests.chaos.operator",), 2),
        ]
        self.operator = self._others[-1]
        for processor in self.processors[1:]:
            processor.release = self.release
        await self.seed()
        for member in (*self.processors, *self._others):
            member.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        for member in (*self.processors, *self._others):
            if member.alive:
                await member.kill()
        await self._stack.aclose()
        self._reader.close()
        self.note.close()

    @property
    def members(self) -> list[Member]:
        """Those whose connections may be cut."""
        return [*self.processors, *self._others]

    def environment(self, proxy: Proxy, release: int) -> dict[str, str]:
        return {
            **os.environ,
            "SCHEDULER_BROKER_URL": f"amqp://guest:guest@127.0.0.1:{proxy.port}/",
            "SCHEDULER_QUEUE_TYPE": self.queue_type,
            "SCHEDULER_HEARTBEAT": f"{HEARTBEAT}s",
            "NAMESPACE": app.namespace,
            "RECORD": str(self.record),
            "RELEASE": str(release),
        }

    async def seed(self) -> None:
        """`scheduler seed`, of the present release; tried again, as by a Job of Kubernetes."""
        schedules = {str(loop): each.schedule for loop, each in app.loops.items()}
        schedules |= released(self.release)
        for loop, schedule in schedules.items():
            self.note("seeding", loop=loop, schedule=written(schedule))
        said = b""
        for _ in range(SEED_TRIES):
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "scheduler", "seed", APP),
                env=self.environment(self._console, self.release),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            said, _ = await process.communicate()
            if not process.returncode:
                return await self._note_seeded()
        self.note("seed failed", detail=said.decode())

    async def _note_seeded(self) -> None:
        async with self.connected() as broker:
            listing = await roster_of(app.names, broker).read()
        # Others may have been given another one since, but not those of a release.
        schedules = {str(loop): listing[loop].schedule for loop in app.loops}
        schedules |= released(self.release)
        for loop, schedule in schedules.items():
            epoch = listing.known(app.loop(loop).id)
            self.note("seeded", loop=loop, schedule=written(schedule), epoch=epoch)

    async def stop_the_others(self) -> None:
        """End sender and operator; the operator lets go of what he paused."""
        for member in self._others:
            await member.stop()

    @asynccontextmanager
    async def connected(self) -> AsyncGenerator[AmqpBroker]:
        async with AmqpBroker(f"amqp://guest:guest@127.0.0.1:{self._console.port}/") as broker:
            yield broker

    def look(self) -> None:
        """Read what has been written since the last look."""
        for note in self._reader.new():
            self.notes.append(note)
            self.pulse.see(note)

    async def until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Read the record until it shows something; says whether it did in time."""
        deadline = time.monotonic() + seconds
        self.look()
        while not condition():
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(0.03)  # the record is written by other processes
            self.look()
        return True

    def up(self, member: Member) -> bool:
        return member.name in self.pulse.up

    async def _member(self, role: str, command: Sequence[str], number: int) -> Member:
        proxy = await self._stack.enter_async_context(self._proxy(number))
        return Member(role, command, proxy, self)

    def _proxy(self, first: int) -> Proxy:
        """A way to the nodes, as through a balancer: each connection gets the next one."""
        ports = [node.port for node in self.nodes]
        first %= len(ports)
        (port, *others) = ports[first:] + ports[:first]
        return Proxy("127.0.0.1", port, others=[("127.0.0.1", other) for other in others])


@asynccontextmanager
async def raised(
    directory: Path, *, queue_type: QueueType, in_cluster: bool = False
) -> AsyncGenerator[Arena]:
    """An arena of one node, or of a cluster of three; gone at the end."""
    cluster = PrivateCluster(QUICK_TICKS, TRIES_AGAIN) if in_cluster else None
    place = cluster or PrivateNode(advanced=TRIES_AGAIN, management=False)
    await asyncio.to_thread(place.__enter__)
    nodes = place.nodes if isinstance(place, PrivateCluster) else [place]
    try:
        async with Arena(directory, nodes, cluster=cluster, queue_type=queue_type) as arena:
            yield arena
    finally:
        await asyncio.to_thread(place.__exit__)
