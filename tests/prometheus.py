"""A real Prometheus for the tests: installed where that can be done, as RabbitMQ is."""

import http.client
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode

from tests.rabbitmq import found_or_installed, free_ports

NO_PROMETHEUS = """\
This test needs a Prometheus, and there is no way to one here. Install the package prometheus (root
on Debian or Ubuntu: this is done for you), or put `prometheus` on the PATH."""

CONFIGURATION = """\
global: {{scrape_interval: 1s, scrape_timeout: 1s}}
scrape_configs:
  - job_name: scheduler
    static_configs: [{{targets: {targets}}}]
"""


class Prometheus:
    """A Prometheus of one's own on 127.0.0.1, gone with its data at the end.

    Args:
        ports: those of 127.0.0.1 that it scrapes each second.
    """

    def __init__(self, ports: Sequence[int]) -> None:
        self._program = program()
        self._home = Path(tempfile.mkdtemp(prefix="prometheus-"))
        (self._port,) = free_ports(1)
        targets = json.dumps([f"127.0.0.1:{port}" for port in ports])
        (self._home / "prometheus.yml").write_text(CONFIGURATION.format(targets=targets))
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with (self._home / "output").open("wb") as output:
            self._process = subprocess.Popen(
                [
                    self._program,
                    f"--config.file={self._home / 'prometheus.yml'}",
                    f"--storage.tsdb.path={self._home / 'data'}",
                    f"--web.listen-address=127.0.0.1:{self._port}",
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        return self

    def __exit__(self, *exception: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._home, ignore_errors=True)

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Each series of an expression now: its labels and its value.

        Raises:
            ConnectionError: it has not started yet.
        """
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)
        try:
            connection.request("GET", f"/api/v1/query?{urlencode({'query': expression})}")
            answer: Any = json.loads(connection.getresponse().read())
        finally:
            connection.close()
        assert answer["status"] == "success", answer
        return [(each["metric"], float(each["value"][1])) for each in answer["data"]["result"]]

    def value(self, expression: str) -> float:
        """The value of an expression that has one series."""
        ((_, value),) = self.query(expression)
        return value

    def until(self, expression: str, seconds: float = 60) -> None:
        """Wait until an expression has a series, as an alert that fires does."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                if self.query(expression):
                    return
            except (ConnectionError, ValueError):  # it says so in plain text while it starts
                pass
            time.sleep(0.2)
        said = (self._home / "output").read_text(errors="replace")[-2000:]
        raise AssertionError(f"{expression} never came true. Prometheus said:\n{said}")


def program() -> str:
    """Find Prometheus; install it where that can be done."""
    found = found_or_installed("prometheus", lambda: shutil.which("prometheus"))
    if found is None:
        raise RuntimeError(NO_PROMETHEUS)
    return found
