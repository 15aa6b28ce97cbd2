"""What a loop's runs look like is told on both brokers, in virtual time and in real time.

With classic queues, it is told on the embedded broker only, and so is what depends on entries and
tokens alone (marked `embedded`): in what brokers and queues differ, the contract suite shows.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest

from scheduler.protocol.topology import QueueType
from scheduler.testing import VirtualTimeLoop
from tests.integration.lines.scene import MemoryScene, RabbitScene, Scene


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]] | None:
    """Run whatever asks for the scene once in the time of each broker."""
    if "scene" not in getattr(item, "fixturenames", ()):
        return None  # as everywhere
    return {"memory": VirtualTimeLoop, "rabbitmq": asyncio.new_event_loop}


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "embedded: on the embedded broker only")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say which tests want the real broker, so that it is there before the first of them."""
    for item in list(items):
        if "lines" not in item.path.parts or not isinstance(item, pytest.Function):
            continue
        if "rabbitmq" in (name := item.name.partition("[")[2]):
            item.fixturenames.append("broker_url")
            if "classic" in name or item.get_closest_marker("embedded"):
                items.remove(item)


@pytest.fixture(params=["quorum", "classic"])
def queue_type(request: pytest.FixtureRequest) -> QueueType:
    return request.param


@pytest.fixture
async def scene(
    request: pytest.FixtureRequest, namespace: str, queue_type: QueueType
) -> AsyncIterator[Scene]:
    if isinstance(asyncio.get_running_loop(), VirtualTimeLoop):
        opening: Scene = MemoryScene(namespace, queue_type)
    else:
        opening = RabbitScene(namespace, queue_type, request.getfixturevalue("broker_url"))
    async with opening as scene:
        yield scene
