"""What it costs to be watched: CPU per run with metrics, beside without.

    python tests/benchmarks/observing.py [--url amqp://...] [--slice 300] [--rounds 60]

Without a URL, on the embedded broker: there a run costs the least, so watching weighs the most. One
processor works all the time, and after each slice of runs the next form of watching takes its turn,
because machines are noisy: the median of the ratios to the bare slice beside it is what counts.
"""

import argparse
import asyncio
import gc
import statistics
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from scheduler import Scheduler, Settings
from scheduler.brokers.amqp.broker import AmqpBroker
from scheduler.brokers.contract import Broker
from scheduler.brokers.memory.broker import MemoryBroker
from scheduler.events import Event, RunSettled
from scheduler.metrics import Metrics
from scheduler.protocol.calls import new_call, task_key
from scheduler.protocol.topology import topology
from scheduler.timing.moments import SystemClock
from tests.stage import at_work, processor_of

# What begins and ends a way of being watched.
Switch = tuple[Callable[[], Any], Callable[[], Any]]


def ways_of_watching(app: Scheduler) -> dict[str, Switch]:
    metrics = Metrics(app, SystemClock())
    return {
        "bare": (lambda: None, lambda: None),
        "metrics": (
            lambda: app.events.listen(metrics.note, *metrics.kinds),
            lambda: app.events.forget(metrics.note),
        ),
    }


class Stopwatch:
    """Has the ways of watching take turns, and notes the CPU time of each slice.

    Args:
        runs: how many runs a slice has.
    """

    def __init__(self, app: Scheduler, ways: dict[str, Switch], runs: int, rounds: int) -> None:
        self._ways = ways
        self._runs = runs
        self._turns = [name for _ in range(rounds) for name in ways]
        self._left = runs
        self._began = 0.0
        self.costs: dict[str, list[float]] = {name: [] for name in ways}
        self.over = asyncio.Event()
        app.listen(self._count)

    @property
    def total(self) -> int:
        return self._runs * (len(self._turns) + 1)

    def _count(self, event: Event) -> None:
        if not isinstance(event, RunSettled):
            return
        self._left -= 1
        if not self._left:
            self._left = self._runs
            asyncio.get_running_loop().call_soon(self._switch)

    def _switch(self) -> None:
        now = time.process_time()
        if self._began:  # the first slice warms up
            name = self._turns.pop(0)
            self.costs[name].append((now - self._began) / self._runs * 1e6)
            self._ways[name][1]()
        if not self._turns:
            return self.over.set()
        self._ways[self._turns[0]][0]()
        gc.collect()
        self._began = time.process_time()


async def measure(url: str | None, runs: int, rounds: int) -> dict[str, list[float]]:
    settings: Any = {"broker_url": url or "memory://", "queue_type": "classic"}
    app = Scheduler(f"bench{uuid.uuid4().hex[:6]}", Settings(**settings))

    @app.task(concurrency=20)
    async def nothing() -> None: ...

    stopwatch = Stopwatch(app, ways_of_watching(app), runs, rounds)
    broker: Broker = AmqpBroker(url, emit=app.events.emit) if url else MemoryBroker()
    async with broker:
        # Without the timers of calls, in which nothing waits here.
        wanted = topology(app.namespace, app.tasks, queue_type="classic")
        await broker.declare(wanted)
        await fill(app, broker, stopwatch.total)
        async with at_work(processor_of(app, broker, concurrency=20, supervises=False)):
            await stopwatch.over.wait()
        for queue in wanted.queues:
            await broker.delete(queue.name)
    return stopwatch.costs


async def fill(app: Scheduler, broker: Broker, messages: int) -> None:
    now = SystemClock().now()
    for number in range(messages):
        message = new_call(
            app.namespace, "nothing", {}, message_id=str(number), sent_at=now, due_at=now
        )
        await broker.publish(message, exchange=app.names.delayed, routing_key=task_key("nothing"))


def main() -> None:
    parser = argparse.ArgumentParser(description="What it costs to be watched.")
    parser.add_argument("--url", help="a RabbitMQ; else the embedded broker")
    parser.add_argument("--slice", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    costs = asyncio.run(measure(options.url, options.slice, options.rounds))
    for name, each in costs.items():
        ratios = [cost / bare for cost, bare in zip(each, costs["bare"], strict=True)]
        cost, ratio = statistics.median(each), statistics.median(ratios)
        sys.stdout.write(f"{name:8} {cost:8.1f} us per run {ratio:6.3f}x\n")


if __name__ == "__main__":
    main()
