"""Reading a stream back, beside the raw driver.

    python tests/benchmarks/reading.py [--url amqp://...] [--messages 20000] [--loops 1000]
                                       [--together 1] [--rounds 5]

The stream holds tokens of so many loops, published one after the other, or some together: what a
broker takes in together it keeps in one chunk. The ways to read it take turns, because machines are
noisy: the ratios to the raw driver of the same round are what counts, and of them the CPU times,
ours and the broker's, rather than the rates.

- raw: a consumer of the driver that does nothing, acks some together, and stops at the last one.
- read: all messages, until nothing more comes; less the time in which nothing came.
- to the end: all messages, to a mark.
"""

import argparse
import asyncio
import os
import statistics
import sys
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import aiormq
from aiormq.abc import DeliveredMessage

sys.path.insert(0, str(Path(__file__).parents[2]))

from broker_cpu import BrokerCpu

from scheduler import Every
from scheduler.brokers.amqp.broker import AmqpBroker
from scheduler.brokers.amqp.streams import PREFETCH
from scheduler.protocol.messages import Message
from scheduler.protocol.tokens import Ending, LastRun, LoopId, Token, encode
from scheduler.protocol.topology import Queue, Topology
from scheduler.timing.moments import SystemClock
from tests.rabbitmq import shared_broker

SECOND = timedelta(seconds=1)
TIMEOUT = timedelta(hours=1)


class Cost(NamedTuple):
    """Of one message of the stream.

    Attributes:
        wall: seconds until it was read.
        ours: seconds of our CPU.
        brokers: seconds of the broker's.
    """

    wall: float
    ours: float
    brokers: float


def token_of(number: int) -> Message:
    """A token as one that has travelled for a while."""
    loop, now = LoopId("poll", f"customer-{number:05}"), SystemClock().now()
    args = {"customer": number}
    run = LastRun(Ending.SUCCEEDED, now, now, SECOND / 50)
    token = Token(
        loop,
        Every("10s"),
        now,
        now,
        epoch=1_700_000_000_000,
        seq=123_456,
        args=args,
        carry={"cursor": "0123456789"},
        previous_at=now,
        last=run,
    )
    return encode(token, "bench")


async def fill(broker: AmqpBroker, stream: str, options: argparse.Namespace) -> None:
    tokens = [token_of(number) for number in range(options.loops)]
    for first in range(0, options.messages, options.together):
        numbers = range(first, min(first + options.together, options.messages))
        await asyncio.gather(
            *(
                broker.publish(tokens[number % len(tokens)], exchange="", routing_key=stream)
                for number in numbers
            )
        )


async def raw(url: str, stream: str, messages: int) -> int:
    connection = await aiormq.connect(url)
    channel = await connection.channel(publisher_confirms=False)
    await channel.basic_qos(prefetch_count=PREFETCH)
    taken, last = 0, asyncio.get_running_loop().create_future()

    async def take(message: DeliveredMessage) -> None:
        nonlocal taken
        taken += 1
        if taken == messages:
            last.set_result(None)
        elif taken < messages and taken % (PREFETCH // 2) == 0:
            assert message.delivery_tag is not None
            await channel.basic_ack(message.delivery_tag, multiple=True)

    await channel.basic_consume(stream, take, arguments={"x-stream-offset": "first"})
    await last
    await connection.close()
    return taken


async def read(broker: AmqpBroker, stream: str, messages: int) -> int:
    taken = 0
    async with aclosing(broker.read(stream)) as reading:
        async for _ in reading:
            taken += 1
            if taken == messages:
                break
    return taken


async def to_end(broker: AmqpBroker, stream: str) -> int:
    reading = broker.read_to_end(stream, exchange="", routing_key=stream, timeout=TIMEOUT)
    return len([None async for _ in reading])


async def cost_of(way: Callable[[], Awaitable[int]], messages: int, cpu: BrokerCpu) -> Cost:
    before = time.perf_counter(), time.process_time(), cpu()
    await way()
    after = time.perf_counter(), time.process_time(), cpu()
    return Cost(*((end - begin) / messages for begin, end in zip(before, after, strict=True)))


async def measure(url: str, options: argparse.Namespace) -> dict[str, list[Cost]]:
    stream, cpu = f"bench.{uuid.uuid4().hex[:8]}", BrokerCpu(url)
    async with AmqpBroker(url) as broker:
        await broker.declare(Topology(queues=(Queue(stream, {"x-queue-type": "stream"}),)))
        await fill(broker, stream, options)
        ways: dict[str, Callable[[], Awaitable[int]]] = {
            "raw": lambda: raw(url, stream, options.messages),
            "read": lambda: read(broker, stream, options.messages),
            "to the end": lambda: to_end(broker, stream),
        }
        costs: dict[str, list[Cost]] = {name: [] for name in ways}
        for _ in range(options.rounds):
            for name, way in ways.items():
                costs[name].append(await cost_of(way, options.messages, cpu))
        await broker.delete(stream)
    return costs


def show(costs: dict[str, list[Cost]]) -> None:
    sys.stdout.write("             messages/s  our CPU us  broker's us  rate x  our CPU x\n")
    for name, each in costs.items():
        wall, ours, brokers = map(statistics.median, zip(*each, strict=True))
        pairs = list(zip(each, costs["raw"], strict=True))
        rate = statistics.median(its.wall / cost.wall for cost, its in pairs)
        share = statistics.median(cost.ours / its.ours for cost, its in pairs)
        sys.stdout.write(
            f"{name:12} {1 / wall:10.0f} {ours * 1e6:11.1f} {brokers * 1e6:12.1f}"
            f" {rate:7.2f} {share:10.2f}\n"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Reading a stream back, beside the raw driver.")
    parser.add_argument("--url", help="a RabbitMQ; else the one that the tests would use")
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--loops", type=int, default=1000)
    parser.add_argument("--together", type=int, default=1, help="published at once")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    show(asyncio.run(measure(options.url or shared_broker(str(os.getpid())), options)))


if __name__ == "__main__":
    main()
