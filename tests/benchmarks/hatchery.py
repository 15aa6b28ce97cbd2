"""The timers of calls beside a binary ladder, on the same broker.

    python tests/benchmarks/hatchery.py [--url amqp://...] [--messages 1000] [--rounds 2]

The binary ladder is what NServiceBus and kombu lay out: 28 exchanges and timer queues of 2^n
seconds, the bits of the delay in the routing key. NServiceBus publishes at the highest bit that is
set, kombu always at level 27. All of them are fed by the same bare driver with the same messages,
and take turns, because machines are noisy: the ratios are what counts.

- publish: as fast as the broker confirms, 100 at a time, with the delays as they are written; the
  messages are purged, not awaited.
- trip: published at a steady rate and received. Delays of hours run through timers whose times
  are divided by 2000: the same hops, in milliseconds. Lateness counts from the delay that the
  timers can express; how far that is from the delay that was asked for is the rounding.

CPU is all that the broker's process uses meanwhile, so nobody else should use it; "-" where it is
not of this machine. The last two columns are ours divided by theirs: rates are better above 1, the
rest below.

Expect ours behind where its finer steps cost a hop: random tenths of a few seconds.
"""

import argparse
import asyncio
import math
import os
import random
import statistics
import sys
import time
import uuid
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import aiormq
from aiormq.abc import AbstractChannel, DeliveredMessage
from pamqp.commands import Basic

sys.path.insert(0, str(Path(__file__).parents[2]))

from broker_cpu import BrokerCpu

from scheduler.brokers.amqp.broker import AmqpBroker
from scheduler.protocol.calls import task_key
from scheduler.protocol.hatchery import Timer, route
from scheduler.protocol.topology import (
    AT_LEAST_ONCE,
    Binding,
    Exchange,
    Names,
    Queue,
    Topology,
    topology,
)
from scheduler.timing.durations import milliseconds, parse_duration
from tests.rabbitmq import shared_broker

LEVELS = 28
PIPELINED = 100
PER_SECOND = 250
BURSTS = 3  # a burst is short: more of them in a round
WAIT = 60.0
SCALE = 2000
SECOND = timedelta(seconds=1)


class Way(NamedTuple):
    """How a message gets its delay.

    Attributes:
        exchange: where it enters.
        delay: how long it takes: a binary ladder rounds up, ours leaves a rest to the processor.
        hops: how many queues it waits in.
    """

    exchange: str
    routing_key: str
    first_queue: str
    delay: timedelta
    hops: int


@dataclass(frozen=True)
class Timers:
    """Timers that lead to one queue."""

    name: str
    topology: Topology
    sink: str
    way: Callable[[timedelta], Way]


class Case(NamedTuple):
    """Delays to be measured.

    Attributes:
        draw: one of them.
        scale: the times of the timers are divided by this.
    """

    name: str
    draw: Callable[[random.Random], timedelta]
    scale: int = 1


def one_of(text: str) -> Callable[[random.Random], timedelta]:
    delays = [parse_duration(delay) for delay in text.split()]
    return lambda dice: dice.choice(delays)


def between(low: float, high: float, step: float) -> Callable[[random.Random], timedelta]:
    return lambda dice: timedelta(
        seconds=dice.randint(round(low / step), round(high / step)) * step
    )


PUBLISHED = (
    *(Case(delay, one_of(delay)) for delay in ("30s", "5m", "2h")),
    Case("random 1m-1d", between(60, 86_400, 0.001)),
)
TRIPS = (
    Case("1s 2s 3s 5s", one_of("1s 2s 3s 5s")),
    Case("random 0.1-8s", between(0.1, 8, 0.001)),
    # Even seconds, which a binary ladder can express, and which it scales to whole milliseconds.
    Case("30s 5m 2h", one_of("30s 5m 2h"), scale=SCALE),
    Case("random 2s-2h", between(2, 7200, 2), scale=SCALE),
)


