"""Where a field is: the embedded broker in virtual time, or a RabbitMQ."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from scheduler.brokers.amqp.broker import AmqpBroker
from scheduler.brokers.memory.broker import MemoryBroker
from scheduler.brokers.memory.server import MemoryServer
from scheduler.protocol.administration import rights_to_send
from scheduler.protocol.topology import Names, QueueType
from scheduler.timing.moments import LoopClock, SystemClock
from tests.fuzz.field import EmbeddedPublisher, Field, ForeignPublisher, Publisher, ploughed
from tests.rabbitmq import Users
from tests.stage import START
from tests.sweep import clear

PUBLISHERS = 4


@asynccontextmanager
async def embedded(queue_type: QueueType) -> AsyncGenerator[Field]:
    """A field on an embedded broker; in a loop of virtual time."""
    clock = LoopClock(START)
    server = MemoryServer(clock)
    one: list[Publisher] = [EmbeddedPublisher(server)]
    connect = ploughed("fuzz", queue_type, clock, lambda _: MemoryBroker(server), one)
    async with connect as field:
        yield field


@asynccontextmanager
async def on_rabbitmq(
    url: str, namespace: str, queue_type: QueueType, users: Users
) -> AsyncGenerator[Field]:
    """A field on a RabbitMQ, swept in the end."""
    to_send = rights_to_send(Names(namespace))
    sender = users.add(write=f"{to_send.write}|^{namespace}\\.business$")
    foreigners = [ForeignPublisher(url, sender) for _ in range(PUBLISHERS)]
    ploughing = ploughed(
        namespace,
        queue_type,
        SystemClock(),
        lambda app: AmqpBroker(url, emit=app.events.emit),
        list(foreigners),
        url,
    )
    async with ploughing as field:
        try:
            yield field
        finally:
            for each in foreigners:
                await each.close()
    for app in (field.app, field.neighbour):
        await clear(url, app.topology())
