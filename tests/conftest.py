"""What every test may ask for."""

import asyncio
import gc
import os
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping

import pytest
from hypothesis import HealthCheck, settings

from scheduler import Scheduler
from scheduler.protocol.topology import QueueType
from scheduler.testing import VirtualTimeLoop
from scheduler.timing.moments import LoopClock
from tests.dealing import SLOW, dealt
from tests.rabbitmq import TRIES_AGAIN, NoBroker, PrivateNode, Users, administrator, shared_broker
from tests.stage import START, Stage, new_app
from tests.sweep import NAMESPACES

# Hundreds of processes import the same modules, which one is to compile.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# pytest-xdist gives all its workers the same one.
RUN = os.environ.get("PYTEST_XDIST_TESTRUNUID") or uuid.uuid4().hex
PROVISIONED = pytest.StashKey[str | NoBroker]()
# Every run tries the same examples, for as long as that takes on a busy machine.
settings.register_profile(
    "lawful",
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("lawful")


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run in virtual time whatever asks for the clock, itself or by another fixture."""
    if "clock" in getattr(item, "fixturenames", ()):
        return {"virtual": VirtualTimeLoop}
    return {"real": asyncio.new_event_loop}


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exempt the tests from garbage collection, which they outlive."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if (workers := getattr(config, "workerinput", None)) is not None:
        items[:] = dealt(items, workers["workercount"], place_of)


def place_of(item: pytest.Item) -> tuple[str, ...]:
    """The file of a test; all that share the node are together."""
    shares = "node" in getattr(item, "fixturenames", ())
    return (SLOW[0], "node") if shares else item.path.parts


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
def node() -> Iterator[PrivateNode]:
    """A node that tests may end, freeze and start: it runs when the next one gets it."""
    with PrivateNode(advanced=TRIES_AGAIN) as node:
        yield node


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
def app() -> Scheduler:
    """An app on an embedded broker."""
    return new_app()


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
    parameters = getattr(request.node, "callspec", None)
    queue_type = parameters.params.get("queue_type", "quorum") if parameters else "quorum"
    with NAMESPACES.lent(queue_type) as name:
        yield name


@pytest.fixture(params=["quorum", "classic"])
def queue_type(request: pytest.FixtureRequest) -> QueueType:
    return request.param
