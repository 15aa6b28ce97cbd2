"""What it takes to start, stop and seed many loops, beside the bare driver.

    python tests/benchmarks/starting.py [--url amqp://...] [--loops 10000] [--at-once 100]

The bare driver (aiormq) declares and binds the same queues as a seed, over as many channels as make
a broker no faster; and publishes as many messages as a start does. Without a URL, on a private
RabbitMQ. With one, everything is left behind: use a broker that you can forget.
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import cycle
from pathlib import Path
from typing import Any

import aiormq
from aiormq.abc import AbstractChannel
from pamqp.commands import Basic

sys.path.insert(0, str(Path(__file__).parents[2]))

from scheduler import Context, Scheduler, Settings
from scheduler.brokers.amqp.broker import AmqpBroker
from scheduler.brokers.amqp.session import LANES
from scheduler.control.reports import Effect
from scheduler.control.supervision import Memory
from scheduler.program import supervisor
from scheduler.protocol.hatchery import route
from scheduler.protocol.tokens import LoopId, token_key
from scheduler.protocol.topology import Names, Topology
from scheduler.sending import CallTask
from scheduler.timing.durations import SECOND
from tests.benchmarks.broker_cpu import BrokerCpu, memory_of, spending, until_idle
from tests.benchmarks.fleets.ours import each
from tests.rabbitmq import PrivateNode
from tests.stage import program_of

CHANNELS = 16
ALONE = 21
ROUNDS = 10
BEAT = "it runs\n"
BODY = b"x" * 400
"""As long as a token."""


class Fleet(Scheduler):
    """An app of many tasks with a loop each, and one task that others start loops of."""

    def __init__(self, namespace: str, tasks: int, settings: Settings | None = None) -> None:
        super().__init__(namespace, settings)

        @self.periodic(every="200ms", name="beat")
        async def _(ctx: Context) -> None:
            sys.stdout.write(BEAT)
            sys.stdout.flush()

        @self.task()
        async def report(ctx: Context) -> None: ...

        self.report: CallTask[Any, Any, Any] = report
        for number in range(tasks - 2):

            @self.periodic(every="1h", name=f"task{number}")
            async def _() -> None: ...


app = Fleet(os.environ.get("NAMESPACE", "fleet"), tasks=int(os.environ.get("TASKS", "50")))
"""What the command runs."""


class Table:
    """What was measured, a line each."""

    def __init__(self, url: str) -> None:
        self._broker_cpu = BrokerCpu(url)

    @asynccontextmanager
    async def line(self, what: str, count: int) -> AsyncGenerator[None]:
        """Measure what is done inside the block, so many times."""
        await asyncio.to_thread(until_idle, self._broker_cpu)
        with spending(self._broker_cpu) as spent:
            yield
        took = f"{spent.seconds:8.2f} s {spent.seconds / count * 1e3:8.2f} ms each"
        self.write(what, f"{took}   CPU: broker {spent.broker:6.2f} s, own {spent.own:6.2f} s")

    async def alone(self, what: str, act: Callable[[str], Awaitable[object]]) -> None:
        """Measure what is done to one loop, of several in turn."""
        await asyncio.to_thread(until_idle, self._broker_cpu)
        times = list[float]()
        for number in range(ALONE):
            began = time.perf_counter()
            await act(f"alone{number}")
            times.append((time.perf_counter() - began) * 1e3)
        median = f"{statistics.median(times):.1f} ms"
        self.write(what, f"{median:>10} (median), {max(times):.1f} ms at most")

    def write(self, what: str, figures: str) -> None:
        sys.stdout.write(f"{what:48} {figures}\n")
        sys.stdout.flush()


@asynccontextmanager
async def bare_channels(url: str) -> AsyncGenerator[list[AbstractChannel]]:
    connection = await aiormq.connect(url)
    yield [await connection.channel(publisher_confirms=False) for _ in range(CHANNELS)]
    await connection.close()


async def declare_bare(channels: list[AbstractChannel], wanted: Topology) -> None:
    """What the driver takes to make a topology exist."""
    for exchange in wanted.exchanges:
        await channels[0].exchange_declare(
            exchange.name,
            exchange_type=exchange.type,
            durable=True,
            arguments=dict(exchange.arguments),
        )

    async def declare(channel: AbstractChannel, n: int) -> None:
        for queue in wanted.queues[n::CHANNELS]:
            await channel.queue_declare(queue.name, durable=True, arguments=dict(queue.arguments))

    async def bind(channel: AbstractChannel, n: int) -> None:
        for binding in wanted.bindings[n::CHANNELS]:
            bind = channel.queue_bind if binding.to == "queue" else channel.exchange_bind
            await bind(binding.destination, binding.source, binding.routing_key)

    for act in declare, bind:
        await asyncio.gather(*(act(channel, n) for n, channel in enumerate(channels)))


async def delete_bare(channels: list[AbstractChannel], wanted: Topology) -> None:
    """Make room again: the more queues a broker has, the slower it is."""

    async def delete(channel: AbstractChannel, n: int) -> None:
        for queue in wanted.queues[n::CHANNELS]:
            await channel.queue_delete(queue.name)

    await asyncio.gather(*(delete(channel, n) for n, channel in enumerate(channels)))


async def seeding(table: Table, url: str, tasks: int, settings: Settings) -> None:
    """A seed of tasks that have a loop each, and again."""
    ours, bare = (Fleet(f"seed{uuid.uuid4().hex[:6]}", tasks, settings) for _ in range(2))
    wanted = bare.topology()
    of_tasks = f"of {tasks} tasks: {len(wanted.queues)} queues"
    async with bare_channels(url) as channels:
        async with table.line(f"bare {of_tasks}", len(wanted.queues)):
            await declare_bare(channels, wanted)
        await delete_bare(channels, wanted)
    for what in "seed", "seed again":
        async with AmqpBroker(url) as broker, table.line(f"{what} {of_tasks}", len(wanted.queues)):
            await program_of(ours, broker).seeding.seed()


async def starting(table: Table, url: str, fleet: Fleet, loops: int, at_once: int) -> None:
    """Many loops at once, one alone among them, and what the roster and a seed take then."""
    other = Fleet(f"bare{uuid.uuid4().hex[:6]}", 2, fleet.settings)
    names = [LoopId("report", f"key{number}") for number in range(loops)]

    async def start(name: LoopId) -> None:
        assert await fleet.report.start(name.key, every="1h") is Effect.CREATED

    wanted = other.topology()
    async with bare_channels(url) as channels:
        await declare_bare(channels, wanted)
    async with table.line(f"bare, two publishes each of {loops} loops", loops):
        await start_bare(url, other.names, names, at_once)
    async with bare_channels(url) as channels:
        await delete_bare(channels, wanted)
    async with fleet:
        async with table.line(f"start {loops} loops, {at_once} at once", loops):
            await each(names, start, at_once)
        await table.alone(f"start one, of {loops}", lambda key: fleet.report.start(key, every="1h"))
        await table.alone(f"stop one, of {loops}", fleet.report.stop)
        for key in range(ALONE):
            await fleet.report.start(f"stopped{key}", every="1h")
        async with table.line(f"stop {ALONE} loops at once", ALONE):
            await asyncio.gather(*(fleet.report.stop(f"stopped{key}") for key in range(ALONE)))
    async with AmqpBroker(url) as broker, table.line(f"seed again, with {loops} loops", loops):
        await program_of(fleet, broker).seeding.seed()
    async with AmqpBroker(url) as broker, table.line(f"read the roster of {loops} loops", 1):
        await program_of(fleet, broker).roster.read()


async def start_bare(url: str, names: Names, loops: Iterable[LoopId], at_once: int) -> None:
    """Publish an entry and a token for each loop, so many side by side, each confirmed."""
    length = route(timedelta(hours=1))
    async with await aiormq.connect(url) as connection:
        lanes = cycle([await connection.channel() for _ in range(LANES)])

        async def start(loop: LoopId) -> None:
            channel = next(lanes)
            for exchange, key in (
                (names.control, names.roster),
                (names.scheduler, token_key(loop, length.key)),
            ):
                await channel.basic_publish(
                    BODY,
                    exchange=exchange,
                    routing_key=key,
                    mandatory=True,
                    properties=Basic.Properties(delivery_mode=2),
                )

        await each(loops, start, at_once)


async def supervision(table: Table, url: str, fleet: Fleet, loops: int) -> None:
    """Rounds over all loops, some of which are looked at in each."""
    async with AmqpBroker(url) as broker:
        program = program_of(fleet, broker)
        await program.roster.read()
        supervises = supervisor(program)
        memory = await supervises.round(Memory())
        async with table.line(f"rounds of supervision, of {loops} loops", ROUNDS):
            for _ in range(ROUNDS):
                memory = await supervises.round(memory)


def first_run(table: Table, url: str, fleet: Fleet, loops: int) -> None:
    """How soon a processor runs what is due, from the start of its command on."""
    environment = {
        **os.environ,
        "NAMESPACE": fleet.namespace,
        "TASKS": str(len(fleet.tasks)),
        "SCHEDULER_BROKER_URL": url,
        "SCHEDULER_LOG_LEVEL": "warning",
    }
    command = [sys.executable, "-m", "scheduler", "run", f"{__file__}:app"]
    began = time.perf_counter()
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert BEAT in process.stdout
        took, memory = time.perf_counter() - began, memory_of(process.pid, "VmHWM")
        process.terminate()
    what = f"first run of {len(fleet.tasks)} tasks, with {loops} loops"
    table.write(what, f"{took:8.2f} s after the command was given; {memory:.0f} MB at most")


async def measure(url: str, options: argparse.Namespace) -> None:
    table = Table(url)
    given: Any = {"broker_url": url}
    settings = Settings(**given)
    await seeding(table, url, options.tasks, settings)
    fleet = Fleet(f"fleet{uuid.uuid4().hex[:6]}", 50, settings)
    async with AmqpBroker(url) as broker:
        await program_of(fleet, broker).seeding.seed()
    await asyncio.sleep(SECOND.total_seconds())  # until its beat is due
    await asyncio.to_thread(first_run, table, url, fleet, 0)
    await starting(table, url, fleet, options.loops, options.at_once)
    await supervision(table, url, fleet, options.loops)
    await asyncio.to_thread(first_run, table, url, fleet, options.loops)


def main() -> None:
    parser = argparse.ArgumentParser(description="What it takes to start many loops.")
    parser.add_argument("--url", help="a RabbitMQ; else a private one")
    parser.add_argument("--loops", type=int, default=10_000)
    parser.add_argument("--at-once", type=int, default=100)
    parser.add_argument("--tasks", type=int, default=100)
    options = parser.parse_args()
    if options.url:
        asyncio.run(measure(options.url, options))
    else:
        with PrivateNode() as node:
            asyncio.run(measure(node.url, options))


if __name__ == "__main__":
    main()
