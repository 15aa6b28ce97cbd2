"""What every test may ask for."""

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping

import pytest

from scheduler.protocol.topology import QueueType
from scheduler.testing import VirtualTimeLoop
from scheduler.timing.clock import LoopClock
from tests.dealing import dealt
from tests.rabbitmq import NoBroker, Users, administrator, shared_broker
from tests.stage import START, Stage
from tests.sweep import NAMESPACES, new_namespace

# pytest-xdist gives all its workers the same one.
RUN = os.environ.get("PYTEST_XDIST_TESTRUNUID") or uuid.uuid4().hex
LENT_TO = {"scheduler", "scene"}
"""Fixtures that clear away all that their tests declare."""
PROVISIONED = pytest.StashKey[str | NoBroker]()


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run in virtual time whatever asks for the clock, itself or by another fixture."""
    if "clock" in getattr(item, "fixturenames", ()):
        return {"virtual": VirtualTimeLoop}
    return {"real": asyncio.new_event_loop}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if (workers := getattr(config, "workerinput", None)) is not None:
        items[:] = dealt(items, workers["workercount"], lambda item: item.path.parts)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Get the broker before the first test that wants it, whose time limit is for itself."""
    wanted = any("broker_url" in getattr(item, "fixturenames", ()) for item in session.items)
    if wanted and not session.config.option.collectonly:
        provision(session.config)


def provision(config: pytest.Config) -> str | NoBroker:
    if PROVISIONED not in config.stash:
        try:
            config.stash[PROVISIONED] = shared_broker(RUN)
        except NoBroker as error:
            config.stash[PROVISIONED] = error
    return config.stash[PROVISIONED]


@pytest.fixture(scope="session")
def broker_url(pytestconfig: pytest.Config) -> str:
    """The AMQP URL of a real RabbitMQ, shared by all tests. Where there is none, tests fail."""
    provisioned = provision(pytestconfig)
    if isinstance(provisioned, NoBroker):
        pytest.fail(str(provisioned), pytrace=False)
    return provisioned


@pytest.fixture(scope="session")
def users(broker_url: str) -> Iterator[Users]:
    """Makes users of that broker. Where that cannot be done, tests fail."""
    try:
        users = Users(administrator(RUN, broker_url), broker_url)
    except NoBroker as error:
        pytest.fail(str(error), pytrace=False)
    yield users
    users.delete_all()


@pytest.fixture
def clock() -> LoopClock:
    """The clock of a test in virtual time: it stands still while anything can go on."""
    return LoopClock(START)


@pytest.fixture
async def stage(clock: LoopClock, request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    """An embedded broker for the app that the test seeds; looked over when the test has passed."""
    failed_before = request.session.testsfailed
    stage = Stage(clock)
    async with stage.broker:
        yield stage
        if request.session.testsfailed == failed_before:
            await stage.check()


@pytest.fixture
def namespace(request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace that no other test uses meanwhile."""
    if not LENT_TO & set(request.fixturenames):
        yield new_namespace()
        return
    parameters = getattr(request.node, "callspec", None)
    with NAMESPACES.lent(parameters.id if parameters else "") as name:
        yield name


@pytest.fixture(params=["quorum", "classic"])
def queue_type(request: pytest.FixtureRequest) -> QueueType:
    return request.param
