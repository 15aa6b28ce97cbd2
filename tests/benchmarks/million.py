"""A million loops of one task on one broker, and a million named one-offs.

    python tests/benchmarks/million.py [--loops 1000000] [--period 3600] [--apart]

On a private RabbitMQ, of the root in SCHEDULER_TEST_RABBITMQ_ROOT if that is set. A part that fails
is told, and the others go on. `steady` has to be named in `--only`.
"""

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from scheduler import Context, Every, Scheduler
from scheduler.brokers.amqp.broker import AmqpBroker
from scheduler.cli.processing import fastest_loop
from scheduler.control.census import last_memory
from scheduler.protocol.hatchery import timers
from scheduler.tasks.loops import queues_of
from scheduler.timing.durations import MILLISECOND
from tests.benchmarks.broker_cpu import BrokerCpu, Spent, cpu_of, memory_of, spending, until_idle
from tests.benchmarks.costs import at_quantile, lateness, processes
from tests.benchmarks.fleets.record import Ran, ran, runs_in
from tests.benchmarks.viewing import shown
from tests.rabbitmq import PrivateNode
from tests.stage import program_of

APP = f"{__file__}:app"
PROCESSORS = 2
CALLS, CALLS_OVER = 100_000, 60.0
FIRST_LOOPS = 10_000, 110_000
"""How many there are after the first parts that start some."""

STEADY = "steady"
# Timers of calls pass on more messages at once than by default: see docs/how-to/scale.md.
BROKER = "[{rabbit, [{dead_letter_worker_consumer_prefetch, 512}]}]."
FIRST_CALL = 10_000_000  # numbers of calls, beside those of loops
PATIENCE = 1800.0
LOST_FOR = 90.0
SETTINGS = {"SCHEDULER_CONCURRENCY": "1000", "SCHEDULER_LOG_LEVEL": "warning"}

app = Scheduler("million")


@app.task(concurrency=1000)
async def ping(ctx: Context, number: int) -> None:
    ran(number, ctx.scheduled_at.timestamp())


@app.task(concurrency=1000)
async def call(number: int, due: float) -> None:
    ran(number, due)


def now() -> float:
    return datetime.now(UTC).timestamp()


