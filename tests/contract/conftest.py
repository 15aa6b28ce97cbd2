"""Every test of the contract is run with both brokers, and with both types of queues."""

from collections.abc import AsyncIterator

import pytest

from scheduler.brokers.contract import Broker
from scheduler.protocol.topology import QueueType
from tests.contract.wire import MemoryWire, RabbitWire, Wire


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say which tests want the real broker, so that it is there before the first of them."""
    for item in items:
        if isinstance(item, pytest.Function) and "[rabbitmq" in item.name:
            item.fixturenames.append("broker_url")


@pytest.fixture(params=["memory", "rabbitmq"])
async def wire(request: pytest.FixtureRequest, queue_type: QueueType) -> AsyncIterator[Wire]:
    if request.param == "memory":
        opening: Wire = MemoryWire(queue_type)
    else:
        opening = RabbitWire(queue_type, request.getfixturevalue("broker_url"))
    async with opening as wire:
        yield wire


@pytest.fixture
def broker(wire: Wire) -> Broker:
    """A connection, where it does not matter which."""
    return wire.broker
