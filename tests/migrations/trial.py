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

from tests.migrations import record
from tests.migrations.guides import Guide
from tests.migrations.verdict import Line, line_of
from tests.reader import File, Reader, Typed, Wait, build_wheel, steps_of

ENDS_WITHIN = 120  # seconds, of a command
GONE_WITHIN = 20


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
        clean = {k: v for k, v in os.environ.items() if not k.startswith("SCHEDULER_")}
        self._variables = clean | {
            "PATH": f"{self._environment}/bin:{os.environ['PATH']}",
            "VIRTUAL_ENV": str(self._environment),
            "PYTHONUNBUFFERED": "1",
            "RUN_PROJECT": guide.name,
            "BROKER_URL": broker,
            "SCHEDULER_BROKER_URL": broker,
        }
        self._reader = Reader(str(guide.page), self._project, self._variables, ENDS_WITHIN)

    def prepare(self) -> None:
        """Install what the project needs, and lay it out."""
        built = self._environment.with_name("wheel")
        shutil.rmtree(built, ignore_errors=True)
        wheel = build_wheel(built)
        requirements = self._guide.project / "requirements.txt"
        wanted = hashlib.sha256(requirements.read_bytes()).hexdigest()
        stamp = self._environment / "requirements"
        if not stamp.exists() or stamp.read_text() != wanted:
            run = [sys.executable, "-m", "venv", "--clear", str(self._environment)]
            subprocess.run(run, check=True)
            self._install(wheel, "-r", requirements)
            stamp.write_text(wanted)
        self._install("--force-reinstall", "--no-deps", wheel)
        shutil.rmtree(self._project, ignore_errors=True)
        for folder in filter(None, (self._guide.shared, self._guide.project)):
            shutil.copytree(folder, self._project, dirs_exist_ok=True)
        shutil.copy(record.__file__, self._project)
        if (self._project / "prepare.sh").exists():
            subprocess.run(["bash", "prepare.sh"], cwd=self._project, check=True)

    def _install(self, *what: str | Path) -> None:
        pip = [self._environment / "bin/python", "-m", "pip", "install", "-qq", *what]
        subprocess.run(pip, check=True)

    def follow(self) -> Iterator[str]:
        """Do what the page says; tells what is being done.

        Raises:
            NotAsWritten: it did something else.
        """
        try:
            for step in steps_of(self._guide.page.read_text()):
                match step:
                    case File(path):
                        yield f"writes {path}"
                        self._reader.write(step)
                    case Typed(line, command):
                        yield f"$ {command.line}"
                        yield from self._reader.type(line, command).splitlines()
                    case Wait(seconds, is_until=False):
                        yield f"waits for {seconds} s"
                        time.sleep(seconds)
                    case Wait(second):
                        yield f"waits until second {second}"
                        # Half a second later: jobs begin at the second itself.
                        time.sleep((second + 0.5 - time.time()) % 60)  # noqa: TID251
        finally:
            self._end_all()

    def lines(self) -> list[Line]:
        """What the jobs have noted."""
        noted = (self._project / record.RECORD).read_text().splitlines()
        return [line_of(json.loads(each)) for each in noted]

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
