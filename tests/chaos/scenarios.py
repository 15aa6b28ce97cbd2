"""`python -m tests.chaos.scenarios NAME`: what many loops go through, with the numbers.

- rolling: the nodes of a cluster are restarted one after another, beside 1,000 loops of 10 s. No
  loop may be more than 60 s late.
- kill: a node is killed, with 5,000 loops of 300 s and 500 that are due at that instant, and is
  down for 12 s. All must continue within 10 s of the reconnect.
- refusal: the queue of a task rejects everything, beside 200 loops of another task. None of those
  may be late by a second.
- instant: 60,000 loops are due at one instant. The last one must start within 60 s.

In none may a loop be lost, or be in two lines a minute later. Each has private nodes, of the
RabbitMQ in SCHEDULER_TEST_RABBITMQ_ROOT, if that is set, and two processors.
"""

import argparse
import asyncio
import bisect
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from math import ceil, inf, nan
from pathlib import Path
from typing import Any, Self

import aiormq
from aiormq.abc import AbstractChannel, DeliveredMessage

from scheduler import Context, Every, Scheduler, Settings
from scheduler.brokers.amqp.broker import AmqpBroker
from scheduler.events import Connected, Event
from scheduler.protocol.epochs import is_void
from scheduler.protocol.hatchery import timers
from scheduler.protocol.tokens import LoopId
from scheduler.tasks.loops import loop_of
from scheduler.timing.moments import SystemClock
from tests.benchmarks.fleets.record import Ran, ran, runs_in
from tests.rabbitmq import PrivateCluster, PrivateNode
from tests.stage import program_of, roster_of

RECONNECT = -1  # in the place of a loop's number
SETTLED = 60.0  # after so many seconds there is one line of each loop
EARLY = 0.01
PROCESSORS = 2

app = Scheduler("scenario", Settings(concurrency=1000, log_level="warning"))


@app.task(concurrency=1000, timeout="10m")
async def loop(ctx: Context, number: int) -> None:
    ran(number, ctx.scheduled_at.timestamp())


@app.task(concurrency=1)
async def hanging() -> None:
    await asyncio.Event().wait()


@app.listen
def witness(event: Event) -> None:
    if isinstance(event, Connected) and "FLEET_RECORDS" in os.environ:
        ran(RECONNECT)


def now() -> float:
    return SystemClock().now().timestamp()


@dataclass(frozen=True)
class Batch:
    """Loops of one period, which begin with a number.

    Attributes:
        phase: seconds after each multiple of the period at which they are due.
        spread: whether they are spread over their period instead.
    """

    count: int
    period: float
    first: int = 0
    phase: float = 0.0
    spread: bool = False

    @property
    def numbers(self) -> Mapping[int, float]:
        """The phase of each loop, in whole milliseconds."""
        step = self.period / self.count if self.spread else 0.0
        return {
            self.first + index: round((self.phase + index * step) % self.period, 3)
            for index in range(self.count)
        }

    def loops(self) -> Iterator[tuple[LoopId, Every, int]]:
        for number, phase in self.numbers.items():
            offset = timedelta(milliseconds=round(phase * 1000))
            every = Every(timedelta(seconds=self.period), mode="fixed_rate", offset=offset)
            yield LoopId("loop", f"k{number}"), every, number

    def late(
        self, runs: Sequence[Ran], since: float, until: float, back: float = -inf
    ) -> list[float]:
        """How late a loop ran for each tick that was due in this time; infinite: it did not.

        Args:
            back: when the broker was there again; no tick counts as late before.
        """
        moments: dict[int, list[float]] = defaultdict(list)
        for run in runs:
            moments[run.loop].append(run.at)
        found = list[float]()
        for number, phase in self.numbers.items():
            ran_at = sorted(moments[number])
            due = ceil((since - phase) / self.period) * self.period + phase
            while due < until:
                at = next(iter(ran_at[bisect.bisect_left(ran_at, due - EARLY) :]), inf)
                found.append(at - max(due, back))
                due += self.period
        return found


