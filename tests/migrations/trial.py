"""A guide followed to the letter: its commands typed one after the other, in a small project."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tests.acceptance.snippets import INTERRUPT, Command, is_as_expected
from tests.migrations import record
from tests.migrations.guides import ROOT, Guide
from tests.migrations.page import File, Meanwhile, Typed, Until, steps_of
from tests.migrations.verdict import Line, line_of

ENDS_WITHIN = 120  # seconds, of a command
GONE_WITHIN = 20


class NotAsWritten(Exception):
    """A command of the page did something else than the page says."""


class Trial:
    """A project in a folder of its own, and an environment that has both libraries.

    Args:
        folder: for both; the environment is used again by the next trial.
        broker: the AMQP URL of a RabbitMQ that nobody else uses.
    """

    def __init__(self, guide: Guide, folder: Path, broker: str) -> None:
        self._guide = guide
        self._environment = folder / "environment"
        self._project = folder / "project"
        self._printed = folder / "printed"
        clean = {k: v for k, v in os.environ.items() if not k.startswith("SCHEDULER_")}
        self._variables = clean | {
            "PATH": f"{self._environment}/bin:{os.environ['PATH']}",
            "VIRTUAL_ENV": str(self._environment),
            "PYTHONUNBUFFERED": "1",
            "RUN_PROJECT": guide.name,
            "BROKER_URL": broker,
            "SCHEDULER_BROKER_URL": broker,
        }

    def prepare(self) -> None:
        """Install what the project needs, and lay it out."""
        requirements = self._guide.project / "requirements.txt"
        wanted = hashlib.sha256(requirements.read_bytes()).hexdigest()
        stamp = self._environment / "requirements"
        if not stamp.exists() or stamp.read_text() != wanted:
            run = [sys.executable, "-m", "venv", "--clear", str(self._environment)]
            subprocess.run(run, check=True)
            pip = [f"{self._environment}/bin/python", "-m", "pip", "install", "-qq"]
            subprocess.run([*pip, "--editable", str(ROOT), "-r", str(requirements)], check=True)
            stamp.write_text(wanted)
        shutil.rmtree(self._project, ignore_errors=True)
        for folder in filter(None, (self._guide.shared, self._guide.project)):
            shutil.copytree(folder, self._project, dirs_exist_ok=True)
        shutil.copy(record.__file__, self._project)
        if (self._project / "prepare.sh").exists():
            subprocess.run(["bash", "prepare.sh"], cwd=self._project, check=True)

    def follow(self) -> Iterator[str]:
        """Do what the page says; tells what is being done.

        Raises:
            NotAsWritten: it did something else.
        """
        try:
            for step in steps_of(self._guide.page.read_text()):
                match step:
                    case File(path, text):
                        yield f"writes {path}"
                        self._write(path, text)
                    case Typed(line, command):
                        yield f"$ {command.line}"
                        yield from self._type(line, command).splitlines()
                    case Meanwhile(seconds):
                        yield f"waits for {seconds} s"
                        time.sleep(seconds)
                    case Until(second):
                        yield f"waits until second {second}"
                        # Not on the dot, when others are at work.
                        time.sleep((second + 0.5 - time.time()) % 60)  # noqa: TID251
        finally:
            self._end_all()

    def lines(self) -> list[Line]:
        """What the jobs have noted."""
        noted = (self._project / record.RECORD).read_text().splitlines()
        return [line_of(json.loads(each)) for each in noted]

    def _write(self, path: str, text: str) -> None:
        file = self._project / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def _type(self, line: int, command: Command) -> str:
        """What it prints, read from a file: what it leaves in the background holds on to a pipe."""
        assert INTERRUPT not in command.expected, "what is to go on, goes into the background"
        where = f"{self._guide.page}, line {line}: $ {command.line}\n"
        with self._printed.open("w") as printed:
            process = subprocess.Popen(
                ["bash", "-c", command.line],
                cwd=self._project,
                env=self._variables,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code = process.wait(ENDS_WITHIN)
            except subprocess.TimeoutExpired:
                raise NotAsWritten(f"{where}It did not end.") from None
        said = self._printed.read_text()
        if code:
            raise NotAsWritten(f"{where}It ended with exit code {code}:\n{said}")
        if command.expected and not is_as_expected(command.expected, said):
            raise NotAsWritten(f"{where}It printed:\n{said}")
        return said

    def _end_all(self) -> None:
        """End what is still at work in the project."""
        deadline = time.monotonic() + GONE_WITHIN
        number = signal.SIGTERM
        while processes := list(at_work_in(self._project)):
            if time.monotonic() > deadline:
                number = signal.SIGKILL
            for process in processes:
                with suppress(ProcessLookupError):
                    os.kill(process, number)
            time.sleep(0.5)


def at_work_in(folder: Path) -> Iterator[int]:
    """The processes whose working directory it is."""
    for each in Path("/proc").glob("[0-9]*"):
        try:
            if (each / "cwd").readlink().is_relative_to(folder):
                yield int(each.name)
        except OSError:
            continue  # it has ended, or is somebody else's
