"""Running tests in forked processes, on a package of which one module is changed in memory."""

import ast
import importlib
import io
import multiprocessing
import os
import resource
import signal
import sys
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from functools import cache
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.metadata import entry_points
from importlib.util import spec_from_file_location
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from types import CodeType
from typing import cast

import pytest
from coverage import Coverage

from tests.mutants.changes import Mutant
from tests.shape import PACKAGE, ROOT, Module

FORK = multiprocessing.get_context("fork")
# Plain assertions fail as well; to rewrite them takes longer than most tests.
OPTIONS = ("-q", "-n", "0", "-p", "no:cacheprovider", "--assert=plain", "-o", "timeout=0")
COMMON = ("tests.mutants", "tests.shape")
MEMORY = 4 << 30
# What a busy machine may add to the time of the tests, in seconds, and times which.
PATIENCE, SLOWER = 10.0, 5.0
STARTING = 5.0
IMPORT = ""  # what no test executes


class TestsFail(Exception):
    """Tests fail on the package as it is."""


@dataclass
class Record:
    """Which tests execute which lines, and how long they take.

    Attributes:
        tests: by file and line; IMPORT is among them where a line is executed at import.
        seconds: by test.
    """

    tests: dict[tuple[str, int], set[str]] = field(default_factory=dict[tuple[str, int], set[str]])
    seconds: dict[str, float] = field(default_factory=dict[str, float])

    def add(self, other: "Record") -> None:
        self.seconds |= other.seconds
        for line, names in other.tests.items():
            self.tests.setdefault(line, set()).update(names)

    def of(self, path: Path, lines: frozenset[int]) -> dict[str, float]:
        """The tests that may notice a change of these lines, and their times, in that order.

        Of lines that are executed at import: all tests that execute any line of the module, and all
        in files that import it, as constants and what dataclasses are given have no lines that run.
        """
        met = set[str]().union(*(self.tests.get((str(path), line), ()) for line in lines))
        if IMPORT in met:
            met.update(*(names for (file, _), names in self.tests.items() if file == str(path)))
            module = dotted(path)
            met |= {name for name in self.seconds if module in imports_of(file_of(name))}
        times = {name: self.seconds[name] for name in met - {IMPORT}}
        return dict(sorted(times.items(), key=lambda item: item[1]))


def dotted(path: Path) -> str:
    """The name under which a file of the package is imported."""
    name = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)
    return name.removesuffix(".__init__")


def file_of(test: str) -> str:
    return test.partition("::")[0]


def function_of(test: str) -> str:
    return test.partition("[")[0]


@cache
def imports_of(file: str) -> frozenset[str]:
    """What a file of tests imports, by name: modules, and what may be modules in them."""
    nodes = list(ast.walk(ast.parse((ROOT.parent / file).read_text())))
    whole = {name.name for node in nodes if isinstance(node, ast.Import) for name in node.names}
    parts = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    inner = {f"{node.module}.{name.name}" for node in parts for name in node.names}
    return frozenset(whole | inner | {node.module or "" for node in parts})


def record(paths: Sequence[str], parts: int) -> Record:
    """Run the tests, in so many processes, and see what they execute.

    Raises:
        TestsFail: some fail.
    """
    whole = Record()
    readers: list[Connection] = []
    for part in range(parts):
        reader, writer = FORK.Pipe(duplex=False)
        FORK.Process(target=_record_part, args=(paths, part, parts, writer)).start()
        writer.close()
        readers.append(reader)
    for reader in readers:
        found: Record | str = reader.recv()
        if isinstance(found, str):
            raise TestsFail(found)
        whole.add(found)
    return whole


def _record_part(paths: Sequence[str], part: int, parts: int, writer: Connection) -> None:
    os.environ["COVERAGE_CORE"] = "ctrace"  # the others do not tell one test from another
    coverage = Coverage(data_file=None, config_file=False, source=[str(ROOT)])
    recorder = Recorder(coverage, part, parts)
    printed = io.StringIO()
    coverage.start()
    with redirect_stdout(printed):
        code = pytest.main([*paths, *OPTIONS], plugins=[recorder])
    coverage.stop()
    writer.send(printed.getvalue() if code else recorder.result())


