"""The shape of the package: who may import whom, what is public, and who may ask for the time."""

import ast
import re
import subprocess
import sys
from collections import Counter
from functools import cache

import pytest

import scheduler
from scheduler import errors
from tests import shape

# From the ground up: each room imports from those before it only. `__init__` is the package itself.
ROOMS = (
    "errors",
    "spelling",
    "timing",
    "protocol",
    "settings",
    "events",
    "user_code",
    "tasks",
    "middleware",
    "brokers",
    "queues",
    "control",
    "processor",
    "program",
    "sending",
    "app",
    "metrics",
    "tracing",
    "dashboard",
    "testing",
    "pytest_plugin",
    "importing",
    "__init__",
    "cli",
    "__main__",
)

PUBLIC = (
    "Context",
    "Cron",
    "Every",
    "Reject",
    "Retry",
    "RetryLater",
    "Scheduler",
    "Settings",
    "StopLoop",
)

NO_NOUNS = {"Asked", "Did", "Heard", "Held", "Listed", "Told", "Wanted", "What", "Wish"}
VAGUE_NAMES = {"base", "common", "helpers", "utils"}


@cache
def modules() -> dict[str, shape.Module]:
    return shape.modules()


def test_every_room_has_its_place() -> None:
    assert sorted(ROOMS) == sorted(shape.rooms(modules()))


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_from_those_below_it_only(room: str) -> None:
    below = ROOMS[: ROOMS.index(room)]
    assert shape.rooms(modules())[room] <= set(below)


def test_no_modules_import_each_other() -> None:
    assert not shape.circles({name: set(module.imports) for name, module in modules().items()})


def test_no_module_has_a_vague_name() -> None:
    assert not {name.rpartition(".")[2] for name in modules()} & VAGUE_NAMES


def test_the_name_of_a_class_has_one_meaning_and_is_a_noun() -> None:
    named = [
        (node.name, module.name)
        for module in modules().values()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef)
    ]
    assert not [each for each in named if each[0].strip("_") in NO_NOUNS]
    counts = Counter(name for name, _ in named)
    assert not [each for each in named if counts[each[0]] > 1]


def test_the_core_is_read_in_an_hour() -> None:
    page = (shape.ROOT.parent / "docs/explanation/reading-the-code.md").read_text()
    named = re.findall(r"^\d\. `scheduler/(\S+)`", page, re.MULTILINE)
    assert len(named) == 7
    assert sum(len((shape.ROOT / name).read_text().splitlines()) for name in named) <= 2_500


def test_the_package_exports_its_public_names() -> None:
    error_types = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.SchedulerError)
    }
    assert set(scheduler.__all__) == {*PUBLIC, *error_types}
    assert all(hasattr(scheduler, name) for name in scheduler.__all__)


def test_only_the_clock_asks_the_machine_for_the_time() -> None:
    forbidden = {
        "datetime.now",
        "datetime.today",
        "datetime.utcnow",
        "date.today",
        "time.time",
        "time.time_ns",
    }
    asking = {
        name
        for name, module in modules().items()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute)
        and ".".join(ast.unparse(node).split(".")[-2:]) in forbidden
    }
    assert asking == {"timing.moments"}


@pytest.mark.parametrize("entrance", ["scheduler", "scheduler.testing", "scheduler.cli.commands"])
def test_an_import_loads_neither_the_driver_nor_a_web_server(entrance: str) -> None:
    script = f"import sys, {entrance}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    loaded = {name.split(".")[0] for name in done.stdout.decode().split()}
    assert "scheduler" in loaded
    assert not loaded & {"aiormq", "pamqp", "yarl"}
    assert not loaded & {"starlette", "jinja2", "uvicorn"}
