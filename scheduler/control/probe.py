"""Whether the broker hands on what is due: a message tells that waits for a moment.

It waits in a timer queue of its own, which leads into another one. Who dies meanwhile leaves
nothing: both are gone after a minute, with what is in them, and nothing leads anywhere else.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from scheduler.brokers.contract import Broker, Delivery
from scheduler.protocol.messages import Message
from scheduler.protocol.topology import Names, Topology, probe

PATIENCE_S = 10


async def comes_back(broker: Broker, names: Names) -> bool:
    """Whether a probe does, from the node that this connection leads to.

    Raises:
        AccessRefused: the user may not declare what it takes.
        QueueNotFound: the namespace was never seeded.
    """
    back = asyncio.Queue[Delivery]()
    async with _queues(broker, names):
        consumer = await broker.consume(names.probed, back.put_nowait, prefetch=1)
        try:
            await broker.publish(Message(), exchange=names.control, routing_key=names.probe)
            async with asyncio.timeout(PATIENCE_S):
                await (await back.get()).ack()
        except TimeoutError:
            return False
        finally:
            await consumer.cancel()
    return True


@asynccontextmanager
async def _queues(broker: Broker, names: Names) -> AsyncGenerator[None]:
    """Have the queues of a probe, one probe at a time, and new ones each time: what is left of an
    old one may expire at any moment."""
    wanted = probe(names.namespace)
    async with broker.mutex(names.probing):
        try:
            await _delete(broker, wanted)
            await broker.declare(wanted)
            yield
        finally:
            await _delete(broker, wanted)


async def _delete(broker: Broker, wanted: Topology) -> None:
    for queue in wanted.queues:
        await broker.delete(queue.name)
