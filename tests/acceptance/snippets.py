"""What stands in code blocks of the documentation, run as its reader would, from top to bottom.

A Python block is executed where the blocks above it were. If it awaits, it does so inside a kit of
the page's `app`, in virtual time. A test in it is run, with a kit if it takes `scheduler_kit`. A
block whose first line is a name, such as `# beats.py`, is also in that file, which the blocks below
it can import. Files that the page runs with python or pytest, and `conftest.py`, are only written:
a reader has one process for each, too.

In a console block, what follows `$ ` is run by bash, and what stands below it is compared with what
is printed, streams together. In both, dates, times of day, UTC offsets, ids, milliseconds and the
width of columns count as equal; `...` stands for any text in a line, or for any lines or none; `^C`
interrupts, once all above it was printed. Each command is to end with exit code 0; where nothing
stands below it, that is all. Commands that a page leaves in the background end with it. What
Markdown does not show may stand in an `<!--- invisible-code-block: python ... -->`, and
`<!-- skip: next "why" -->` leaves a block out.
"""

import ast
import inspect
import os
import re
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple
from unittest import SkipTest

from sybil import Document, Example
from sybil.parsers.markdown import CodeBlockParser, SkipParser

from scheduler import Scheduler
from scheduler.testing import Kit, run_virtually

VARYING = (
    (r"\d{4}-\d\d-\d\d", "DATE"),
    (r"\d\d:\d\d:\d\d(\.\d{3})?", "TIME"),
    (r"[+-]\d\d:\d\d\b", "OFFSET"),
    (r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|\b[0-9a-f]{32}\b|\b[0-9a-f]{8}\b", "ID"),
    (r"\b\d+ ms\b", "0 ms"),
    (r" +", " "),
)
INTERRUPT = "^C"


class Command(NamedTuple):
    line: str
    expected: str


class Page:
    """A page whose blocks are run, in a folder of its own.

    Attributes:
        ran: how many blocks were run, those that Markdown does not show among them.
        left_out: why others were not.
    """

    def __init__(self, path: Path, folder: Path, environment: Mapping[str, str]) -> None:
        self._path = path
        self._folder = folder
        program = Path(sys.executable).parent
        clean = {k: v for k, v in os.environ.items() if not k.startswith("SCHEDULER_")}
        self._environment: dict[str, str] = {**clean, **environment} | {
            "PATH": f"{program}:{os.environ['PATH']}"
        }
        self._namespace: dict[str, Any] = {"__name__": "page"}
        self._background = ExitStack()
        self.ran = 0
        self.left_out: list[str] = []

    def run(self) -> None:
        """Raises: AssertionError: something else was printed; whatever a block raises."""
        blocks = [CodeBlockParser("python", self.python), CodeBlockParser("console", self.console)]
        with importing_from(self._folder), self._background:
            for example in Document.parse(str(self._path), *blocks, SkipParser()).examples():
                try:
                    example.evaluate()
                except SkipTest as skipped:
                    self.left_out.append(str(skipped))
                except BaseException as error:
                    error.add_note(f"It is in {self._path}, line {example.line}.")
                    raise

    def python(self, example: Example) -> None:
        self.ran += 1
        source = str(example.parsed)
        if named := re.match(r"# (\w+\.py)\n", source):
            (self._folder / named[1]).write_text(source)
            if self._runs_apart(named[1]):
                return
        before = set(self._namespace)
        lines = "\n" * example.line + source
        code = compile(lines, str(self._path), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        if code.co_flags & inspect.CO_COROUTINE:
            run_virtually(self._awaited(code))
        else:
            exec(code, self._namespace)
        for name in set(self._namespace) - before:
            if name.startswith("test_"):
                self._test(self._namespace[name])

    def _runs_apart(self, name: str) -> bool:
        command = rf"^\$ (python|pytest) {re.escape(name)}$"
        runs = re.search(command, self._path.read_text(), re.MULTILINE)
        return name == "conftest.py" or runs is not None

    async def _awaited(self, code: CodeType) -> None:
        if not isinstance(app := self._namespace.get("app"), Scheduler):
            await eval(code, self._namespace)
            return
        async with Kit(app) as kit:
            self._namespace["kit"] = kit
            await eval(code, self._namespace)

    def _test(self, test: Any) -> None:
        async def with_kit() -> None:
            async with Kit(self._namespace["app"]) as kit:
                await test(kit)

        if "scheduler_kit" in inspect.signature(test).parameters:
            run_virtually(with_kit())
        else:
            test()

    def console(self, example: Example) -> None:
        self.ran += 1
        for command in commands_of(str(example.parsed)):
            if name_and_value := re.fullmatch(r"export (\w+)=(\S+)(\s+#.*)?", command.line):
                self._environment.setdefault(name_and_value[1], name_and_value[2])
            else:
                self._command(command)

    def _command(self, command: Command) -> None:
        process = subprocess.Popen(
            ["bash", "-c", f"exec 2>&1; {command.line}"],
            cwd=self._folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        if " & " in command.line:
            self._background.callback(_kill, process.pid)
        with process:
            assert process.stdout
            printed = ""
            until, interrupted, _ = command.expected.partition(INTERRUPT)
            try:
                if interrupted:
                    for line in process.stdout:
                        printed += line
                        if is_as_expected(until, printed):
                            break
                    os.killpg(process.pid, signal.SIGINT)
                printed += process.stdout.read()
            except BaseException as error:
                error.add_note(f"$ {command.line}\n{printed}")
                _kill(process.pid)
                raise
        said = f"$ {command.line}\n{printed}"
        assert process.returncode == 0, said
        expected = command.expected.replace(INTERRUPT, "")
        assert not expected or is_as_expected(expected, printed), said


def _kill(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


@contextmanager
def importing_from(folder: Path) -> Generator[None]:
    """Have the modules of a folder be found in the block, and be forgotten after it."""
    before, path_before = set(sys.modules), sys.path.copy()
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path[:] = path_before
        for name in set(sys.modules) - before:
            if Path(getattr(sys.modules[name], "__file__", None) or "/").is_relative_to(folder):
                del sys.modules[name]


def commands_of(block: str) -> Iterator[Command]:
    """Each command, with the lines below it."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        line, _, expected = part.partition("\n")
        yield Command(line.strip(), expected)


def is_as_expected(expected: str, printed: str) -> bool:
    """Whether this was printed, but for what varies."""
    lines = [
        "(.*\n)?" if line == "..." else re.escape(line).replace(re.escape("..."), ".*") + "\n"
        for line in normal(expected).splitlines()
    ]
    text = "".join(f"{line}\n" for line in normal(printed).splitlines())
    return re.fullmatch("".join(lines), text, re.DOTALL) is not None


def normal(text: str) -> str:
    """A text with what varies written the same, without empty lines."""
    for varying, same in VARYING:
        text = re.sub(varying, same, text)
    return "\n".join(line.strip() for line in text.splitlines() if line.strip())
