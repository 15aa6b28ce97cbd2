"""The command line as a user has it: a process, its output and its exit code."""

import asyncio
import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, TextIO

import pytest

from scheduler.protocol.topology import topology
from scheduler.tasks.tasks import SUPERVISION
from tests import warm
from tests.stage import an_app
from tests.sweep import clear, new_namespace

APPS = Path(__file__).parent / "apps"
SHOP = f"{APPS}/shop.py:app"
LOOPS = ("report", "sell", "wait_for_input")
FINE, WRONG, MISUSE = 0, 1, 2
TIME_LIMIT = 50
PASSWORD = "open-sesame-17"
UNREACHABLE = f"amqp://shop:{PASSWORD}@127.0.0.1:1/"  # nobody listens on port 1
Process = warm.Program | subprocess.Popen[bytes]
Start = Callable[[Sequence[str], Path, Mapping[str, str], tuple[int, int, int]], Process]


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

    def __init__(self, process: Process, stdin: TextIO, stderr: TextIO) -> None:
        self._process = process
        self._stdin = stdin
        self._stderr = stderr
        self.lines: list[str] = []

    def until(self, words: str) -> str:
        """The first further line of the log that holds these words."""
        for line in self._stderr:
            self.lines.append(line)
            if words in line:
                return line
        raise AssertionError(f"It ended without saying {words!r}:\n{''.join(self.lines)}")

    def say(self, text: str) -> None:
        """Write a line to its standard input."""
        self._stdin.write(f"{text}\n")
        self._stdin.flush()

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        self._process.send_signal(number)

    def end(self) -> Done:
        """Wait for its end; all its log is in `lines` then."""
        self.lines += self._stderr
        return Done(self._process.wait(TIME_LIMIT), "", "".join(self.lines))


class CommandLine:
    """Runs `scheduler` in a directory and an environment of its own."""

    def __init__(self, directory: Path, **environment: str) -> None:
        self.directory = directory
        clean = {k: v for k, v in os.environ.items() if not k.startswith("SCHEDULER_")}
        self.environment = clean | environment
        self._start: Start = warm.start

    @property
    def installed(self) -> "CommandLine":
        """The same by the program as it is installed, in an interpreter of its own."""
        command_line = CommandLine(self.directory, **self.environment)
        command_line._start = started
        return command_line

    def __call__(self, *arguments: str, answer: str = "", **environment: str) -> Done:
        with TemporaryFile("w+") as stdin, TemporaryFile("w+") as out, TemporaryFile("w+") as err:
            stdin.write(answer)
            stdin.seek(0)
            streams = (stdin.fileno(), out.fileno(), err.fileno())
            process = self._start(
                arguments, self.directory, self.environment | environment, streams
            )
            try:
                code = process.wait(TIME_LIMIT)
            finally:
                process.kill()
                process.wait(TIME_LIMIT)
            out.seek(0)
            err.seek(0)
            return Done(code, out.read(), err.read())

    def in_terminal(self, *arguments: str, **environment: str) -> Done:
        """The same with a terminal of 80 columns for its output."""
        with self.terminal(*arguments, **environment) as terminal:
            return terminal.end()

    @contextmanager
    def terminal(self, *arguments: str, **environment: str) -> Generator["Terminal"]:
        """A command that goes on in a terminal; killed at the end, unless it has ended."""
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        whole = self.environment | {"TERM": "xterm-256color"} | environment
        with Path(os.devnull).open() as nothing, os.fdopen(ours, "rb", buffering=0) as screen:
            streams = (nothing.fileno(), theirs, theirs)
            process = self._start(arguments, self.directory, whole, streams)
            os.close(theirs)
            try:
                yield Terminal(process, screen)
            finally:
                process.kill()
                process.wait(TIME_LIMIT)

    @contextmanager
    def processor(self, *arguments: str, **environment: str) -> Generator[Processor]:
        """A `scheduler run`; killed at the end, unless it has ended."""
        (theirs_in, ours_in), (ours_err, theirs_err) = os.pipe(), os.pipe()
        with os.fdopen(ours_in, "w") as stdin, os.fdopen(ours_err) as stderr:
            with os.fdopen(theirs_in), os.fdopen(theirs_err, "w"), TemporaryFile() as nowhere:
                streams = (theirs_in, nowhere.fileno(), theirs_err)
                whole = self.environment | environment
                process = self._start(("run", *arguments), self.directory, whole, streams)
            try:
                yield Processor(process, stdin, stderr)
            finally:
                process.kill()
                process.wait(TIME_LIMIT)