class Recorder:
    """A plugin of pytest that runs every nth test, and notes what each executes."""

    def __init__(self, coverage: Coverage, part: int, parts: int) -> None:
        self._coverage = coverage
        self._mine = slice(part, None, parts)
        self._seconds: dict[str, float] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = items[self._mine]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, bool, bool]:
        self._coverage.switch_context(item.nodeid)
        began = time.monotonic()
        try:
            return (yield)
        finally:
            self._seconds[item.nodeid] = time.monotonic() - began
            self._coverage.switch_context(IMPORT)

    def result(self) -> Record:
        found = Record(seconds=self._seconds)
        data = self._coverage.get_data()
        for path in data.measured_files():
            for line, names in data.contexts_by_lineno(path).items():
                found.tests[path, line] = set(names)
        return found


@dataclass
class Trial:
    """A mutant, the tests that may notice it with their times, and whether one did."""

    module: Module
    mutant: Mutant
    tests: dict[str, float]
    noticed: bool = False


def run(trials: Iterable[Trial], jobs: int) -> None:
    """Try each mutant that a test executes, so many at a time."""
    waiting = iter([trial for trial in trials if trial.tests])
    going: dict[int, tuple[ForkProcess, Trial]] = {}
    while True:
        while len(going) < jobs and (trial := next(waiting, None)):
            process = FORK.Process(target=_attempt, args=(trial,))
            process.start()
            going[process.sentinel] = (process, trial)
        if not going:
            return
        for sentinel in wait(list(going)):
            process, trial = going.pop(cast(int, sentinel))
            process.join()
            trial.noticed = process.exitcode != pytest.ExitCode.OK
            sys.stderr.write("." if trial.noticed else "S")
            sys.stderr.flush()


def _attempt(trial: Trial) -> None:
    """Run the tests until one fails; exits as pytest does."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.alarm(int(bearable(STARTING + sum(trial.tests.values()))))  # it ends the process
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    trial.mutant.apply()
    sys.meta_path.insert(0, Changed(trial.module))
    files = dict.fromkeys(map(file_of, trial.tests))
    code = pytest.main([*files, *OPTIONS, "-x"], plugins=[Chosen(trial.tests)])
    os._exit(code)


class Chosen:
    """A plugin of pytest that runs these tests, in this order, none for much longer than before."""

    def __init__(self, tests: Mapping[str, float]) -> None:
        self._tests = tests
        self._place = {name: place for place, name in enumerate(tests)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        # A test has another name where the change made a value that it is called after.
        gone = self._tests.keys() - {item.nodeid for item in items}
        renamed = set(map(function_of, gone))
        items[:] = [
            item
            for item in items
            if item.nodeid in self._tests or function_of(item.nodeid) in renamed
        ]
        for item in items:
            # By thread: it ends the process, where another way may be waited for in vain.
            seconds = self._tests.get(item.nodeid, 0)
            limit = pytest.mark.timeout(bearable(seconds), method="thread")
            item.add_marker(limit, append=False)
        items.sort(key=lambda item: self._place.get(item.nodeid, 0))


def bearable(seconds: float) -> float:
    """How long a test may take that took so long."""
    return PATIENCE + SLOWER * seconds


class Changed(SourceFileLoader):
    """Finds and loads the changed tree in the place of what is in the file."""

    def __init__(self, module: Module) -> None:
        super().__init__(dotted(module.path), str(module.path))
        self._tree = module.tree

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        if fullname != self.name:
            return None
        return spec_from_file_location(fullname, self.path, loader=self)

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._tree, self.path, "exec")


def import_the_rest() -> None:
    """Have what all processes import in common: everything but the package, and its tests."""
    plugins = [entry.module for entry in entry_points(group="pytest11")]
    ours = f"{PACKAGE}.cli.commands", f"{PACKAGE}.testing", "tests.conftest"
    for name in (*ours, "hypothesis", *plugins):
        importlib.import_module(name)
    for name in list(sys.modules):
        if name.startswith((f"{PACKAGE}.", "tests.")) and not name.startswith(COMMON):
            del sys.modules[name]
    del sys.modules[PACKAGE]
