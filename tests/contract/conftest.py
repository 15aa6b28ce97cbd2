"""Every test of the contract is run with both brokers, and with both types of queues.

With the one in this process it is run in virtual time, with RabbitMQ in real time.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest

from scheduler.brokers.contract import Broker
from scheduler.protocol.topology import QueueType
from scheduler.testing import VirtualTimeLoop
from tests.contract.wire import MemoryWire, RabbitWire, Wire


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]] | None:
    """Run whatever asks for the wire once in the time of each broker."""
    if "wire" not in getattr(item, "fixturenames", ()):
        return None  # as everywhere
    return {"memory": VirtualTimeLoop, "rabbitmq": asyncio.new_event_loop}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say which tests want the real broker, so that it is there before the first of them."""
    for item in items:
        if isinstance(item, pytest.Function) and "rabbitmq" in item.name.partition("[")[2]:
            item.fixturenames.append("broker_url")


@pytest.fixture
async def wire(request: pytest.FixtureRequest, queue_type: QueueType) -> AsyncIterator[Wire]:
    if isinstance(asyncio.get_running_loop(), VirtualTimeLoop):
        opening: Wire = MemoryWire(queue_type)
    else:
        opening = RabbitWire(queue_type, request.getfixturevalue("broker_url"))
    async with opening as wire:
        yield wire


@pytest.fixture
def broker(wire: Wire) -> Broker:
    """A connection, where it does not matter which."""
    return wire.broker


@pytest.fixture
async def other(wire: Wire) -> Broker:
    """Another connection."""
    return await wire.connect()


@pytest.fixture
async def queue(wire: Wire) -> str:
    return await wire.declare_queue()


@pytest.fixture
async def stream(wire: Wire) -> str:
    return await wire.declare_stream()