class Scene:
    """Loops at work on a broker.

    Attributes:
        failures: what was not as it must be.
    """

    def __init__(self, nodes: Sequence[PrivateNode]) -> None:
        self.nodes = nodes
        self.failures: list[str] = []
        self._directory = Path(tempfile.mkdtemp(prefix="scenario-"))
        self._processors: list[subprocess.Popen[bytes]] = []
        self._batches: Sequence[Batch] = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        for process in self._processors:
            process.kill()
            process.wait()
        shutil.rmtree(self._directory)

    async def seed(self, *batches: Batch) -> None:
        self._batches = batches
        began = now()
        async with AmqpBroker(self.nodes[0].url) as broker:
            seeding = program_of(app, broker).seeding
            await seeding.seed()
            started = await seeding.start_all(
                [
                    loop_of(loop.spec, every, {"number": number}, id.key)
                    for batch in batches
                    for id, every, number in batch.loops()
                ]
            )
        say(f"{len(started)} loops started in {now() - began:.1f} s")

    def work(self, *tasks: str) -> None:
        """Start processors; of these tasks, or of all."""
        only = ["--tasks", ",".join(tasks)] if tasks else []
        command = [sys.executable, "-m", "scheduler", "run", "tests.chaos.scenarios:app", *only]
        environment = {
            **os.environ,
            "FLEET_RECORDS": str(self._directory),
            "SCHEDULER_BROKER_URL": ",".join(node.url for node in self.nodes),
        }
        for _ in range(PROCESSORS):
            self._processors.append(subprocess.Popen(command, env=environment))

    def runs(self) -> list[Ran]:
        return list(runs_in(self._directory))

    def must(self, what: str, most: float, late: Sequence[float]) -> None:
        """Say how late these were; none may be later than so many seconds."""
        ordered = sorted(late)
        never = sum(each == inf for each in late)
        high = ordered[ceil(len(ordered) * 0.99) - 1]
        say(
            f"{what}: {len(late)} ticks, p50 {statistics.median(ordered):.3f} s, p99 {high:.3f} s, "
            f"latest {ordered[-1]:.3f} s (at most {most:g} s), never {never}"
        )
        if ordered[-1] > most:
            self.failures.append(f"{what}: {ordered[-1]:.3f} s")

    async def rest(self, since: float) -> None:
        """End the processors, and count: runs of one tick since a moment, and tokens."""
        for process in self._processors:
            process.send_signal(signal.SIGTERM)
        for process in self._processors:
            await asyncio.to_thread(process.wait, 60)
        ticks = Counter((run.loop, run.due) for run in self.runs() if run.loop != RECONNECT)
        late = Counter((run.loop, run.due) for run in self.runs() if run.at > since)
        twice, still = (sum(n > 1 for n in each.values()) for each in (ticks, late))
        tokens = await tokens_of(self.nodes[0].url)
        counts = [tokens[id] for batch in self._batches for id, _, _ in batch.loops()]
        lost, doubled = sum(n < 1 for n in counts), sum(n > 1 for n in counts)
        say(
            f"ticks run twice: {twice}, of these in the end: {still}; "
            f"loops lost: {lost}, doubled: {doubled}"
        )
        if still or lost or doubled:
            self.failures.append(f"{still} twice, {lost} lost, {doubled} doubled")


async def tokens_of(url: str) -> Counter[LoopId]:
    """Count the lines of each loop; the end of the connection requeues all tokens.

    A token that is redelivered may have been settled: it is a line only if there is no other.
    """
    found, again = Counter[LoopId](), Counter[LoopId]()
    async with AmqpBroker(url) as broker:
        listing = await roster_of(app.names, broker).read()
    async with await aiormq.connect(url) as connection:
        channel = await connection.channel()
        for queue in (*map(app.names.timer, timers()), app.names.processor_queue("loop")):
            while (taken := await head_of(channel, queue)).body:
                told = json.loads(taken.body)
                id = LoopId(told["task"], told["key"])
                if not is_void(told["epoch"], listing.known(id)):
                    (again if taken.redelivered else found)[id] += 1
    return found | Counter(dict.fromkeys(again.keys() - found.keys(), 1))


async def head_of(channel: AbstractChannel, queue: str) -> DeliveredMessage:
    """Take the message at the head of a queue; one without a body, if there is none."""
    return await channel.basic_get(queue)


def say(what: str) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


async def until(moment: float) -> None:
    await asyncio.sleep(max(moment - now(), 0))


