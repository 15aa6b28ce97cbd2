"""What waits in a queue, looked at from its head on."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from scheduler.brokers.contract import Delivery
from scheduler.brokers.memory.connection import Hold, MemoryConnection
from scheduler.brokers.memory.queues import MemoryQueue
from scheduler.errors import BrokerUnavailable


@asynccontextmanager
async def browsing(
    connection: MemoryConnection, queue: MemoryQueue, limit: int
) -> AsyncGenerator[AsyncGenerator[Delivery]]:
    """Inside the block, all that was looked at is kept; then what was not acked is back."""
    kept: list[Hold] = []
    try:
        yield _taken(connection, queue, limit, kept)
    finally:
        for hold in kept:
            if hold in connection.holds:
                hold.lose()


async def _taken(
    connection: MemoryConnection, queue: MemoryQueue, limit: int, kept: list[Hold]
) -> AsyncGenerator[Delivery]:
    for _ in range(limit):
        while kept and kept[-1] not in connection.holds:
            if kept.pop().lost.done():
                raise BrokerUnavailable
        if (entry := queue.take()) is None:
            return
        queue.getters += 1
        kept.append(connection.hold(queue, entry))
        yield kept[-1].delivery()
