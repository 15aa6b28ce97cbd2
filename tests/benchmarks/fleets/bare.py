"""What anybody would write on the bare driver: consume, publish the next message, ack.

    python -m tests.benchmarks.fleets.bare slots|timers|messages seed|work|send|sweep

- slots: a queue for each loop, of which messages with an expiration dead-letter to the one queue
  that all of them lead to. A quorum slot refuses for some milliseconds after its message left: then
  it is tried again.
- timers: the broker operations of ours, through the same timers, which dead-letter at most once.
  What is left of the wait is held.
- messages: one-off messages through the same timers.

Beside the loops, a stream is bound. Each publish is confirmed.
"""

import asyncio
import json
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import aiormq
from aiormq.abc import AbstractChannel, AbstractConnection, DeliveredMessage
from pamqp.commands import Basic

from scheduler.brokers.amqp.broker import AmqpBroker
from scheduler.brokers.amqp.session import LANES
from scheduler.cli.processing import fastest_loop
from scheduler.protocol.calls import task_key
from scheduler.protocol.hatchery import route
from scheduler.protocol.tokens import LoopId, token_key
from tests.benchmarks.fleets import ours
from tests.benchmarks.fleets.messages import send_all
from tests.benchmarks.fleets.record import EVERY, LOOPS, NAME, URL, offset_of, ran

OUT, IN, READY, JOURNAL = (f"{NAME}.{name}" for name in ("out", "in", "ready", "journal"))
QUORUM: dict[str, Any] = {"x-queue-type": "quorum"}
SLOT: dict[str, Any] = {
    **QUORUM,
    "x-dead-letter-exchange": IN,
    "x-dead-letter-strategy": "at-least-once",
    "x-overflow": "reject-publish",
    "x-max-length": 0,
}


class Timers:
    """Messages of loops wait in the timers of ours.

    Attributes:
        ready: the queue of what is due.
        lanes: over how many channels they are published.
    """

    ready, lanes = ours.app.names.processor_queue("loop"), LANES

    async def declare(self) -> None:
        async with AmqpBroker(URL) as broker:
            await broker.declare(ours.app.topology())

    async def sweep(self) -> None:
        await ours.sweep()

    async def put(self, channel: AbstractChannel, number: int, due: float) -> None:
        way = route(timedelta(seconds=max(due - time.time(), 0)))  # noqa: TID251
        key = token_key(LoopId("loop", f"k{number}"), way.key)
        await publish(channel, number, due, ours.app.names.scheduler, key)

    async def seed(self) -> None:
        await self.declare()
        first = int(time.time()) + 2  # noqa: TID251
        async with await aiormq.connect(URL) as connection:
            lanes = await self._channels(connection)
            dues = [first + offset_of(number) for number in range(LOOPS)]
            await asyncio.gather(
                *(self._put(lanes, number, due) for number, due in enumerate(dues))
            )

    async def work(self) -> None:
        connection = await aiormq.connect(URL)
        lanes, consumer = await self._channels(connection), await connection.channel()

        async def run(message: DeliveredMessage) -> None:
            told = json.loads(message.body)
            if (early := told["due"] - time.time()) > 0:  # noqa: TID251
                await asyncio.sleep(early)
            ran(told["number"], told["due"])
            await self._put(lanes, told["number"], told["due"] + EVERY)
            assert message.delivery_tag is not None
            await consumer.basic_ack(message.delivery_tag)

        await consumer.basic_qos(prefetch_count=2000)
        await consumer.basic_consume(self.ready, run)
        await asyncio.Event().wait()

    async def _channels(self, connection: AbstractConnection) -> Sequence[AbstractChannel]:
        return [await connection.channel() for _ in range(self.lanes)]

    async def _put(self, lanes: Sequence[AbstractChannel], number: int, due: float) -> None:
        await self.put(lanes[number % self.lanes], number, due)


class Slots(Timers):
    ready, lanes = READY, 1

    async def declare(self) -> None:
        async with await aiormq.connect(URL) as connection:
            channel = await connection.channel()
            for exchange in OUT, IN:
                await channel.exchange_declare(exchange, exchange_type="topic", auto_delete=False)
            await channel.queue_declare(READY, durable=True, arguments=QUORUM)
            await channel.queue_bind(READY, IN, routing_key="#")
            await channel.queue_declare(JOURNAL, durable=True, arguments={"x-queue-type": "stream"})
            await channel.queue_bind(JOURNAL, OUT, routing_key="#")
            for number in range(LOOPS):
                await channel.queue_declare(self._slot(number), durable=True, arguments=SLOT)
                await channel.queue_bind(self._slot(number), OUT, routing_key=f"loop.{number}")

    async def sweep(self) -> None:
        async with await aiormq.connect(URL) as connection:
            channel = await connection.channel()
            for queue in (READY, JOURNAL, *map(self._slot, range(LOOPS))):
                await channel.queue_delete(queue)
            for exchange in OUT, IN:
                await channel.exchange_delete(exchange)

    async def put(self, channel: AbstractChannel, number: int, due: float) -> None:
        while True:
            wait = max(int((due - time.time()) * 1000), 0)  # noqa: TID251
            try:
                await publish(channel, number, due, OUT, f"loop.{number}", expiration=str(wait))
            except aiormq.exceptions.DeliveryError:
                await asyncio.sleep(0.002)
            else:
                return

    def _slot(self, number: int) -> str:
        return f"{NAME}.slot{number}"


class Messages(Timers):
    ready = ours.app.names.processor_queue("note")

    async def seed(self) -> None:
        await ours.seed()

    async def put(self, channel: AbstractChannel, number: int, due: float) -> None:
        """None comes after a one-off message."""

    async def send(self) -> None:
        connection = await aiormq.connect(URL)
        channel = await connection.channel()

        async def one(number: int, delay: timedelta, due_at: datetime) -> None:
            later, due, headers = ours.app.names.later, due_at.timestamp(), route(delay).headers
            await publish(channel, number, due, later, task_key("note"), headers)

        await send_all(one)


async def publish(
    channel: AbstractChannel,
    number: int,
    due: float,
    exchange: str,
    key: str,
    headers: Mapping[str, Any] | None = None,
    expiration: str | None = None,
) -> None:
    properties = Basic.Properties(
        headers=dict(headers or {}), expiration=expiration, delivery_mode=2
    )
    await channel.basic_publish(
        json.dumps({"number": number, "due": due}).encode(),
        exchange=exchange,
        routing_key=key,
        mandatory=True,
        properties=properties,
    )


if __name__ == "__main__":
    bare = {"slots": Slots, "timers": Timers, "messages": Messages}[sys.argv[1]]()
    with asyncio.Runner(loop_factory=fastest_loop()) as runner:  # as a processor's
        runner.run(getattr(bare, sys.argv[2])())
