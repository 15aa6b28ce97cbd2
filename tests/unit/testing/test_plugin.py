"""The fixture, as a project has it that installs the package and pytest."""

import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = """
import pytest
from scheduler import Scheduler

app = Scheduler("shop")

@app.task
async def greet(name: str) -> None: ...

@pytest.fixture
def scheduler_app() -> Scheduler:
    return app

@pytest.fixture
def name():
    return "Ada"
"""
TESTS = """
import asyncio
import time
from datetime import datetime, timezone

import pytest
from scheduler.testing import VirtualTimeLoop

START = datetime(2030, 1, 1, tzinfo=timezone.utc)

async def test_time_is_virtual(scheduler_kit, scheduler_app, name):
    began = time.monotonic()
    await asyncio.sleep(3600)
    await scheduler_kit.advance("300d")
    assert time.monotonic() - began < 30
    assert name == "Ada"

@pytest.mark.scheduler_kit(start=START)
@pytest.mark.parametrize("number", [1, 2])
async def test_its_options_are_marked(scheduler_kit, number):
    assert scheduler_kit.now == START

@pytest.mark.usefixtures("scheduler_kit")
async def test_it_need_not_be_named():
    assert isinstance(asyncio.get_running_loop(), VirtualTimeLoop)

class TestClass:
    @pytest.fixture(autouse=True)
    def prepared(self):
        self.prepared = True

    async def test_methods_are_tests_too(self, scheduler_kit):
        assert self.prepared
        assert isinstance(asyncio.get_running_loop(), VirtualTimeLoop)
"""
OTHERS = """
async def test_others_have_real_time():
    assert not isinstance(asyncio.get_running_loop(), VirtualTimeLoop)
"""


ALONE = ("-p", "no:asyncio")
SCOPE = ("-o", "asyncio_default_fixture_loop_scope=function")


def run_pytest(project: Path, tests: str, *options: str, conftest: str = CONFTEST) -> str:
    (project / "pytest.ini").write_text("[pytest]\n")
    (project / "conftest.py").write_text(conftest)
    (project / "test_shop.py").write_text(tests)
    command = [sys.executable, "-m", "pytest", "-W", "error", "--strict-markers", *options]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider"], cwd=project, capture_output=True, text=True
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("options", "tests", "passed"),
    [
        (ALONE, TESTS, 5),
        ((*SCOPE, "--asyncio-mode=strict"), TESTS, 5),
        ((*SCOPE, "--asyncio-mode=auto"), TESTS + OTHERS, 6),
        (
            (*SCOPE, "--asyncio-mode=strict"),
            TESTS + OTHERS + "\npytestmark = pytest.mark.asyncio\n",
            6,
        ),
    ],
    ids=["alone", "strict", "auto", "marked"],
)
def test_a_test_runs_in_virtual_time_whatever_runs_the_others(
    tmp_path: Path, options: tuple[str, ...], tests: str, passed: int
) -> None:
    told = run_pytest(tmp_path, tests, *options)
    assert f"{passed} passed in" in told, told


def test_a_failure_is_shown_where_it_is(tmp_path: Path) -> None:
    test = "async def test_shop(scheduler_kit):\n    scheduler_kit.assert_ran('greet')\n"
    told = run_pytest(tmp_path, test, *ALONE)
    error = "AssertionError: Expected greet to run at least once; it ran 0 times"
    assert f">       scheduler_kit.assert_ran('greet')\nE       {error}" in told, told


def test_a_project_without_an_app_is_told_what_to_define(tmp_path: Path) -> None:
    told = run_pytest(tmp_path, "async def test_shop(scheduler_kit): ...\n", *ALONE, conftest="")
    assert "define that in your conftest.py" in told


def test_a_test_that_cannot_wait_is_told_so(tmp_path: Path) -> None:
    told = run_pytest(tmp_path, "def test_shop(scheduler_kit): ...\n", *ALONE)
    assert "A test with scheduler_kit must be an `async def`." in told


def test_who_does_not_use_it_loads_next_to_nothing() -> None:
    script = "import sys, pytest, scheduler.pytest_plugin; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    loaded = set(done.stdout.decode().split())
    ours = {name for name in loaded if name.partition(".")[0] == "scheduler"}
    assert ours == {"scheduler", "scheduler.errors", "scheduler.pytest_plugin"}
    assert not loaded & {"pydantic", "aiormq", "asyncio.base_events", "typer", "rich"}
