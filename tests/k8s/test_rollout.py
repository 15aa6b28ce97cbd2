"""A rollout, played with real processes under the numbers of the manifests."""

import asyncio
import urllib.error
import urllib.request
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from scheduler import Scheduler, Settings
from scheduler.brokers.amqp.broker import AmqpBroker
from tests.integration.conftest import Field, at_rest, ready, sweep
from tests.k8s.builds import container, environment, one
from tests.rabbitmq import free_ports
from tests.warm import Program

SOME = 4
LOOPS = 50
PER_SECOND = 20
LONG = 20.0
PAUSE = 5.0  # what stops goes on after 15 s, by supervision


class Rollout:
    """The processors of a Deployment, and what takes their place."""

    def __init__(self, field: Field) -> None:
        manifest = one("base", "Deployment", "scheduler-processor")["spec"]
        pod = manifest["template"]["spec"]
        probe = container(one("base", "Deployment", "scheduler-processor"))["readinessProbe"]
        self.killed_after = pod["terminationGracePeriodSeconds"]
        self.replicas = manifest["replicas"]
        self._asked_every = probe.get("periodSeconds", 10)
        settings = environment("base")
        self._environment = {
            name: settings[name]
            for name in ("SCHEDULER_SHUTDOWN_GRACE", "SCHEDULER_CONCURRENCY")
            if name in settings
        }
        self._field = field

    async def up(self) -> Program:
        """A new processor, when its readiness probe has passed."""
        (port,) = free_ports(1)
        process = self.start("run", SCHEDULER_HEALTH_PORT=str(port))
        async with asyncio.timeout(30):
            while not await asyncio.to_thread(is_ready, port):  # noqa: ASYNC110 - as kubelet asks
                await asyncio.sleep(min(self._asked_every, 0.2))
        return process

    async def down(self, process: Program) -> float:
        """SIGTERM; how long it took to end."""
        began = monotonic()
        process.terminate()
        assert await asyncio.to_thread(process.wait, self.killed_after) == 0
        return monotonic() - began

    def start(self, *arguments: str, **environment: str) -> Program:
        return self._field.start(
            *arguments, LOOPS=str(LOOPS), EVERY="1s", **self._environment, **environment
        )


def is_ready(port: int) -> bool:
    url = f"http://127.0.0.1:{port}/readyz"
    try:
        with urllib.request.urlopen(url, timeout=1) as answer:
            return answer.status == 200
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


@asynccontextmanager
async def sending(client: Scheduler, work: Any) -> AsyncGenerator[list[int]]:
    """Calls, so many a second, from another process than the processors'."""
    sent: list[int] = []
    enough = asyncio.Event()

    async def send() -> None:
        while not enough.is_set():
            await work.send(len(sent))
            sent.append(len(sent))
            await asyncio.sleep(1 / PER_SECOND)

    async with client:
        going_on = asyncio.create_task(send())
        try:
            yield sent
        finally:
            enough.set()  # what is cancelled may have been sent
            await going_on


def is_going_round(field: Field, since: float) -> bool:
    """Whether each loop has run some times since then."""
    runs = Counter(note["loop"] for note in field.notes("start") if note["at"] > since)
    return len(runs) == LOOPS and min(runs.values()) >= SOME


def pauses(starts: list[dict[str, Any]]) -> dict[str, float]:
    """The longest time between two runs of each loop."""
    times = defaultdict[str, list[float]](list)
    for note in starts:
        times[note["loop"]].append(note["at"])
    return {
        loop: max(later - earlier for earlier, later in pairwise(sorted(at)))
        for loop, at in times.items()
    }


@pytest.mark.timeout(180)
async def test_a_rollout_loses_nothing_repeats_nothing_and_stops_no_loop(
    broker_url: str,
    namespace: str,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    field = Field(broker_url, namespace, "quorum", tmp_path / "record", app="tests.k8s.rolled:app")
    url: Any = broker_url
    client = Scheduler(namespace, Settings(broker_url=url))

    async def work(n: int) -> None: ...

    async def plod(seconds: float) -> None: ...

    works, plods = client.task(name="work")(work), client.task(name="plod")(plod)
    rollout = Rollout(field)
    try:
        assert await asyncio.to_thread(rollout.start("seed").wait, 60) == 0
        old = [await rollout.up() for _ in range(rollout.replicas)]
        async with sending(client, works) as sent:
            await plods.send(LONG)
            await field.until(lambda: bool(field.notes("plodding")))
            calm = monotonic()
            await field.until(lambda: is_going_round(field, since=calm))
            rolled = monotonic()
            took: list[float] = []
            for processor in old:
                # One more at first, and never one less: maxSurge 1, maxUnavailable 0.
                await rollout.up()
                took.append(await rollout.down(processor))
            new = len(field.notes("start"))
            await field.until(lambda: len(field.notes("start")) >= new + LOOPS * 3)
        for processor in field.processes:
            if processor.poll() is None:
                await rollout.down(processor)
        async with AmqpBroker(broker_url) as broker:
            queues = [f"{namespace}.v1.processor.work", f"{namespace}.v1.failed.work"]
            assert await at_rest(lambda: ready(broker, *queues)) == 0
            assert await field.tokens(broker, LOOPS) == {f"loop{n}": 1 for n in range(LOOPS)}
        assert [len(field.notes(what)) for what in ("plodding", "plodded")] == [1, 1]
        assert max(took) > LONG / 2  # it was drained, while the rollout waited
        assert Counter(note["n"] for note in field.notes("work")) == Counter(sent)
        starts = field.notes("start")
        ticks = Counter((note["loop"], note["seq"]) for note in starts)
        assert set(ticks.values()) == {1}
        assert {loop for loop, _ in ticks} == {f"loop{n}" for n in range(LOOPS)}
        assert not field.notes("cancelled")
        before = pauses([note for note in starts if calm < note["at"] < rolled])
        during = pauses([note for note in starts if note["at"] > rolled])
        # On a machine that is busy with other things as well, loops pause without a rollout too;
        # and in it each processor that starts takes some time of a core.
        noise = (max(before.values()) - 1) * (rollout.replicas + 1)
        record_property("longest pauses", (max(before.values()), max(during.values())))
        record_property("SIGTERM to exit", took)
        assert max(during.values()) < PAUSE + noise
    finally:
        for process in field.processes:
            process.kill()
            process.wait()
        await sweep(field, LOOPS)
