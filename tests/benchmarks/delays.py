"""How late messages of random delays start, and whether all of them arrive, whatever dies.

    python tests/benchmarks/delays.py [--url amqp://...] [--messages 10000] [--longest 30]
        [--queue-type quorum] [--meanwhile kill|restart]

Two processors in processes of their own run the messages. Meanwhile one of them is killed, or the
broker is restarted (then it is a private one); a restarted broker with quorum queues may hand on
some messages three minutes late, which is its own pause before it tries again.
"""

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from scheduler.brokers.amqp.broker import AmqpBroker
from tests.integration.conftest import Field
from tests.integration.shop import Shop, new_namespace
from tests.rabbitmq import PrivateNode, shared_broker

CLERK = f"{Path(__file__).parents[1] / 'integration' / 'apps' / 'clerk.py'}:app"
AT_ONCE = 20  # more would wait for each other, and be late before they are sent
PATIENCE = 300.0


def say(name: str, value: object) -> None:
    sys.stdout.write(f"{name:34} {value}\n")
    sys.stdout.flush()


def memory_of(pid: int) -> float:
    """Resident memory of a process, in MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) / 1024


async def send_all(shop: Shop, delays: list[float]) -> float:
    """Returns how many were confirmed in a second."""
    numbers = iter(enumerate(delays))

    async def send() -> None:
        for n, delay in numbers:
            await shop.work.options(deadline="2m").send_later(f"{delay:.3f}s", n)

    began = time.monotonic()
    await asyncio.gather(*(send() for _ in range(AT_ONCE)))
    return len(delays) / (time.monotonic() - began)


async def ready(shop: Shop) -> int:
    """How many messages wait in the broker, not held by anybody."""
    async with AmqpBroker(shop.url) as broker:
        names = [queue.name for queue in shop.app.topology().queues]
        depths = await asyncio.gather(*map(broker.depth, names))
    return sum(depth.ready for depth in depths if depth)


async def measure(
    url: str, options: argparse.Namespace, directory: Path, node: PrivateNode | None
) -> bool:
    random = Random(1)
    delays = [random.uniform(options.shortest, options.longest) for _ in range(options.messages)]
    shop = Shop(url, new_namespace(), options.queue_type)
    field = Field(url, shop.namespace, options.queue_type, directory / "record", app=CLERK)
    try:
        await shop.seed()
        workers = [field.start("run", "--tasks", "work", "--json") for _ in range(2)]
        async with shop.app:
            await shop.work.send(-1)
            await field.until(lambda: bool(field.notes("work")))
            before = [memory_of(worker.pid) for worker in workers]
            rate = await send_all(shop, delays)
            say("published and confirmed", f"{rate:.0f}/s")
        say("waiting in the broker after that", await ready(shop))
        say("run by then", len(field.notes("work")) - 1)
        held = [memory_of(worker.pid) for worker in workers]
        say(
            "memory of processors, MiB",
            ", ".join(f"{a:.1f} -> {b:.1f}" for a, b in zip(before, held, strict=True)),
        )
        if options.meanwhile == "kill":
            workers[0].kill()
            field.start("run", "--tasks", "work", "--json")
        elif node is not None:
            await asyncio.to_thread(node.restart)
        return await report(field, options.messages)
    finally:
        for process in field.processes:
            process.kill()
            process.wait()
        await shop.sweep()


async def report(field: Field, messages: int) -> bool:
    deadline = time.monotonic() + PATIENCE
    while len({note["n"] for note in field.notes("work")}) <= messages:
        if time.monotonic() > deadline:
            break
        await asyncio.sleep(1)
    notes: list[dict[str, Any]] = [note for note in field.notes("work") if note["n"] >= 0]
    runs = Counter(note["n"] for note in notes)
    late = [note["late"] * 1000 for note in notes if not note["redelivered"]]
    cuts = statistics.quantiles(late, n=1000)
    missing, early = messages - len(runs), sum(each < 0 for each in late)
    say("lateness p50, p99, most, ms", f"{cuts[499]:.0f}, {cuts[989]:.0f}, {max(late):.0f}")
    say("run", len(runs))
    say("run more than once", sum(count > 1 for count in runs.values()))
    say("early", early)
    say("missing", missing)
    return not (early or missing)


@contextmanager
def broker_for(options: argparse.Namespace) -> Generator[tuple[str, PrivateNode | None]]:
    if options.meanwhile == "restart":
        with PrivateNode() as node:
            yield node.url, node
    else:
        yield options.url or shared_broker(str(os.getpid())), None


def main() -> None:
    parser = argparse.ArgumentParser(description="Messages of random delays.")
    parser.add_argument("--url", help="a RabbitMQ; else the one that the tests would use")
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--shortest", type=float, default=0.1)
    parser.add_argument("--longest", type=float, default=30)
    parser.add_argument("--queue-type", choices=["quorum", "classic"], default="quorum")
    parser.add_argument("--meanwhile", choices=["nothing", "kill", "restart"], default="nothing")
    options = parser.parse_args()
    with broker_for(options) as (url, node), tempfile.TemporaryDirectory() as directory:
        fine = asyncio.run(measure(url, options, Path(directory), node))
    sys.exit(0 if fine else 1)


if __name__ == "__main__":
    main()
