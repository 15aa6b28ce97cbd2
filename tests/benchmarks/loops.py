"""How late loops start, and what a cycle costs, beside the bare driver doing the same.

    python tests/benchmarks/loops.py [--url amqp://...] [--loops 50] [--seconds 10] [--rounds 3]

The bare driver's loop is what anybody would write by hand on aiormq: consume, hold what is left of
the wait, publish the next message with a confirm, ack; same queues, same timers, same broker. The
two take turns, because machines are noisy: the ratios are what counts.
"""

import argparse
import asyncio
import os
import statistics
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiormq
from aiormq.abc import AbstractChannel, DeliveredMessage
from pamqp.commands import Basic

sys.path.insert(0, str(Path(__file__).parents[2]))

from scheduler import Scheduler, Settings
from scheduler.brokers.amqp.broker import AmqpBroker
from scheduler.events import Event, RunStarted
from scheduler.protocol.hatchery import route
from scheduler.protocol.tokens import LoopId
from scheduler.protocol.topology import QueueType, token_key
from scheduler.testing import simulate
from tests.rabbitmq import shared_broker
from tests.stage import at_work, processor_of, program_of


@dataclass
class Measured:
    late_ms: list[float] = field(default_factory=list[float])
    cpu_s: float = 0

    def add(self, late_ms: Sequence[float], cpu_s: float) -> None:
        self.late_ms += late_ms
        self.cpu_s += cpu_s

    @property
    def cpu_us(self) -> float:
        return self.cpu_s / len(self.late_ms) * 1e6

    def quantile(self, q: float) -> float:
        return statistics.quantiles(self.late_ms, n=1000, method="inclusive")[int(q * 1000) - 1]


def new_app(loops: int, period: str, queue_type: QueueType) -> Scheduler:
    app = Scheduler(f"bench{uuid.uuid4().hex[:6]}", Settings(queue_type=queue_type))

    async def nothing() -> None: ...

    for number in range(loops):
        app.periodic(every=period, name=f"loop{number}")(nothing)
    return app


async def ours(url: str, app: Scheduler, seconds: float, into: Measured) -> None:
    late: list[float] = []

    def note(event: Event) -> None:
        if isinstance(event, RunStarted):
            late.append(event.late / timedelta(milliseconds=1))

    async with AmqpBroker(url) as broker:
        await program_of(app, broker).seeding.seed()
        app.listen(note)
        cpu = time.process_time()
        async with at_work(processor_of(app, broker, concurrency=1000, supervises=False)):
            await asyncio.sleep(seconds)
        into.add(late, time.process_time() - cpu)
        await sweep(broker, app)


async def bare(url: str, app: Scheduler, period: float, seconds: float, into: Measured) -> None:
    late: list[float] = []
    names = app.names
    async with AmqpBroker(url) as broker:
        await broker.declare(app.topology())
    connection = await aiormq.connect(url)
    publisher = await connection.channel(publisher_confirms=True)

    async def put(loop: LoopId) -> None:
        due = datetime.now(UTC).timestamp() + period
        await publisher.basic_publish(
            b"{}",
            exchange=names.scheduler,
            routing_key=token_key(loop, route(timedelta(seconds=period)).key),
            mandatory=True,
            properties=Basic.Properties(
                delivery_mode=2,
                message_id=uuid.uuid4().hex,
                headers={"loop": loop.task, "due": str(due)},
            ),
        )

    async def consume(loop: LoopId) -> AbstractChannel:
        channel = await connection.channel(publisher_confirms=False)
        await channel.basic_qos(prefetch_count=10)

        async def run(message: DeliveredMessage) -> None:
            headers = message.header.properties.headers or {}
            due = float(str(headers["due"]))
            if (early := due - datetime.now(UTC).timestamp()) > 0:
                await asyncio.sleep(early)
            late.append((datetime.now(UTC).timestamp() - due) * 1000)
            await put(loop)
            assert message.delivery_tag is not None
            await channel.basic_ack(message.delivery_tag)

        await channel.basic_consume(names.processor_queue(loop.task), run)
        return channel

    for loop in app.loops:
        await put(loop)
    cpu = time.process_time()
    for loop in app.loops:
        await consume(loop)
    await asyncio.sleep(seconds)
    into.add(late, time.process_time() - cpu)
    await connection.close()
    async with AmqpBroker(url) as broker:
        await sweep(broker, app)


async def sweep(broker: AmqpBroker, app: Scheduler) -> None:
    for queue in app.topology().queues:
        await broker.delete(queue.name)


def virtual_year() -> float:
    app = Scheduler("year", Settings())

    async def nothing() -> None: ...

    for zone in ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "UTC"):
        app.periodic(cron="30 2 * * *", tz=zone, name=zone.replace("/", "-"))(nothing)
    began = time.perf_counter()
    simulate(app, "365d")
    return time.perf_counter() - began


def report(name: str, us: Measured, driver: Measured) -> None:
    def row(label: str, mine: float, theirs: float, unit: str) -> None:
        sys.stdout.write(
            f"{name:9} {label:14} {mine:8.1f} {theirs:8.1f} {unit:3} {mine / theirs:6.2f}x\n"
        )

    row("lateness p50", us.quantile(0.5), driver.quantile(0.5), "ms")
    row("lateness p99", us.quantile(0.99), driver.quantile(0.99), "ms")
    row("cpu per cycle", us.cpu_us, driver.cpu_us, "us")


async def measure(url: str, options: argparse.Namespace) -> None:
    sys.stdout.write(f"{'':24} {'loops':>8} {'driver':>8} {'':3} {'ratio':>7}\n")
    for queue_type in ("quorum", "classic"):
        us, driver = Measured(), Measured()
        for _ in range(options.rounds):
            await ours(url, new_app(options.loops, "1s", queue_type), options.seconds, us)
            app = new_app(options.loops, "1s", queue_type)
            await bare(url, app, 1.0, options.seconds, driver)
        report(queue_type, us, driver)


def main() -> None:
    parser = argparse.ArgumentParser(description="Loops beside the bare driver.")
    parser.add_argument("--url", help="a RabbitMQ; else the one that the tests would use")
    parser.add_argument("--loops", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    sys.stdout.write(f"a year of four daily loops in virtual time: {virtual_year():.2f} s\n")
    asyncio.run(measure(options.url or shared_broker(str(os.getpid())), options))


if __name__ == "__main__":
    main()
