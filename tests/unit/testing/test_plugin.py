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

async def test_marked_tests_have_virtual_time(scheduler_kit, scheduler_app, name):
    began = time.monotonic()
    await asyncio.sleep(3600)
    await scheduler_kit.advance("300d")
    assert time.monotonic() - began < 30
    assert name == "Ada"

@pytest.mark.scheduler_kit(start=START)
@pytest.mark.parametrize("number", [1, 2])
async def test_options_of_the_plugin_are_marked(scheduler_kit, number):
    assert scheduler_kit.now == START

@pytest.mark.usefixtures("scheduler_kit")
async def test_the_plugin_loads_by_itself():
    assert isinstance(asyncio.get_running_loop(), VirtualTimeLoop)

class TestClass:
    @pytest.fixture(autouse=True)
    def prepared(self):
        self.prepared = True

    async def test_the_plugin_works_for_methods(self, scheduler_kit):
        assert self.prepared
        assert isinstance(asyncio.get_running_loop(), VirtualTimeLoop)
"""
OTHERS = """
async def test_unmarked_tests_have_real_time():
    assert not isinstance(asyncio.get_running_loop(), VirtualTimeLoop)
"""


ALONE = ("-p", "no:asyncio")
SCOPE = ("-o", "asyncio_default_fixture_loop_scope=function")


MARKED = TESTS + OTHERS + "\npytestmark = pytest.mark.asyncio\n"


def run_pytest(project: Path, *options: str, **tests: str) -> str:
    """What pytest says of these files: in `shop` there is an app, in `bare` there is none."""
    (project / "pytest.ini").write_text("[pytest]\n")
    for folder in "shop", "bare":
        (project / folder).mkdir()
    (project / "shop" / "conftest.py").write_text(CONFTEST)
    for name, text in tests.items():
        (project / name.replace("_", "/test_", 1)).with_suffix(".py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-W", "error", "--strict-markers", *options]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider"], cwd=project, capture_output=True, text=True
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("options", "tests", "passed"),
    [
        (ALONE, {"shop_all": TESTS}, 5),
        ((*SCOPE, "--asyncio-mode=strict"), {"shop_all": TESTS, "shop_marked": MARKED}, 11),
        ((*SCOPE, "--asyncio-mode=auto"), {"shop_all": TESTS + OTHERS}, 6),
    ],
    ids=["alone", "strict", "auto"],
)
def test_virtual_time_works_with_any_runner(
    tmp_path: Path, options: tuple[str, ...], tests: dict[str, str], passed: int
) -> None:
    told = run_pytest(tmp_path, *options, **tests)
    assert f"{passed} passed in" in told, told


def test_failures_show_their_line_and_misuse_is_explained(tmp_path: Path) -> None:
    told = run_pytest(
        tmp_path,
        *ALONE,
        shop_fails="async def test(scheduler_kit):\n    scheduler_kit.assert_ran('greet')\n",
        shop_waits="def test(scheduler_kit): ...\n",
        bare_lacks="async def test(scheduler_kit): ...\n",
    )
    error = "AssertionError: Expected greet to run at least once; it ran 0 times"
    assert f">       scheduler_kit.assert_ran('greet')\nE       {error}" in told, told
    assert "A test with scheduler_kit must be an `async def`." in told
    assert "define that in your conftest.py" in told


def test_unused_the_plugin_loads_almost_nothing() -> None:
    script = "import sys, pytest, scheduler.pytest_plugin; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    loaded = set(done.stdout.decode().split())
    ours = {name for name in loaded if name.partition(".")[0] == "scheduler"}
    assert ours == {"scheduler", "scheduler.errors", "scheduler.pytest_plugin"}
    assert not loaded & {"pydantic", "aiormq", "asyncio.base_events", "typer", "rich"}
