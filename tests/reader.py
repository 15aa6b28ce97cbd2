"""Follow a page of the documentation to the letter: write its files, and type its commands.

A block whose first line is a comment with a path, such as `# shop/jobs.py`, is that file, and
`# shop/jobs.py, continued` adds to it. A Python block without a path is run as a script. A console
block is commands: what follows `$ ` is run by bash, and the lines below it are compared with its
output. In both, dates, times, UTC offsets, IDs, milliseconds and the width of columns count as
equal; `...` stands for any text in a line, or for any number of lines; `^C` interrupts the command
once the lines above it were printed. Each command must end with exit code 0. Comments that Markdown
does not show, such as `<!-- meanwhile: 40 s -->` and `<!-- meanwhile: until second 59 -->`, wait
for so long, or until that second of a minute. All other blocks are for reading.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(
    r"^<!-- meanwhile: (?:(?P<seconds>\d+) s|until second (?P<second>\d+)) -->$"
    r"|^(?P<fence>`{3,})(?P<language>\w*)\n(?P<text>.*?)^(?P=fence)$",
    re.MULTILINE | re.DOTALL,
)
FILE = re.compile(r"# ([\w./-]+\.\w+|crontab)(, continued)?\n")
EXPORT = re.compile(r"export (\w+)=(\S+)")
VARYING = (
    (r"\d{4}-\d\d-\d\d", "DATE"),
    (r"\d\d:\d\d:\d\d(\.\d{3})?", "TIME"),
    (r"[+-]\d\d:\d\d\b", "OFFSET"),
    (r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|\b[0-9a-f]{32}\b|\b[0-9a-f]{8}\b", "ID"),
    (r"\b\d+ ms\b", "0 ms"),
    (r" +", " "),
)
INTERRUPT = "^C"


def heed_interrupts() -> None:
    """Heed SIGINT in a new process, though its ancestors were started in the background."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class NotAsWritten(AssertionError):
    """A command of a page did not do what the page says."""


class Command(NamedTuple):
    line: str
    expected: str


@dataclass(frozen=True, slots=True)
class File:
    """A file that the reader writes, or adds to."""

    path: str
    text: str
    continued: bool = False


@dataclass(frozen=True, slots=True)
class Typed:
    """A command that the reader types.

    Attributes:
        line: where on the page it is.
    """

    line: int
    command: Command


@dataclass(frozen=True, slots=True)
class Wait:
    """A wait of some seconds, or until this second of a minute."""

    seconds: int
    is_until: bool = False


Step = File | Typed | Wait


def steps_of(page: str) -> Iterator[Step]:
    """Yield the steps of a page."""
    for block in BLOCK.finditer(page):
        line = page.count("\n", 0, block.start()) + 1
        text = block["text"]
        if seconds := block["seconds"] or block["second"]:
            yield Wait(int(seconds), is_until=block["second"] is not None)
        elif block["language"] == "console":
            yield from (Typed(line, command) for command in commands_of(text))
        elif named := FILE.match(text):
            yield File(named[1], text, continued=named[2] is not None)
        elif block["language"] == "python":
            yield Typed(line, Command(f"python -c {shlex.quote(text)}", ""))


def commands_of(block: str) -> Iterator[Command]:
    """Yield each command, with the lines below it."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command = re.match(r"(?:.*\\\n)*.*", part)
        assert command
        yield Command(command[0].strip(), part[command.end() + 1 :])


class Reader:
    """A reader of a page, who works in a folder.

    Args:
        page: its name, for errors.
        environment: the environment variables; the page cannot change them.
        patience: how many seconds a command may take.
    """

    def __init__(
        self, page: str, folder: Path, environment: Mapping[str, str], patience: float
    ) -> None:
        self._page = page
        self._folder = folder
        self._environment = {**environment}
        self._patience = patience
        self._started: list[subprocess.Popen[bytes]] = []

    def write(self, file: File) -> None:
        path = self._folder / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text((path.read_text() if file.continued else "") + file.text)

    def type(self, line: int, command: Command) -> str:
        """Run a command, and return its output.

        The output goes into a file: processes in the background would keep a pipe open.

        Raises:
            NotAsWritten: The command failed, did not end, or printed something else.
        """
        if exported := EXPORT.match(command.line):
            self._environment.setdefault(exported[1], exported[2])
            return ""
        printed = self._folder.with_name(f"{self._folder.name}.printed")
        with printed.open("w") as output:
            process = subprocess.Popen(
                ["bash", "-c", command.line],
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=heed_interrupts,
            )
        self._started.append(process)
        until, interrupts, _ = command.expected.partition(INTERRUPT)
        deadline = time.monotonic() + self._patience
        seen = 0
        while process.poll() is None and time.monotonic() < deadline:
            lines = printed.read_text().splitlines() if interrupts else []
            while seen < len(lines) and interrupts:
                seen += 1
                if is_as_expected(until, "\n".join(lines[:seen])):
                    os.killpg(process.pid, signal.SIGINT)
                    interrupts = ""
            time.sleep(0.02)
        said = printed.read_text()
        where = f"{self._page}, line {line}: $ {command.line}\n"
        if process.returncode is None:
            raise NotAsWritten(f"{where}It did not end, and printed:\n{said}")
        if process.returncode:
            raise NotAsWritten(f"{where}It ended with exit code {process.returncode}:\n{said}")
        expected = command.expected.replace(INTERRUPT, "")
        if expected and not is_as_expected(expected, said):
            raise NotAsWritten(f"{where}It printed:\n{said}")
        return said

    def end(self) -> None:
        """Kill the processes that the commands left in the background."""
        for process in self._started:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def is_as_expected(expected: str, printed: str) -> bool:
    """Return whether this was printed, but for the parts that vary."""
    lines = [
        "(.*\n)?" if line == "..." else re.escape(line).replace(re.escape("..."), ".*") + "\n"
        for line in normal(expected).splitlines()
    ]
    text = "".join(f"{line}\n" for line in normal(printed).splitlines())
    return re.fullmatch("".join(lines), text, re.DOTALL) is not None


def normal(text: str) -> str:
    """Return a text with its varying parts written the same, without empty lines."""
    for varying, same in VARYING:
        text = re.sub(varying, same, text)
    return "\n".join(line.strip() for line in text.splitlines() if line.strip())


def build_wheel(folder: Path) -> Path:
    """Build the wheel of the package into a folder."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def install(folder: Path) -> Path:
    """Install the wheel into an environment of its own; return the folder of its programs.

    Other packages are those of the environment of the tests, which saves a download.
    """
    environment = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    python = environment / "bin/python"
    pip = [python, "-m", "pip", "install", "-qq", "--no-index", "--no-deps", build_wheel(folder)]
    subprocess.run(pip, check=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    pytest = environment / "bin/pytest"
    pytest.write_text(f"#!{python}\nimport sys, pytest\nsys.exit(pytest.console_main())\n")
    pytest.chmod(0o755)
    return environment / "bin"
