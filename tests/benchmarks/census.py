"""What supervision costs: rounds over many loops, and what they take of CPU.

    python tests/benchmarks/census.py --url amqp://guest:guest@127.0.0.1:5672/ --loops 10000

The loops only wait. `--queue-type classic` is sooner ready. The broker's CPU is that of the process
on this machine that listens on the URL's port.
"""

import argparse
import asyncio
import statistics
import time
import uuid
from collections.abc import Mapping
from typing import Any

from broker_cpu import BrokerCpu

from scheduler import Every, Scheduler, Settings
from scheduler.brokers.amqp.broker import AmqpBroker
from scheduler.control.supervision import Memory, Supervisor
from scheduler.program import Program, supervisor
from scheduler.protocol.tokens import LoopId
from scheduler.tasks.loops import Loop, loop_of
from scheduler.timing.clock import SystemClock


class ManyLoops(Scheduler):
    """One task, and as many loops of it as are asked for."""

    def __init__(self, url: str, queue_type: str, loops: int) -> None:
        settings: Any = {"broker_url": url, "queue_type": queue_type}
        super().__init__(f"census{uuid.uuid4().hex[:6]}", Settings(**settings))

        @self.task()
        async def work() -> None: ...

        spec = self.tasks["work"]
        made = [loop_of(spec, Every("1d"), {}, key=f"k{number}") for number in range(loops)]
        self._many = {loop.id: loop for loop in made}
        assert work.spec is spec

    @property
    def loops(self) -> Mapping[LoopId, Loop]:
        return self._many


async def measure(app: ManyLoops, url: str, rounds: int) -> None:
    clock = SystemClock()
    async with AmqpBroker(url) as broker:
        began = time.perf_counter()
        await Program(app, broker, clock).seeding.seed()
        report("seeded in", [time.perf_counter() - began], "s")
        began = time.perf_counter()
        await Program(app, broker, clock).seeding.seed()
        report("seeded again in", [time.perf_counter() - began], "s")
        try:
            program = Program(app, broker, clock)
            async with program.roll_call:
                listing = await program.roster.read()
                counting = supervisor(program, listing)
                await count(counting, rounds, BrokerCpu(url))
        finally:
            for queue in app.topology().queues:
                await broker.delete(queue.name)


async def count(supervisor: Supervisor, rounds: int, broker_cpu: BrokerCpu) -> None:
    memory, took, ours, theirs = Memory(), list[float](), list[float](), list[float]()
    for _ in range(rounds):
        cpu, cpu_of_broker, began = time.process_time(), broker_cpu(), time.perf_counter()
        memory = await supervisor.round(memory)
        took.append(time.perf_counter() - began)
        ours.append(time.process_time() - cpu)
        theirs.append(broker_cpu() - cpu_of_broker)
        assert not memory.reported
    report("a round took", took, "s")
    report("of our CPU", ours, "s")
    report("of the broker's", theirs, "s")


def report(what: str, seconds: list[float], unit: str) -> None:
    median, most = statistics.median(seconds), max(seconds)
    print(f"{what:16} p50 {median:8.3f} {unit}  max {most:8.3f} {unit}")  # noqa: T201


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--loops", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--queue-type", choices=["quorum", "classic"], default="classic")
    given = parser.parse_args()
    app = ManyLoops(given.url, given.queue_type, given.loops)
    print(f"{given.loops} loops in {given.queue_type} queues")  # noqa: T201
    asyncio.run(measure(app, given.url, given.rounds))


if __name__ == "__main__":
    main()
