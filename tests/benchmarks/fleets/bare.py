"""Loops as anybody would write them on the bare driver, with the broker operations of ours.

A slot for each loop, a queue that all of them lead to, a stream bound beside the slots; consume,
publish the next message with an expiration and a confirm, ack. A quorum slot refuses for some
milliseconds after its message left: then it is tried again.
"""

import asyncio
import json
import sys
import time
from typing import Any

import aiormq
from aiormq.abc import AbstractChannel, DeliveredMessage
from pamqp.commands import Basic

from scheduler.cli.processing import fastest_loop
from tests.benchmarks.fleets.record import EVERY, LOOPS, NAME, URL, offset_of, ran

OUT, IN = f"{NAME}.out", f"{NAME}.in"
QUORUM: dict[str, Any] = {"x-queue-type": "quorum"}
SLOT: dict[str, Any] = {
    **QUORUM,
    "x-dead-letter-exchange": IN,
    "x-dead-letter-strategy": "at-least-once",
    "x-overflow": "reject-publish",
    "x-max-length": 0,
}


def queues() -> list[str]:
    return [f"{NAME}.ready", f"{NAME}.journal", *(f"{NAME}.slot{n}" for n in range(LOOPS))]


async def declare(channel: AbstractChannel) -> None:
    ready, journal, *slots = queues()
    for exchange in OUT, IN:
        await channel.exchange_declare(exchange, exchange_type="topic", auto_delete=False)
    await channel.queue_declare(ready, durable=True, arguments=QUORUM)
    await channel.queue_bind(ready, IN, routing_key="#")
    await channel.queue_declare(journal, durable=True, arguments={"x-queue-type": "stream"})
    await channel.queue_bind(journal, OUT, routing_key="#")
    for number, slot in enumerate(slots):
        await channel.queue_declare(slot, durable=True, arguments=SLOT)
        await channel.queue_bind(slot, OUT, routing_key=f"loop.{number}")


async def put(channel: AbstractChannel, number: int, due: float) -> None:
    while True:
        wait = max(int((due - time.time()) * 1000), 0)  # noqa: TID251
        try:
            await channel.basic_publish(
                json.dumps({"loop": number, "due": due}).encode(),
                exchange=OUT,
                routing_key=f"loop.{number}",
                mandatory=True,
                properties=Basic.Properties(expiration=str(wait), delivery_mode=2),
            )
        except aiormq.exceptions.DeliveryError:
            await asyncio.sleep(0.002)
        else:
            return


async def seed() -> None:
    connection = await aiormq.connect(URL)
    channel = await connection.channel()
    await declare(channel)
    first = int(time.time()) + 2  # noqa: TID251
    await asyncio.gather(*(put(channel, n, first + offset_of(n)) for n in range(LOOPS)))
    await connection.close()


async def work() -> None:
    connection = await aiormq.connect(URL)
    publisher, consumer = await connection.channel(), await connection.channel()

    async def run(message: DeliveredMessage) -> None:
        told = json.loads(message.body)
        ran(told["loop"], told["due"])
        await put(publisher, told["loop"], told["due"] + EVERY)
        assert message.delivery_tag is not None
        await consumer.basic_ack(message.delivery_tag)

    await consumer.basic_qos(prefetch_count=2000)
    await consumer.basic_consume(queues()[0], run)
    await asyncio.Event().wait()


async def sweep() -> None:
    connection = await aiormq.connect(URL)
    channel = await connection.channel()
    for queue in queues():
        await channel.queue_delete(queue)
    for exchange in OUT, IN:
        await channel.exchange_delete(exchange)
    await connection.close()


if __name__ == "__main__":
    main = {"seed": seed, "work": work, "sweep": sweep}[sys.argv[1]]
    with asyncio.Runner(loop_factory=fastest_loop()) as runner:  # as a processor's
        runner.run(main())
