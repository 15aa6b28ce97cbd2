"""The command line as a user has it: a process, its output and its exit code."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiormq
import pytest

from tests.stage import an_app

APPS = Path(__file__).parent / "apps"
SHOP = f"{APPS}/shop.py:app"
LOOPS = ("report", "sell", "wait_for_input")
TIME_LIMIT = 20


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def output(self) -> str:
        return self.out + self.err

    @property
    def rows(self) -> list[list[str]]:
        """The words of each line of a table, without its head."""
        return [line.split() for line in self.out.splitlines()[1:]]


class Processor:
    """A `scheduler run` that is going on."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.lines: list[str] = []

    def until(self, words: str) -> str:
        """The first further line of the log that holds these words."""
        assert self._process.stderr
        for line in self._process.stderr:
            self.lines.append(line)
            if words in line:
                return line
        raise AssertionError(f"It ended without saying {words!r}:\n{''.join(self.lines)}")

    def say(self, text: str) -> None:
        """Write a line to its standard input."""
        assert self._process.stdin
        self._process.stdin.write(f"{text}\n")
        self._process.stdin.flush()

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        self._process.send_signal(number)

    def end(self) -> Done:
        """Wait for its end; all its log is in `lines` then."""
        assert self._process.stderr
        self.lines += self._process.stderr
        return Done(self._process.wait(TIME_LIMIT), "", "".join(self.lines))


class CommandLine:
    """Runs `scheduler` in a directory and an environment of its own."""

    def __init__(self, directory: Path, **environment: str) -> None:
        self._directory = directory
        clean = {k: v for k, v in os.environ.items() if not k.startswith("SCHEDULER_")}
        self._environment = clean | environment

    def __call__(self, *arguments: str, answer: str = "", **environment: str) -> Done:
        done = subprocess.run(
            self._command(arguments),
            cwd=self._directory,
            env=self._environment | environment,
            input=answer,
            capture_output=True,
            text=True,
            timeout=TIME_LIMIT,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    @contextmanager
    def processor(self, *arguments: str, **environment: str) -> Generator[Processor]:
        """A `scheduler run`; killed at the end, unless it has ended."""
        with subprocess.Popen(
            self._command(("run", *arguments)),
            cwd=self._directory,
            env=self._environment | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                yield Processor(process)
            finally:
                process.kill()

    def _command(self, arguments: tuple[str, ...]) -> list[str]:
        return [sys.executable, "-m", "scheduler", *arguments]


@pytest.fixture
def offline(tmp_path: Path) -> CommandLine:
    """The command line where no broker, and no app, is configured."""
    return CommandLine(tmp_path, SHOP_NAMESPACE="offline")


@pytest.fixture
def scheduler(broker_url: str, namespace: str, tmp_path: Path) -> Iterator[CommandLine]:
    """The command line with a broker, for the app in `apps/shop.py`."""
    yield CommandLine(
        tmp_path,
        SCHEDULER_BROKER_URL=broker_url,
        SCHEDULER_APP=SHOP,
        SHOP_NAMESPACE=namespace,
    )
    asyncio.run(delete_all(broker_url, namespace))


@pytest.fixture
def seeded(scheduler: CommandLine) -> CommandLine:
    """The same, seeded."""
    assert scheduler("seed").code == 0
    return scheduler


async def delete_all(url: str, namespace: str) -> None:
    left_behind = an_app(namespace, LOOPS).topology()
    connection = await aiormq.connect(url)
    try:
        channel = await connection.channel()
        for queue in left_behind.queues:
            await channel.queue_delete(queue.name)
        for exchange in left_behind.exchanges:
            await channel.exchange_delete(exchange.name)
    finally:
        await connection.close()
