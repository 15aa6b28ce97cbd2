"""The shape of the package: who may import whom, what is public, and who may ask for the time."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import scheduler
from scheduler import errors

# Each module imports from those above it only. `__init__` is the package itself: its public names.
ORDER = (
    "errors",
    "clock",
    "durations",
    "outcomes",
    "rates",
    "settings",
    "credentials",
    "crontab",
    "schedules",
    "retries",
    "messages",
    "calls",
    "ladder",
    "topology",
    "rights",
    "settlement",
    "events",
    "context",
    "tasks",
    "brokers",
    "brokers.streams",
    "brokers.memory",
    "brokers.tls",
    "brokers.connection",
    "brokers.amqp",
    "brokers.opening",
    "outbox",
    "parking",
    "hatchery",
    "journal",
    "rollcall",
    "roster",
    "registry",
    "tokens",
    "whereabouts",
    "recovery",
    "repairs",
    "control",
    "keyed",
    "sending",
    "app",
    "runs",
    "worker",
    "supervision",
    "processor",
    "status",
    "backlog",
    "logs",
    "pages",
    "health",
    "metrics",
    "tracing",
    "doctor",
    "loading",
    "testing",
    "__init__",
    "display",
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

NAMES_OF_NOTHING = {"base", "common", "helpers", "utils"}

PACKAGE = Path(scheduler.__file__).parent


def name_of(path: Path) -> str:
    """As in ORDER: `errors`, `brokers` (its `__init__`), `brokers.memory`."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes that run: what stands under `if TYPE_CHECKING:` does not."""
    yield tree
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield from nodes(child)


def imported(name: str) -> set[str]:
    """The modules of the package that a module imports, in the names of ORDER."""
    found: set[str] = set()
    for node in nodes(ast.parse(MODULES[name].read_text())):
        match node:
            case ast.Import():
                found |= {alias.name for alias in node.names}
            case ast.ImportFrom(level=0, module=str(module)):
                found |= {f"{module}.{alias.name}" for alias in node.names}
            case ast.ImportFrom():
                pytest.fail(f"scheduler.{name}, line {node.lineno}: write the import in full")
            case _:
                pass
    return {module_of(path) for path in found if path.split(".")[0] == "scheduler"}


def module_of(path: str) -> str:
    """`scheduler.errors.UsageError` is of `errors`, `scheduler.Retry` of the package itself."""
    name = path.removeprefix("scheduler").removeprefix(".")
    while name and name not in MODULES:
        name = name.rpartition(".")[0]
    return name or "__init__"


def test_the_order_names_every_module() -> None:
    assert sorted(ORDER) == sorted(MODULES)


@pytest.mark.parametrize("name", [name for name in ORDER if name in MODULES])
def test_imports_point_up(name: str) -> None:
    above = ORDER[: ORDER.index(name)]
    assert imported(name) - {name} <= set(above)


def test_modules_are_named_after_what_they_hold() -> None:
    assert not {name.rpartition(".")[2] for name in MODULES} & NAMES_OF_NOTHING


def test_the_package_exports_its_public_names() -> None:
    error_types = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.SchedulerError)
    }
    assert set(scheduler.__all__) == {*PUBLIC, *error_types}
    assert all(hasattr(scheduler, name) for name in scheduler.__all__)


@pytest.mark.parametrize("name", [name for name in MODULES if name != "clock"])
def test_only_the_clock_asks_the_machine_for_the_time(name: str) -> None:
    forbidden = {
        "datetime.now",
        "datetime.today",
        "datetime.utcnow",
        "date.today",
        "time.time",
        "time.time_ns",
    }
    read = {
        ".".join(ast.unparse(node).split(".")[-2:])
        for node in ast.walk(ast.parse(MODULES[name].read_text()))
        if isinstance(node, ast.Attribute)
    }
    assert not read & forbidden