def mixed_radix(namespace: str, scale: int) -> list[Timers]:
    """Ours."""
    names = Names(namespace)
    whole = topology(namespace, ["sink"], called=["sink"])

    def way(delay: timedelta) -> Way:
        through = route(delay)
        passed = [Timer(unit, count) for unit, count in enumerate(through.digits) if count]
        waits = [max(1, milliseconds(timer.wait) // scale) * scale for timer in passed]
        return Way(
            names.later_exchange(through.first),
            f"{through.key}.{task_key('sink')}",
            names.later_timer(passed[0]) if passed else names.processor_queue("sink"),
            timedelta(milliseconds=sum(waits)),
            len(passed),
        )

    return [Timers("ours", scaled(whole, scale), names.processor_queue("sink"), way)]


def binary(namespace: str, scale: int) -> list[Timers]:
    """The other one, entered in two ways."""
    delivery, sink = f"{namespace}.delivery", f"{namespace}.sink"

    def level(number: int) -> str:
        return f"{namespace}.level-{number:02}" if number >= 0 else delivery

    def timer(number: int) -> Queue:
        arguments = {
            "x-queue-type": "quorum",
            "x-message-ttl": 2**number * 1000,
            "x-dead-letter-exchange": level(number - 1),
        }
        return Queue(level(number), {**arguments, **AT_LEAST_ONCE})

    def bindings(number: int) -> tuple[Binding, Binding]:
        before = "*." * (LEVELS - 1 - number)
        return (
            Binding(level(number), level(number), f"{before}1.#"),
            Binding(level(number), level(number - 1), f"{before}0.#", "exchange"),
        )

    levels = range(LEVELS)
    whole = Topology(
        exchanges=(Exchange(delivery, "topic"), *(Exchange(level(n), "topic") for n in levels)),
        queues=(Queue(sink, {"x-queue-type": "quorum"}), *map(timer, levels)),
        bindings=(
            Binding(delivery, sink, f"#.{sink.replace('.', '-')}"),
            *(binding for number in levels for binding in bindings(number)),
        ),
    )

    def way(delay: timedelta, enter: int | None = None) -> Way:
        seconds = math.ceil(delay / SECOND)
        highest = seconds.bit_length() - 1
        bits = ".".join(f"{seconds:0{LEVELS}b}")
        return Way(
            level(highest if enter is None else enter),
            f"{bits}.{sink.replace('.', '-')}",
            level(highest),
            seconds * SECOND,
            seconds.bit_count(),
        )

    shared = scaled(whole, scale)
    return [
        Timers("nsb", shared, sink, way),
        Timers("kombu", shared, sink, lambda delay: way(delay, LEVELS - 1)),
    ]


def scaled(whole: Topology, scale: int) -> Topology:
    def shorter(queue: Queue) -> Queue:
        ttl = queue.arguments.get("x-message-ttl")
        if ttl is None:
            return queue
        return replace(queue, arguments={**queue.arguments, "x-message-ttl": max(1, ttl // scale)})

    return replace(whole, queues=tuple(map(shorter, whole.queues)))


@dataclass
class Measured:
    """What one set of timers did in one case, over all rounds."""

    rates: list[float] = field(default_factory=list[float])
    cpu_us: list[float] = field(default_factory=list[float])
    late_ms: list[float] = field(default_factory=list[float])
    rounding_ms: list[float] = field(default_factory=list[float])
    hops: list[int] = field(default_factory=list[int])

    def late(self, q: float) -> float:
        return statistics.quantiles(self.late_ms, n=1000, method="inclusive")[int(q * 1000) - 1]


NAMES = ("ours", "nsb", "kombu")
Results = defaultdict[tuple[str, str], Measured]


@dataclass
class Bench:
    """A connection to the broker, and what is done over it."""

    broker: AmqpBroker
    connection: aiormq.abc.AbstractConnection
    cpu: BrokerCpu

    async def declare(self, timers: Timers) -> float:
        """Returns the seconds it took."""
        began = time.perf_counter()
        await self.broker.declare(timers.topology)
        return time.perf_counter() - began

    async def delete(self, timers: Timers) -> None:
        channel = await self.connection.channel()
        for queue in timers.topology.queues:
            await channel.queue_delete(queue.name)
        for exchange in timers.topology.exchanges:
            await channel.exchange_delete(exchange.name)
        await channel.close()

    async def publish(self, timers: Timers, delays: Sequence[timedelta], into: Measured) -> None:
        """Publish as fast as can be, then delete what was published."""
        ways = list(map(timers.way, delays))
        channel = await self.connection.channel(publisher_confirms=True)
        # Queues that were touched before, as those of timers in use are.
        for way in {way.first_queue: way for way in ways}.values():
            await put(channel, way)
        rest = iter(ways)

        async def work() -> None:
            for way in rest:
                await put(channel, way)

        cpu, began = self.cpu(), time.perf_counter()
        await asyncio.gather(*(work() for _ in range(PIPELINED)))
        took = time.perf_counter() - began
        await asyncio.sleep(0.5)  # for what the broker does after the confirm
        spent = self.cpu() - cpu
        into.rates.append(len(ways) / took)
        into.cpu_us.append(spent / len(ways) * 1e6)
        for queue in {way.first_queue for way in ways}:
            await channel.queue_purge(queue)
        await channel.close()

    async def trip(
        self, timers: Timers, delays: Sequence[timedelta], scale: int, into: Measured
    ) -> None:
        """Publish at a steady rate, and receive."""
        ways = list(map(timers.way, delays))
        into.rounding_ms += [
            (way.delay - delay) / timedelta(milliseconds=1)
            for way, delay in zip(ways, delays, strict=True)
        ]
        into.hops += [way.hops for way in ways]
        late: list[float] = []
        done = asyncio.Event()
        due: dict[str, float] = {}
        consumer = await self.connection.channel(publisher_confirms=False)
        await consumer.basic_qos(prefetch_count=1000)

        async def receive(message: DeliveredMessage) -> None:
            late.append(
                (time.perf_counter() - due[str(message.header.properties.message_id)]) * 1e3
            )
            assert message.delivery_tag is not None
            await consumer.basic_ack(message.delivery_tag)
            if len(late) == len(ways):
                done.set()

        await consumer.basic_consume(timers.sink, receive)
        publisher = await self.connection.channel(publisher_confirms=True)
        cpu, began = self.cpu(), time.perf_counter()
        async with asyncio.timeout(WAIT), asyncio.TaskGroup() as sending:
            for number, way in enumerate(ways):
                await asyncio.sleep(began + number / PER_SECOND - time.perf_counter())
                due[str(number)] = time.perf_counter() + way.delay.total_seconds() / scale
                sending.create_task(put(publisher, way, str(number)))
        async with asyncio.timeout(WAIT):
            await done.wait()
        spent = self.cpu() - cpu
        into.late_ms += late
        into.cpu_us.append(spent / len(ways) * 1e6)
        await consumer.close()
        await publisher.close()


async def put(channel: AbstractChannel, way: Way, message_id: str = "") -> None:
    await channel.basic_publish(
        b'{"args":{}}',
        exchange=way.exchange,
        routing_key=way.routing_key,
        mandatory=True,
        properties=Basic.Properties(delivery_mode=2, message_id=message_id),
    )


@asynccontextmanager
async def opened(url: str) -> AsyncGenerator[Bench]:
    async with AmqpBroker(url) as broker:
        connection = await aiormq.connect(url)
        try:
            yield Bench(broker, connection, BrokerCpu(url))
        finally:
            await connection.close()


async def measure(url: str, options: argparse.Namespace) -> None:
    async with opened(url) as bench:
        say(f"{bench.broker.info.product} {bench.broker.info.version}")
        results: Results = defaultdict(Measured)
        names = "".join(f"{name:>9}" for name in NAMES)
        say(f"\n{'':18}{names}{'':8}{'/nsb':>8}{'/kombu':>8}")
        for scale in (1, SCALE):
            await of_scale(bench, scale, options, results)
        report(results)


async def of_scale(bench: Bench, scale: int, options: argparse.Namespace, results: Results) -> None:
    namespace = f"bench{uuid.uuid4().hex[:6]}"
    ours = mixed_radix(namespace, scale)
    others = binary(f"{namespace}-binary", scale)
    sets = ours + others
    try:
        seconds = [await bench.declare(timers) for timers in (ours[0], others[0])]
        if scale == 1:
            line("queues", [len(timers.topology.queues) for timers in (ours[0], others[0])])
            line("declared in", seconds, "s")
        await asyncio.sleep(2)  # until the new queues have settled
        for turn in range(options.rounds * BURSTS if scale == 1 else 0):
            for case, timers, delays in turns(PUBLISHED, sets, turn, options.messages):
                await bench.publish(timers, delays, results[f"publish {case.name}", timers.name])
        for turn in range(options.rounds):
            cases = [case for case in TRIPS if case.scale == scale]
            for case, timers, delays in turns(cases, sets, turn, options.messages):
                into = results[f"trip {case.name}", timers.name]
                await bench.trip(timers, delays, scale, into)
    finally:
        for timers in (ours[0], others[0]):
            await bench.delete(timers)


def turns(
    cases: Iterable[Case], sets: Sequence[Timers], turn: int, messages: int
) -> Iterator[tuple[Case, Timers, list[timedelta]]]:
    """Yield each case for each set, with the same delays; no set is always the first."""
    dice = random.Random(turn)
    first = turn % len(sets)
    for case in cases:
        delays = [case.draw(dice) for _ in range(messages)]
        for timers in (*sets[first:], *sets[:first]):
            yield case, timers, delays


def report(results: Results) -> None:
    for title in dict.fromkeys(title for title, _ in results):
        of = [results[title, name] for name in NAMES]
        say(title)
        if of[0].rates:
            line("  rate", [statistics.median(each.rates) for each in of], "msg/s")
        line("  broker cpu", [statistics.median(each.cpu_us) for each in of], "us/msg")
        if of[0].late_ms:
            line("  lateness p50", [each.late(0.5) for each in of], "ms")
            line("  lateness p99", [each.late(0.99) for each in of], "ms")
            line("  hops, mean", [statistics.fmean(each.hops) for each in of])
            line("  rounding, mean", [statistics.fmean(each.rounding_ms) for each in of], "ms")


def line(label: str, values: Sequence[float], unit: str = "") -> None:
    numbers = "".join(f"{shown(value):>9}" for value in values)
    ours, *others = values
    ratios = "".join(f"{shown(ours / other, 2) if other else '-':>8}" for other in others)
    padding = 9 * (len(NAMES) - len(values))
    say(f"{label:18}{numbers}{'':{padding}} {unit:7}{ratios}".rstrip())


def shown(value: float, decimals: int = 1) -> str:
    return "-" if math.isnan(value) else f"{value:.{decimals}f}"


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description="The timers of calls beside a binary ladder.")
    parser.add_argument("--url", help="a RabbitMQ; else the one that the tests would use")
    parser.add_argument("--messages", type=int, default=1000, help="for each case and round")
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    asyncio.run(measure(options.url or shared_broker(str(os.getpid())), options))


if __name__ == "__main__":
    main()
