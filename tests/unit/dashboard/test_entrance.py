"""How a dashboard is made, and what is said where it cannot be."""

import sys

import pytest
from starlette.applications import Starlette

from scheduler import Scheduler, Settings, dashboard
from scheduler.brokers.memory.broker import MemoryBroker
from scheduler.cli.loading import object_named
from scheduler.dashboard import DISTRIBUTION, NEEDED
from scheduler.dashboard.serving import serving
from scheduler.errors import AppNotFound, PortUnavailable, SettingsError
from tests.stage import new_app
from tests.unit.test_distribution import PROJECT


def test_the_embedded_broker_must_be_passed() -> None:
    with pytest.raises(SettingsError, match="scheduler dev --dashboard"):
        dashboard.dashboard(new_app())
    assert isinstance(dashboard.dashboard(new_app(), connect=MemoryBroker), Starlette)
    # Nothing is connected before it is started.
    nowhere = Settings(broker_url="amqp://guest:guest@127.0.0.1:1/")  # pyright: ignore[reportArgumentType]
    assert isinstance(dashboard.dashboard(Scheduler("shop", nowhere)), Starlette)


def test_a_missing_package_is_named_with_its_install_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(SettingsError, match=rf"needs jinja2.*pip install '{DISTRIBUTION}\["):
        dashboard.dashboard(new_app(), connect=MemoryBroker)


def test_the_extra_installs_all_requirements() -> None:
    brought = {
        each.partition(">")[0].replace("-", "_")
        for each in PROJECT["optional-dependencies"]["dashboard"]
    }
    assert brought == set(NEEDED)


async def test_a_port_in_use_is_reported_in_one_line() -> None:
    pages = dashboard.dashboard(new_app(), connect=MemoryBroker)
    async with serving(pages, "127.0.0.1", 0) as address:
        port = int(address.rstrip("/").rpartition(":")[2])
        with pytest.raises(PortUnavailable, match="give another --port"):
            async with serving(pages, "127.0.0.1", port):
                pass


def test_access_is_named_like_an_app() -> None:
    assert object_named("tests.stage:new_app", "--access") is new_app
    with pytest.raises(AppNotFound, match="has no 'nobody'"):
        object_named("tests.stage:nobody", "--access")
    with pytest.raises(AppNotFound, match="The object of --access is named as"):
        object_named("tests.stage", "--access")
