"""Provide the fixture `scheduler_kit` for pytest: see `scheduler.testing`.

A coroutine test that takes it runs in virtual time, in its own event loop, inside the open kit;
plugins for other coroutine tests, and their configuration, do not affect it.

pytest imports this wherever the package is installed: so other modules are imported when needed.
"""

import inspect
from typing import TYPE_CHECKING, Any, cast

import pytest

if TYPE_CHECKING:
    from scheduler.app import Scheduler
    from scheduler.testing import Kit

FIXTURE = "scheduler_kit"
MARK = f"{FIXTURE}(tasks=None, start=...): what the kit of this test is made with"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARK)


@pytest.fixture
def scheduler_app() -> "Scheduler":
    """Return the app to test: define your own fixture of this name."""
    pytest.fail(
        "scheduler_kit works on the app that the fixture scheduler_app returns: define that in "
        "your conftest.py.",
        pytrace=False,
    )


@pytest.fixture
def scheduler_kit(scheduler_app: "Scheduler", request: pytest.FixtureRequest) -> "Kit":
    """Return a `scheduler.testing.Kit` of the app, in virtual time, on its own broker."""
    from scheduler.testing import Kit

    if not inspect.iscoroutinefunction(request.function):
        pytest.fail("A test with scheduler_kit must be an `async def`.", pytrace=False)
    mark = request.node.get_closest_marker(FIXTURE)
    options: dict[str, Any] = dict(mark.kwargs) if mark else {}
    return Kit(scheduler_app, **options)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Run the tests of a kit here, before other plugins for coroutine tests get them."""
    if not isinstance(item, pytest.Function) or FIXTURE not in item.fixturenames:
        return
    if inspect.iscoroutinefunction(item.obj):
        item.runtest = lambda: _run_virtually(item)


def _run_virtually(item: pytest.Function) -> None:
    from scheduler.testing import run_virtually

    __tracebackhide__ = True

    kit = cast("Kit", item.funcargs[FIXTURE])

    async def test() -> None:
        __tracebackhide__ = True
        async with kit:
            await item.obj(**_arguments_of(item))

    run_virtually(test())


def _arguments_of(item: pytest.Function) -> dict[str, Any]:
    names = inspect.signature(item.obj).parameters
    return {name: item.funcargs[name] for name in names if name in item.funcargs}
