"""Whether the broker hands on what is due: a message tells that waits for a moment.

It waits in a timer queue of its own, which leads into another one. Who dies meanwhile leaves
nothing: both are gone after a minute, with what is in them, and nothing leads anywhere else.
"""

import asyncio
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from scheduler.brokers.contract import Broker, Delivery
from scheduler.protocol.messages import Message
from scheduler.protocol.topology import Names, Topology, probe

PATIENCE_S = 10


async def comes_back(broker: Broker, names: Names) -> bool:
    """Tell if a probe comes back, from the node that this connection leads to.

    Raises:
        AccessRefused: the user may not declare what it takes.
        QueueNotFound: the namespace was never seeded.
    """
    back, id = asyncio.Queue[Delivery](), uuid.uuid4().hex
    async with _declared(broker, probe(names.namespace, id)):
        consumer = await broker.consume(names.probed(id), back.put_nowait, prefetch=1)
        try:
            await broker.publish(Message(), exchange=names.control, routing_key=names.probe(id))
            async with asyncio.timeout(PATIENCE_S):
                await (await back.get()).ack()
        except TimeoutError:
            return False
        finally:
            await consumer.cancel()
    return True


@asynccontextmanager
async def _declared(broker: Broker, wanted: Topology) -> AsyncGenerator[None]:
    """Keep the queues of a probe for the time of the block."""
    try:
        await broker.declare(wanted)
        yield
    finally:
        for queue in wanted.queues:
            await broker.delete(queue.name)
