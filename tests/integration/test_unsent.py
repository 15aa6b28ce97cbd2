"""Messages that are sent while their broker is away, by a program that is killed."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Barrier

import pytest

from scheduler.protocol.topology import topology
from scheduler.queues.unsent import SqliteStore
from tests.rabbitmq import PrivateNode
from tests.sweep import clear, new_namespace

PROGRAM = str(Path(__file__).parent / "apps" / "posting.py")
COUNT = 300
SIDE_BY_SIDE = 200
SECONDS = 6


class Outage:
    """Messages that are sent over an outage by a program that is killed twice.

    Attributes:
        became: of each number: confirmed, stored or raised.
    """

    def __init__(self, url: str, directory: Path, has_fallback: bool) -> None:
        directory.mkdir()
        self._url, self._namespace = url, new_namespace()
        self._log, self._sent = directory / "log", directory / "sent"
        self._ran, database = directory / "ran", str(directory / "unsent.db")
        self._store = SqliteStore(database, self._namespace) if has_fallback else None
        self._environment = {
            **os.environ,
            "SCHEDULER_BROKER_URL": url,
            "NAMESPACE": self._namespace,
            "RUNS": str(self._ran),
            # The outage is to be in the middle, though a broker takes its time to stop.
            "PAUSE": str(SIDE_BY_SIDE * 3 * SECONDS / COUNT),
            "SIDE_BY_SIDE": str(SIDE_BY_SIDE),
            **({"FALLBACK": f"sqlite:///{database}"} if has_fallback else {}),
        }

    def happen(self, stop: Callable[[], object], start: Callable[[], object]) -> None:
        """Send all, with the outage and the kills in the middle, until all that can run has run."""
        self._command("seed").wait()
        processor = self._command("run")
        try:
            sender = self._sender()
            self._until(lambda: len(self.became) >= COUNT / 4)
            stop()
            time.sleep(SECONDS / 3)
            sender = self._sender(instead_of=sender)
            time.sleep(SECONDS * 2 / 3)
            start()
            time.sleep(SECONDS / 10)
            assert self._sender(instead_of=sender).wait() == 0
            with suppress(TimeoutError):  # `problems` says what is missing
                self._until(lambda: not self.problems())
        finally:
            processor.terminate()
            processor.wait()

    @property
    def became(self) -> dict[int, str]:
        return {int(n): became for n, became in _rows(self._sent)}

    def problems(self) -> list[str]:
        """What must not be."""
        became, runs = self.became, [(int(n), name) for n, name in _rows(self._ran)]
        found = [f"{n} ran as {name}" for n, name in runs if name != f"m-{n}"]
        accepted = {n for n in range(COUNT) if became.get(n) != "raised"}
        found += [f"{n} has not run" for n in accepted - {n for n, _ in runs}]
        if self._store:
            found += [f"{n} raised" for n in range(COUNT) if n not in accepted]
            found += [f"{each} is stored still" for each in self._store.read()]
        return found

    def sweep(self) -> None:
        """Delete the queues."""
        asyncio.run(clear(self._url, topology(self._namespace, ["work"], called=["work"])))

    def _sender(self, instead_of: subprocess.Popen[bytes] | None = None) -> subprocess.Popen[bytes]:
        if instead_of is not None:
            instead_of.kill()
            instead_of.wait()
        return self._started(PROGRAM, str(self._sent), str(COUNT))

    def _command(self, command: str) -> subprocess.Popen[bytes]:
        return self._started("-m", "scheduler", command, f"{PROGRAM}:app")

    def _started(self, *arguments: str) -> subprocess.Popen[bytes]:
        with self._log.open("a") as log:
            return subprocess.Popen(
                [sys.executable, *arguments], env=self._environment, stdout=log, stderr=log
            )

    def _until(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + 120
        while not condition():
            if time.monotonic() > end:
                raise TimeoutError
            time.sleep(0.2)


def _rows(path: Path) -> list[list[str]]:
    # The last line may be seen before it was written to its end.
    lines = path.read_text().rpartition("\n")[0].splitlines() if path.exists() else []
    return [line.split() for line in lines]


@pytest.mark.timeout(300)
def test_calls_sent_over_an_outage_run_or_raise_though_their_sender_is_killed(
    node: PrivateNode, tmp_path: Path
) -> None:
    def stop() -> None:
        time.sleep(1)  # RabbitMQ 3.10 loses a quorum queue that is not yet a second old
        node.kill()

    stopping, starting = Barrier(2, stop, 100), Barrier(2, node.start, 100)
    outages = [Outage(node.url, tmp_path / str(each), each) for each in (True, False)]
    with ThreadPoolExecutor(len(outages)) as side_by_side:
        for done in [
            side_by_side.submit(outage.happen, stopping.wait, starting.wait) for outage in outages
        ]:
            done.result()
    for outage, became in zip(outages, ("stored", "raised"), strict=True):
        assert outage.problems() == []
        assert became in outage.became.values()
        outage.sweep()
