"""A processor watched from outside: what an operator gets wrong is told in a paragraph."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.conftest import APPS, FINE, MISUSE, SHOP, UNREACHABLE, WRONG, CommandLine
from tests.rabbitmq import free_ports


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody else listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def without(directory: Path, *packages: str) -> dict[str, str]:
    """The environment of a Python where these packages cannot be imported."""
    absent = f"import sys\nsys.modules |= dict.fromkeys({packages})\n"
    (directory / "sitecustomize.py").write_text(absent)
    path = (str(directory), os.environ.get("PYTHONPATH", ""))
    return {"PYTHONPATH": os.pathsep.join(filter(None, path))}


@pytest.mark.parametrize("option", ["--health-port", "--metrics-port"])
def test_a_port_that_is_in_use_is_reported(offline: CommandLine, taken: int, option: str):
    done = offline("run", SHOP, option, str(taken), SCHEDULER_BROKER_URL=UNREACHABLE)
    assert (done.code, done.out) == (WRONG, "")
    assert done.err == (
        f"scheduler: Port {taken} cannot be listened on: Address already in use. Nothing was "
        "started. Choose another one: two processors on one machine need a port each.\n"
    )


def test_metrics_without_their_package_say_how_to_install_it(offline: CommandLine, tmp_path: Path):
    (port,) = free_ports(1)
    ports = {"SCHEDULER_METRICS_PORT": str(port), "SCHEDULER_BROKER_URL": UNREACHABLE}
    done = offline.installed("run", SHOP, **ports, **without(tmp_path, "prometheus_client"))
    assert (done.code, done.out) == (MISUSE, "")
    assert done.err.startswith("scheduler: Metrics are enabled (--metrics-port, SCHEDULER_ME")
    assert "pip install 'rabbit-scheduler[metrics]'" in done.err
    assert done.err.count("\n") == 1


def test_everything_else_works_without_the_packages_of_extras(offline: CommandLine, tmp_path: Path):
    app = f"{APPS}/quick.py:app"
    absent = without(tmp_path, "prometheus_client", "opentelemetry", "uvloop")
    done = offline.installed("dev", app, "--for", "1s", **absent)
    assert done.code == FINE, done.err
    assert "beat 1" in done.err