class Terminal:
    """A command that goes on in a terminal, and what it has shown."""

    def __init__(self, process: Process, screen: FileIO) -> None:
        self._process = process
        self._screen = screen
        self._shown = b""

    @property
    def shown(self) -> str:
        return self._shown.decode(errors="replace").replace("\r\n", "\n")

    def until(self, words: str) -> None:
        """Wait until something more has been shown that holds these words."""
        before = len(self.shown)
        while words not in self.shown[before:]:
            assert self._read(), f"It ended without showing {words!r}:\n{self.shown}"

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def end(self) -> Done:
        """Wait for its end."""
        while self._read():
            pass
        return Done(self._process.wait(TIME_LIMIT), self.shown, "")

    def _read(self) -> bytes:
        try:
            read = self._screen.read(65536)
        except OSError:  # nobody writes any more
            return b""
        self._shown += read
        return read


def started(
    arguments: Sequence[str],
    directory: Path,
    environment: Mapping[str, str],
    streams: tuple[int, int, int],
) -> subprocess.Popen[bytes]:
    stdin, stdout, stderr = streams
    return subprocess.Popen(
        [Path(sys.executable).with_name("scheduler"), *arguments],
        cwd=directory,
        env=environment,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
    )


@pytest.fixture
def offline(tmp_path: Path) -> CommandLine:
    """The command line where no broker, and no app, is configured."""
    return CommandLine(tmp_path, SHOP_NAMESPACE="offline")


@contextmanager
def shop(url: str, namespace: str, directory: Path) -> Generator[CommandLine]:
    """The command line with a broker, for the app in `apps/shop.py`."""
    yield CommandLine(
        directory, SCHEDULER_BROKER_URL=url, SCHEDULER_APP=SHOP, SHOP_NAMESPACE=namespace
    )
    asyncio.run(clear(url, an_app(namespace, LOOPS).topology()))


@pytest.fixture
def scheduler(broker_url: str, namespace: str, tmp_path: Path) -> Iterator[CommandLine]:
    with shop(broker_url, namespace, tmp_path) as scheduler:
        yield scheduler


@pytest.fixture(scope="session")
def looked_at(broker_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    """One that is seeded for all tests which only look."""
    with shop(broker_url, new_namespace(), tmp_path_factory.mktemp("looked_at")) as scheduler:
        assert scheduler("seed").code == 0
        yield scheduler


@contextmanager
def seeded_app(
    url: str, namespace: str, directory: Path, text: str, called: Sequence[str]
) -> Generator[CommandLine]:
    """The command line for an app of this text and these tasks, seeded; its machine is in Tokyo."""
    (directory / "shop.py").write_text(text)
    command_line = CommandLine(
        directory,
        SCHEDULER_BROKER_URL=url,
        SCHEDULER_APP="shop.py:app",
        SHOP_NAMESPACE=namespace,
        TZ="Asia/Tokyo",
    )
    done = command_line("seed")
    assert done.code == 0, done.output
    yield command_line
    tasks = (*called, SUPERVISION.task)
    asyncio.run(clear(url, topology(namespace, tasks, called=called)))


@pytest.fixture
def seeded(scheduler: CommandLine) -> CommandLine:
    """That of the shop, seeded."""
    assert scheduler("seed").code == 0
    return scheduler
