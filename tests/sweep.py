"""Delete the queues that a test has declared, many at once: a namespace has a hundred of them."""

import asyncio
from collections.abc import Iterable

from scheduler.brokers.contract import Broker
from scheduler.control.concurrency import side_by_side


async def sweep(broker: Broker, queues: Iterable[str]) -> None:
    """Delete queues, also if the test is being cancelled."""
    await asyncio.shield(side_by_side(broker.delete, list(queues)))