class Million:
    """The broker, and what runs on it."""

    def __init__(self, node: PrivateNode, records: Path, options: argparse.Namespace) -> None:
        self._node = node
        self._records = records
        self._loops: int = options.loops
        self._period = timedelta(seconds=options.period)
        self._seconds: float = options.seconds
        self._is_apart: bool = options.apart
        self._broker = BrokerCpu(node.url)
        self._empty = self._broker.memory()

    @property
    def parts(self) -> Mapping[str, Callable[[], Coroutine[Any, Any, str]]]:
        first, second = (min(each, self._loops) for each in FIRST_LOOPS)
        return {
            "calls": self.send,
            "10,000 loops": partial(self._start, 0, first),
            "100,000 loops": partial(self._start, first, second),
            "one-offs": self.schedule,
            "loops": partial(self._start, second, self._loops),
            "waiting": self.wait,
            "first run": self.run_first,
            "running": self.run,
            "one more": self.start_one,
            "10,000 more": partial(self._start, self._loops, self._loops + 10_000),
            "status": self.ask,
            "census": self.count,
            "dashboard": self.show,
            "lost": self.lose,
            "kill": self.kill,
            STEADY: self.run_steady,
        }

    async def seed(self) -> None:
        async with AmqpBroker(self._node.url) as broker:
            await program_of(app, broker).seeding.seed()

    async def schedule(self) -> str:
        """Start one-offs that are due the next day."""
        at = datetime.now(UTC) + timedelta(days=1)
        many = (
            (f"once-{n}", (at + n * timedelta(milliseconds=80), {"number": n}))
            for n in range(self._loops)
        )
        with spending(self._broker) as spent:
            async with app:
                await ping.once_many(many, progress=_progress)
        return _told(spent)

    async def start_one(self) -> str:
        with spending(self._broker) as spent:
            async with app:
                await ping.start("one-more", every=self._period, args={"number": self._loops})
        return _told(spent)

    async def wait(self) -> str:
        await asyncio.to_thread(until_idle, self._broker)
        taken = self._broker.memory() - self._empty
        return f"{taken:.0f} MB of broker memory, {taken / self._loops * 1e3:.2f} kB each loop"

    async def run_first(self) -> str:
        began, known = now(), len(self._runs())
        with self._processors(1) as (pid,):
            await self._until(lambda: len(self._runs()) > known)
            took = now() - began
            await asyncio.sleep(10)
            return f"after {took:.1f} s; the processor takes {memory_of(pid):.0f} MB"

    async def run(self) -> str:
        """Runs of the first hour, once what came due before is done."""
        with self._processors(PROCESSORS) as pids:
            await self._caught_up()
            await self._supervised()
            return await self._counted(pids)

    async def run_steady(self) -> str:
        """A period after all loops were started, each waits in one timer."""
        with self._processors(PROCESSORS) as pids:
            await self._start(0, self._loops)
            await asyncio.sleep(self._period.total_seconds() + 5)
            return await self._counted(pids)

    async def _counted(self, pids: Sequence[int]) -> str:
        """Count the runs of some time, and what they cost."""
        began = now()
        with spending(self._broker, partial(cpu_of, pids)) as spent:
            await asyncio.sleep(self._seconds)
        runs = self._runs(began)
        memory = max(map(memory_of, pids))
        due = self._loops / self._period.total_seconds() * self._seconds
        late = lateness(runs)
        return (
            f"{len(runs) / due:.1%} of {due:.0f} runs, late p50 {at_quantile(late, 0.5):.1f} ms, "
            f"p99 {at_quantile(late, 0.99):.1f} ms; {_each(spent, len(runs))} a run; "
            f"{memory:.0f} MB a processor"
        )

    async def send(self) -> str:
        """Send calls that are due over a minute."""
        first = now() + 65
        many = [
            ({"number": FIRST_CALL + n, "due": at}, datetime.fromtimestamp(at, UTC))
            for n in range(CALLS)
            for at in [first + n / CALLS * CALLS_OVER]
        ]
        with self._processors(PROCESSORS) as pids:
            await self._consuming(*queues_of(app, "call"))
            with spending(self._broker) as sending:
                async with app:
                    await call.send_many(many)
            with spending(self._broker, partial(cpu_of, pids)) as spent:
                await self._until(lambda: len(self._calls()) >= CALLS)
        late = at_quantile(lateness(self._calls()), 0.99)
        return (
            f"sent in {_told(sending)}; then {_each(spent, CALLS)} each (loops included), "
            f"late p99 {late:.1f} ms"
        )

    async def ask(self) -> str:
        one, whole = await self._command("status", "ping.loop-1"), await self._command("status")
        return f"of one loop {one}, of all {whole}"

    async def count(self) -> str:
        with self._processors(1):
            await self._supervised()
            return await self._command("census")

    async def show(self) -> str:
        began, took = time.perf_counter(), list[float]()
        with shown(APP, os.environ) as dashboard:
            await dashboard.get("/")
            first = time.perf_counter() - began
            while time.perf_counter() - began < 60:
                took.append((await dashboard.get("/")).ms)
                await asyncio.sleep(0.2)
            search = await dashboard.get(f"/search?q=loop-{self._loops - 1}")
            memory = dashboard.memory
        return (
            f"first page after {first:.1f} s; then p50 {statistics.median(took):.0f} ms, at most "
            f"{max(took):.0f} ms; a search of one loop {search.ms:.0f} ms; {memory:.0f} MB"
        )

    async def lose(self) -> str:
        """Purge the timer that loops come to last, and wait for its loops."""
        timer = app.names.timer(next(each for each in timers() if each.name == "11x5s"))
        with self._processors(PROCESSORS):
            await self._caught_up()
            async with AmqpBroker(self._node.url) as broker:
                depth = await broker.depth(timer)
            await asyncio.to_thread(self._node.ctl, "purge_queue", timer)
            purged = now()
            await asyncio.sleep(LOST_FOR)
        late = lateness([run for run in self._runs(purged) if run.due > purged])
        lost = 0 if depth is None else depth.ready
        return f"{lost} tokens purged; the latest run came {max(late) / 1e3:.1f} s late"

    async def _command(self, *arguments: str) -> str:
        """Run a command; return how long it took, and its exit code."""
        name, *others = arguments
        began = time.perf_counter()
        running = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "scheduler", name, "--timeout", "10m", APP),
            *others,
            env=dict(os.environ),
            stdout=asyncio.subprocess.DEVNULL,
        )
        code = await running.wait()
        return f"{time.perf_counter() - began:.1f} s (exit code {code})"

    async def kill(self) -> str:
        """Kill the broker, start it again, and wait until all that came due has run."""
        with self._processors(PROCESSORS):
            await self._caught_up()
            await asyncio.to_thread(self._node.kill)
            killed = now()
            await asyncio.to_thread(self._node.start, 300)
            up = now()
            await self._until(lambda: bool(self._runs(up)))
            first = now()
            # Tokens that should have changed timers meanwhile are late by that once more.
            await self._caught_up(late_by=up - killed + 1)
            served = now()
        self._broker = BrokerCpu(self._node.url)
        return (
            f"up after {up - killed:.1f} s, first run {first - up:.1f} s later, all that was "
            f"due had run {served - up:.1f} s after it was up"
        )

    async def _start(self, begin: int, end: int) -> str:
        """Start the loops with these numbers."""
        many = ((f"loop-{n}", (self._every(n), {"number": n})) for n in range(begin, end))
        with spending(self._broker) as spent:
            async with app:
                await ping.start_many(many, spread=not self._is_apart, progress=_progress)
        return _told(spent)

    def _every(self, number: int) -> Every:
        offset = timedelta()
        if self._is_apart:
            offset = number * self._period // self._loops // MILLISECOND * MILLISECOND
        return Every(self._period, mode="fixed_rate", offset=offset)

    @contextmanager
    def _processors(self, count: int) -> Generator[Sequence[int]]:
        run = (sys.executable, "-m", "scheduler", "run", APP)
        with processes([run] * count, dict(os.environ), sys.stderr.buffer) as pids:
            yield pids

    async def _consuming(self, queue: str) -> None:
        """Wait until all processors consume from a queue."""
        async with asyncio.timeout(PATIENCE), AmqpBroker(self._node.url) as broker:
            consumers = 0
            while consumers < PROCESSORS:
                await asyncio.sleep(0.2)
                depth = await broker.depth(queue)
                consumers = depth.consumers if depth else 0

    async def _caught_up(self, late_by: float = 1.0) -> None:
        """Wait until no run is late by so many seconds."""
        began = now()  # before, other processors ran

        def is_in_time() -> bool:
            late = lateness(self._runs(max(began, now() - 3)))
            return (
                len(late) > self._loops / self._period.total_seconds()
                and max(late) < late_by * 1000
            )

        await self._until(is_in_time)

    async def _supervised(self) -> None:
        """Wait until supervision has read what was put before."""
        began = now()
        async with asyncio.timeout(PATIENCE), AmqpBroker(self._node.url) as broker:
            program = program_of(app, broker)
            counted_at_ms = 0.0
            while counted_at_ms < began * 1e3:
                await asyncio.sleep(5)
                counted_at_ms = (await last_memory(program)).counted_at_ms

    async def _until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            is_so = condition()
            while not is_so:
                await asyncio.sleep(0.2)
                is_so = condition()

    def _runs(self, since: float = 0.0) -> list[Ran]:
        return [
            each for each in runs_in(self._records) if each.at > since and each.loop < FIRST_CALL
        ]

    def _calls(self) -> list[Ran]:
        return [run for run in runs_in(self._records) if run.loop >= FIRST_CALL]


