"""An outage of the broker while messages are sent, in which their sender is killed twice."""

import asyncio
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from scheduler.protocol.topology import topology
from scheduler.queues.unsent import SqliteStore
from tests.sweep import clear, new_namespace

SIDE_BY_SIDE = 200
PROGRAM = Path(__file__).parent / "apps" / "posting.py"


@dataclass
class Outage:
    """Messages that are sent over an outage.

    Attributes:
        became: of each number: confirmed, stored or raised.
        runs: of each message id, by number, how often it ran.
    """

    url: str
    directory: Path
    count: int
    seconds: float
    stop: Callable[[], object]
    start: Callable[[], object]
    has_fallback: bool
    namespace: str = field(default_factory=new_namespace)
    became: dict[int, str] = field(default_factory=dict[int, str])
    runs: Counter[tuple[int, str]] = field(default_factory=Counter[tuple[int, str]])

    def __post_init__(self) -> None:
        self._sent, self._ran = self.directory / "sent", self.directory / "ran"
        self._database = str(self.directory / "unsent.db")
        self._environment = {
            **os.environ,
            "SCHEDULER_BROKER_URL": self.url,
            "NAMESPACE": self.namespace,
            "RUNS": str(self._ran),
            # The outage is to be in the middle, though a broker takes its time to stop.
            "PAUSE": str(SIDE_BY_SIDE * 3 * self.seconds / self.count),
            "SIDE_BY_SIDE": str(SIDE_BY_SIDE),
        }
        if self.has_fallback:
            self._environment["FALLBACK"] = f"sqlite:///{self._database}"

    def happen(self) -> None:
        """Send all, with the outage and the kills in the middle, until all that can run has run."""
        self._command("seed").wait()
        processor = self._command("run")
        try:
            self._happen()
        finally:
            processor.terminate()
            processor.wait()

    def _happen(self) -> None:
        sender = self._sender()
        self._until(lambda: len(self._outcomes()) >= self.count / 4)
        self.stop()
        time.sleep(self.seconds / 3)
        sender.kill()
        sender.wait()
        sender = self._sender()
        time.sleep(self.seconds * 2 / 3)
        self.start()
        time.sleep(self.seconds / 10)
        sender.kill()
        sender.wait()
        sender = self._sender()
        assert sender.wait() == 0
        self.became = self._outcomes()
        accepted = {n for n, became in self.became.items() if became != "raised"}
        with suppress(TimeoutError):  # what is missing, `problems` tells
            self._until(lambda: accepted <= {n for n, _ in self._runs()} and not self.left())
        self.runs = self._runs()

    def left(self) -> int:
        """How many messages are stored still."""
        return len(SqliteStore(self._database, self.namespace).read()) if self.has_fallback else 0

    def sweep(self) -> None:
        """Delete the queues."""
        asyncio.run(clear(self.url, topology(self.namespace, ["work"], called=["work"])))

    def problems(self) -> list[str]:
        """What must not be."""
        found = [f"{n} ran as {name}" for n, name in self.runs if name != f"m-{n}"]
        ran = {n for n, _ in self.runs}
        found += [
            f"{n}, {self.became.get(n)}, has not run"
            for n in range(self.count)
            if n not in ran and self.became.get(n) != "raised"
        ]
        if self.has_fallback:
            found += [f"{n} raised" for n, became in self.became.items() if became == "raised"]
        return found + ([f"{left} are stored still"] if (left := self.left()) else [])

    def _sender(self) -> subprocess.Popen[bytes]:
        return self._started(str(PROGRAM), str(self._sent), str(self.count))

    def _command(self, command: str) -> subprocess.Popen[bytes]:
        return self._started("-m", "scheduler", command, f"{PROGRAM}:app")

    def _started(self, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.directory / "log").open("a") as log:
            return subprocess.Popen(
                [sys.executable, *arguments], env=self._environment, stdout=log, stderr=log
            )

    def _until(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + 120
        while not condition():
            if time.monotonic() > end:
                raise TimeoutError
            time.sleep(0.2)

    def _outcomes(self) -> dict[int, str]:
        rows = [line.split() for line in _lines(self._sent)]
        return {int(n): became for n, became in rows}

    def _runs(self) -> Counter[tuple[int, str]]:
        rows = [line.split() for line in _lines(self._ran)]
        return Counter((int(n), name) for n, name in rows)


def _lines(path: Path) -> list[str]:
    # The last line may be seen before it was written to its end.
    return path.read_text().rpartition("\n")[0].splitlines() if path.exists() else []