async def rolling(scene: Scene) -> None:
    batch = Batch(1_000, 10.0, spread=True)
    await scene.seed(batch)
    scene.work()
    await asyncio.sleep(25)
    began = now()
    scene.must("before", 60, batch.late(scene.runs(), began - 12, began - 2))
    for node in scene.nodes:
        await asyncio.to_thread(node.restart)
        say(f"a node was restarted after {now() - began:.1f} s")
    over = now()
    await until(over + SETTLED + 30)
    scene.must("all the while", 60, batch.late(scene.runs(), began, now() - batch.period))
    scene.must("in the end", 10, batch.late(scene.runs(), now() - 25, now() - 10))
    await scene.rest(over + SETTLED)


async def kill(scene: Scene) -> None:
    (node,) = scene.nodes
    waiting = Batch(5_000, 300.0, spread=True)
    due = Batch(500, 20.0, first=5_000)
    await scene.seed(waiting, due)
    scene.work()
    await asyncio.sleep(20)
    await until((now() // due.period + 1) * due.period + 0.05)
    await asyncio.to_thread(node.kill)
    killed = now()
    await asyncio.sleep(12)
    await asyncio.to_thread(node.start)
    await asyncio.sleep(SETTLED + 30)
    runs, ended = scene.runs(), now()
    back = min((run.at for run in runs if run.loop == RECONNECT and run.at > killed), default=nan)
    say(f"reconnected {back - killed:.1f} s after the kill")
    scene.must("due at the kill", 10, due.late(runs, killed - 1, back, back))
    scene.must("due while it was down", 10, waiting.late(runs, killed - 1, back, back))
    scene.must("due after that", 10, waiting.late(runs, back, ended - 10))
    scene.must("of 20 s, after that", 10, due.late(runs, back, ended - 10))
    await scene.rest(back + SETTLED)


async def refusal(scene: Scene) -> None:
    (node,) = scene.nodes
    batch = Batch(200, 1.0, spread=True)
    await scene.seed(batch)
    scene.work("loop")
    await asyncio.sleep(45)
    alone = batch.late(scene.runs(), now() - 30, now() - 5)
    scene.must("alone", inf, alone)
    async with AmqpBroker(node.url) as broker:
        seeding = program_of(app, broker).seeding
        every = Every("1s")
        await seeding.start_all([loop_of(hanging.spec, every, {}, f"h{n}") for n in range(100)])
        queue = app.names.processor_queue("hanging")
        definition = '{"max-length": 1, "overflow": "reject-publish"}'
        await asyncio.to_thread(
            node.ctl, "set_policy", "full", f"^{queue}$", definition, "--apply-to", "queues"
        )
        await asyncio.sleep(10)
        began = now()
        await asyncio.sleep(60)
        say(f"in the queue that rejects: {await broker.depth(queue)}")
    # A busy machine is late by itself.
    scene.must("beside", max(1, 2 * max(alone)), batch.late(scene.runs(), began, now() - 5))
    await scene.rest(began)


async def instant(scene: Scene) -> None:
    period = 86_400.0
    due = ceil(now() / 60) * 60 + 360
    batch = Batch(60_000, period, phase=due % period)
    await scene.seed(batch)
    if now() > due - 10:
        raise RuntimeError("They are due before all have started.")
    scene.work()
    await until(due + 60 + SETTLED)
    scene.must("due at once", 60, batch.late(scene.runs(), due - 1, due + 1))
    await scene.rest(-inf)


SCENARIOS: Mapping[str, Callable[[Scene], Coroutine[Any, Any, None]]] = {
    "rolling": rolling,
    "kill": kill,
    "refusal": refusal,
    "instant": instant,
}


def main() -> int:
    parser = argparse.ArgumentParser(description="What many loops go through, with the numbers.")
    parser.add_argument("scenario", choices=SCENARIOS)
    name = parser.parse_args().scenario
    with ExitStack() as stack:
        if name == "rolling":
            nodes = stack.enter_context(PrivateCluster()).nodes
        else:
            nodes = [stack.enter_context(PrivateNode(management=False))]
        scene = stack.enter_context(Scene(nodes))
        asyncio.run(SCENARIOS[name](scene))
        for failure in scene.failures:
            say(f"NOT AS IT MUST BE: {failure}")
    return 1 if scene.failures else 0


if __name__ == "__main__":
    sys.exit(main())