def _progress(count: int) -> None:
    if count % 100_000 == 0:
        sys.stderr.write(f"{count} at {memory_of(os.getpid()):.0f} MB\n")


def _told(spent: Spent) -> str:
    return (
        f"{spent.seconds:.1f} s (CPU: own {spent.own:.1f} s, broker {spent.broker:.1f} s), "
        f"this process {memory_of(os.getpid()):.0f} MB"
    )


def _each(spent: Spent, count: int) -> str:
    worker, broker = spent.own / count * 1e3, spent.broker / count * 1e3
    return f"worker {worker:.2f} ms, broker {broker:.2f} ms"


async def measure(million: Million, only: Sequence[str]) -> bool:
    """Measure all parts, or some; return whether each could be."""
    failed = False
    await million.seed()
    for name, part in million.parts.items():
        if name not in only if only else name == STEADY:
            continue
        try:
            figures = await part()
        except Exception as error:
            traceback.print_exc()
            figures, failed = f"failed: {error!r}", True
        sys.stdout.write(f"{name:14} {figures}\n")
        sys.stdout.flush()
    return not failed


def main() -> int:
    parser = argparse.ArgumentParser(description="What a million loops take.")
    parser.add_argument("--loops", type=int, default=1_000_000)
    parser.add_argument("--period", type=float, default=3600, help="of each loop, in seconds")
    parser.add_argument("--apart", action="store_true", help="each run alone, not some together")
    parser.add_argument("--seconds", type=float, default=120, help="to count runs for")
    parser.add_argument("--only", nargs="*", default=(), help="parts, such as loops running")
    options = parser.parse_args()
    with PrivateNode(advanced=BROKER) as node, tempfile.TemporaryDirectory() as records:
        # Of this process too: the app reads its settings when it is first used.
        os.environ |= SETTINGS | {"SCHEDULER_BROKER_URL": node.url, "FLEET_RECORDS": records}
        million = Million(node, Path(records), options)
        with asyncio.Runner(loop_factory=fastest_loop()) as runner:
            return 0 if runner.run(measure(million, options.only)) else 1


if __name__ == "__main__":
    sys.exit(main())
