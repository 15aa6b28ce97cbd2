"""What the operators' verbs take where very much is parked: each a process, by wall and memory.

    python tests/benchmarks/parked.py [--url amqp://...] [--messages 100000]

The messages are published by the bare driver, every second one with another reason. Beside each
verb stands how many messages it told of, and how many are parked after it: nothing may be left out
silently, so what does not fit what was asked for is an error. Memory is the greatest resident set
of the process (`/usr/bin/time -v` calls it maximum resident set size).

Without a URL, on a private RabbitMQ.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import aiormq
from pamqp.commands import Basic

sys.path.insert(0, str(Path(__file__).parents[2]))

from scheduler import Scheduler
from scheduler.brokers.amqp.broker import AmqpBroker
from scheduler.protocol.calls import new_call, task_key
from scheduler.protocol.messages import Message
from scheduler.queues.failed import Reason, parked, read_parked
from scheduler.timing.clock import SystemClock
from tests.rabbitmq import PrivateNode
from tests.stage import program_of
from tests.sweep import empty

MOST_MEGABYTES = 100
AT_ONCE = 1000
LOOKS, LOOK_PAUSE = 50, 0.1
REASONS = Reason.EXHAUSTED, Reason.REJECTED
PARKED_AT = SystemClock().now()

app = Scheduler(os.environ.get("NAMESPACE", f"parked{uuid.uuid4().hex[:6]}"))


@app.task()
async def send(number: int) -> None: ...


class Cost(NamedTuple):
    """What a command took.

    Attributes:
        told: how many of its lines tell of a message.
    """

    seconds: float
    megabytes: float
    told: int


def parked_call(number: int) -> Message:
    """A call as it is parked after its last attempt."""
    call = new_call(
        app.namespace,
        "send",
        {"number": number},
        message_id=f"message-{number:08}",
        sent_at=PARKED_AT,
        due_at=PARKED_AT,
    )
    try:
        raise ValueError(f"the provider does not know customer {number}")
    except ValueError as error:
        return parked(call, task_key("send"), REASONS[number % 2], error, PARKED_AT)


async def park(url: str, messages: int) -> None:
    """Publish them as anybody could, without a line of ours."""
    connection = await aiormq.connect(url)
    channel = await connection.channel(publisher_confirms=True)
    for first in range(0, messages, AT_ONCE):
        numbers = range(first, min(first + AT_ONCE, messages))
        await asyncio.gather(*(publish(channel, parked_call(number)) for number in numbers))
    await connection.close()


async def publish(channel: aiormq.abc.AbstractChannel, message: Message) -> None:
    properties = Basic.Properties(
        headers=dict(message.headers),
        content_type=message.content_type,
        message_id=message.message_id,
        message_type=message.type,
        delivery_mode=2,
        timestamp=message.timestamp,
    )
    await channel.basic_publish(
        message.body,
        exchange=app.names.failed,
        routing_key=task_key("send"),
        properties=properties,
    )


def run(url: str, verb: str, *options: str) -> Cost:
    """Run a verb as operators do, with its output to a file."""
    command = [sys.executable, "-m", "scheduler", "failed", verb, f"{__file__}:app", *options]
    environment = {**os.environ, "NAMESPACE": app.namespace, "SCHEDULER_BROKER_URL": url}
    began = time.perf_counter()
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = sum("message-" in line for line in process.stdout)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return Cost(time.perf_counter() - began, usage.ru_maxrss / 1024, told)


async def depth_of(broker: AmqpBroker, queue: str) -> int:
    depth = await broker.depth(queue)
    assert depth is not None
    return depth.ready


class Table:
    """Verbs, one after the other, each checked and printed."""

    def __init__(self, broker: AmqpBroker, url: str) -> None:
        self._broker = broker
        self._url = url
        self._failed = app.names.failed_queue("send")
        self.right = True

    async def add(self, verb: str, *options: str, tells: int, leaves: int) -> None:
        cost = await asyncio.to_thread(run, self._url, verb, *options)
        left = await self._left(leaves)
        right = (cost.told, left) == (tells, leaves) and cost.megabytes < MOST_MEGABYTES
        self.right &= right
        name = " ".join(("failed", verb, *(option for option in options if option != "--yes")))
        say(
            f"{name:54} {cost.seconds:>7.1f} s {cost.megabytes:>6.0f} MB  told {cost.told:>7,}  "
            f"parked after it {left:>7,}{'' if right else '  NOT RIGHT'}"
        )

    async def _left(self, expected: int) -> int:
        """How many are parked; RabbitMQ counts what was acked a moment later."""
        for _ in range(LOOKS):
            if (left := await depth_of(self._broker, self._failed)) == expected:
                return left
            await asyncio.sleep(LOOK_PAUSE)
        return await depth_of(self._broker, self._failed)


async def verbs(broker: AmqpBroker, url: str, messages: int) -> bool:
    """All that operators do with what is parked; whether it is as it should be."""
    table, half = Table(broker, url), (messages + 1) // 2
    await park(url, messages)
    await table.add("list", "--limit", str(messages), tells=messages, leaves=messages)
    await table.add("list", "--limit", str(messages), "--json", tells=messages, leaves=messages)
    exhausted = "--reason", REASONS[0].value
    await table.add("list", *exhausted, "--limit", str(messages), tells=half, leaves=messages)
    last = read_parked(parked_call(messages - 1), "", task_key("send")).id
    await table.add("show", last, tells=1, leaves=messages)
    await table.add("replay", "--all", tells=messages, leaves=0)
    replayed = await empty(broker, app.names.processor_queue("send"))
    say(f"{replayed:,} were replayed")
    await park(url, messages)
    await table.add("purge", *exhausted, "--yes", tells=half, leaves=messages - half)
    await table.add("purge", "--all", "--yes", tells=messages - half, leaves=0)
    return table.right and replayed == messages


async def measure(url: str, messages: int) -> bool:
    async with AmqpBroker(url) as broker:
        say(f"{messages:,} parked messages, {broker.info.product} {broker.info.version}")
        await program_of(app, broker).seeding.seed()
        try:
            return await verbs(broker, url, messages)
        finally:
            for queue in app.topology().queues:
                await broker.delete(queue.name)


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url")
    parser.add_argument("--messages", type=int, default=100_000)
    options = parser.parse_args(arguments)
    if options.url:
        return 0 if asyncio.run(measure(options.url, options.messages)) else 1
    with PrivateNode() as node:
        return 0 if asyncio.run(measure(node.url, options.messages)) else 1


if __name__ == "__main__":
    sys.exit(main())
