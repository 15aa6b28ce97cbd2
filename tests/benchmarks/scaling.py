"""How throughput grows with processors: calls that wait for 50 ms, worked off by 1, 2, 4 and 8.

    python tests/benchmarks/scaling.py [--url amqp://...] [--processors 1 2 4 8] [--seconds 10]

Each processor is a process that runs 4 calls at once, so that the waiting sets the pace, not this
machine's few cores: one works off 80 calls a second at best. Counted is by how much the queue gets
shorter, as an operator sees it. Beside it stands how many pods KEDA asks for when counting begins.

Without a URL, on a private RabbitMQ.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from scheduler import Scheduler
from scheduler.brokers.amqp.broker import AmqpBroker
from scheduler.timing.moments import SystemClock
from tests.contract.wire import eventually
from tests.k8s.autoscaler import DEDICATED, pods_for
from tests.rabbitmq import PrivateNode
from tests.stage import program_of
from tests.sweep import empty

AT_ONCE = 4
TAKES = 0.05
BEST = AT_ONCE / TAKES

app = Scheduler(os.environ.get("NAMESPACE", "scaling"))


@app.task(concurrency=AT_ONCE)
async def wait() -> None:
    await asyncio.sleep(TAKES)


@contextmanager
def processors(count: int, url: str) -> Generator[None]:
    environment = {
        **os.environ,
        "NAMESPACE": app.namespace,
        "SCHEDULER_BROKER_URL": url,
        "SCHEDULER_LOG_LEVEL": "warning",
    }
    command = [sys.executable, "-m", "scheduler", "run", f"{__file__}:app"]
    working = [
        subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) for _ in range(count)
    ]
    try:
        yield
    finally:
        for process in working:
            process.terminate()
        for process in working:
            process.wait()


async def throughput(count: int, url: str, seconds: float) -> tuple[float, int]:
    """Calls per second, and how long the queue was when the counting began."""
    queue = app.names.processor_queue("wait")
    async with AmqpBroker(url) as broker:
        app.outbox.use(broker, SystemClock())
        wanted = int(count * BEST * (seconds + 10))
        for start in range(0, wanted, 500):
            await asyncio.gather(*(wait.send() for _ in range(start, min(start + 500, wanted))))
        app.outbox.release(broker)
        with processors(count, url):

            async def all_work() -> bool:
                depth = await broker.depth(queue)
                return depth is not None and depth.consumers == count

            await eventually(all_work)
            began, before = time.monotonic(), await length_of(broker, queue)
            await asyncio.sleep(seconds)
            after, took = await length_of(broker, queue), time.monotonic() - began
            assert after, "the queue was empty before the end: give it more"
        await empty(broker, queue)
    return (before - after) / took, before


async def length_of(broker: AmqpBroker, queue: str) -> int:
    depth = await broker.depth(queue)
    assert depth is not None
    return depth.ready


async def measure(url: str, counts: list[int], seconds: float) -> None:
    async with AmqpBroker(url) as broker:
        await program_of(app, broker).seeding.seed()
    first = 0.0
    for count in counts:
        rate, length = await throughput(count, url, seconds)
        first = first or rate / count
        sys.stdout.write(
            f"{count} processors {rate:7.1f} calls/s {rate / first:5.2f}x "
            f"{rate / count / BEST:5.0%} of the best; "
            f"at {length} ready messages KEDA asks for {pods_for(DEDICATED, length)} pods\n"
        )
        sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description="How throughput grows with processors.")
    parser.add_argument("--url", help="a RabbitMQ; else a private one")
    parser.add_argument("--processors", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--seconds", type=float, default=10)
    options = parser.parse_args()
    if options.url:
        asyncio.run(measure(options.url, options.processors, options.seconds))
    else:
        with PrivateNode() as node:
            asyncio.run(measure(node.url, options.processors, options.seconds))


if __name__ == "__main__":
    main()
