"""How a dashboard is made, and what is said where it cannot be."""

import os
import subprocess
import sys
from pathlib import Path

import httpx
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

ROOT = Path(__file__).parents[3]


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


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such locale")
def test_users_are_read_as_utf_8_in_any_locale(tmp_path: Path) -> None:
    (tmp_path / "users").write_text("\N{BYTE ORDER MARK}zoë:gärtner\n", encoding="utf-8")
    (tmp_path / "jobs.py").write_text(
        "from scheduler import Scheduler\napp = Scheduler('shop')\n"
        "@app.task\nasync def render() -> None: ...\n"
    )
    program = [sys.executable, "-X", "utf8=0", "-u", "-m", "scheduler", "dashboard", "jobs.py"]
    environment = {
        "PYTHONPATH": str(ROOT),
        "LC_ALL": "C",
        "SCHEDULER_BROKER_URL": "amqp://localhost:1",
    }
    with subprocess.Popen(
        [*program, "--port", "0", "--basic-auth-file", "users"],
        cwd=tmp_path,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip().partition(": ")[2]
            answer = httpx.get(address, auth=httpx.BasicAuth("zoë", "gärtner"))
            assert answer.status_code == 200
        finally:
            process.terminate()
