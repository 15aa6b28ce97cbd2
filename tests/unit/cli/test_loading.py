import gc
import sys
from pathlib import Path

import pytest

from scheduler.cli import commands, loading
from scheduler.cli.loading import load_app
from scheduler.errors import AppNotFound, ScheduleError, UsageError

APP = "from scheduler import Scheduler\n{name} = Scheduler('{namespace}')\n"


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory; what is imported from it is forgotten at the end."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SCHEDULER_APP", raising=False)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.setattr(sys, "modules", sys.modules.copy())
    return tmp_path


def write(path: str, text: str) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text)


def write_app(path: str, namespace: str, name: str = "app") -> None:
    write(path, APP.format(name=name, namespace=namespace))


@pytest.mark.parametrize(
    "reference",
    [
        "shop/loops.py:jobs",
        "./shop/loops.py:jobs",
        "{here}/shop/loops.py:jobs",
        "shop.loops:jobs",
        "shop:app",
        "shop/alone.py",
    ],
)
def test_an_app_is_named_by_file_or_by_module(directory: Path, reference: str):
    write_app("shop/__init__.py", "shop")
    write_app("shop/loops.py", "shop", name="jobs")
    write_app("shop/alone.py", "shop")
    assert load_app(reference.format(here=directory)).namespace == "shop"


def test_a_file_can_import_its_neighbours_and_its_annotations_are_resolved():
    write("jobs/names.py", "NAMESPACE = 'shop'\n")
    write(
        "jobs/main_app.py",
        "from __future__ import annotations\n"
        "from names import NAMESPACE\n"
        "from scheduler import Context, Scheduler\n"
        "class Order: ...\n"
        "app = Scheduler(NAMESPACE)\n"
        "@app.periodic(every='1s')\n"
        "async def report(ctx: Context) -> Order: ...\n",
    )
    app = load_app("jobs/main_app.py:app")
    assert (app.namespace, list(app.tasks)) == ("shop", ["report"])


PYPROJECT = '[tool.scheduler]\napp = "of_pyproject.py:app"\n'


@pytest.fixture
def three_apps() -> None:
    write_app("of_argument.py", "argument")
    write_app("of_variable.py", "variable")
    write_app("of_pyproject.py", "pyproject")


@pytest.mark.usefixtures("three_apps")
@pytest.mark.parametrize(
    ("argument", "variable", "found"),
    [
        ("of_argument.py:app", "of_variable.py:app", "argument"),
        (None, "of_variable.py:app", "variable"),
        ("", "of_variable.py:app", "variable"),
        (None, "", "pyproject"),
    ],
)
def test_the_argument_comes_before_the_variable_and_that_before_pyproject(
    monkeypatch: pytest.MonkeyPatch, argument: str | None, variable: str | None, found: str
):
    write("pyproject.toml", PYPROJECT)
    if variable is not None:
        monkeypatch.setenv("SCHEDULER_APP", variable)
    assert load_app(argument).namespace == found


def test_garbage_is_collected_after_a_command_that_cannot_be_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "scheduler.cli.status", None)
    with pytest.raises(ImportError):
        commands.loaded("status")
    assert gc.isenabled()


@pytest.mark.parametrize("variable", [None, "of_pyproject.py"])
def test_a_missing_app_is_reported(monkeypatch: pytest.MonkeyPatch, variable: str | None) -> None:
    write("pyproject.toml", PYPROJECT)
    if variable is not None:
        monkeypatch.setenv("SCHEDULER_APP", variable)
    where = "SCHEDULER_APP" if variable else r"/pyproject\.toml"
    with pytest.raises(AppNotFound, match=rf"no file 'of_pyproject\.py'.*{where} names it\.$"):
        load_app(None)


@pytest.mark.parametrize("pyproject", [None, "", "[tool.other]\n", "[tool.scheduler]\n"])
def test_without_an_app_the_ways_to_name_one_are_listed(pyproject: str | None):
    if pyproject is not None:
        write("pyproject.toml", pyproject)
    with pytest.raises(
        AppNotFound, match=r"`module:attribute`.*SCHEDULER_APP.*\[tool\.scheduler\] in pyproject"
    ):
        load_app(None)


@pytest.mark.parametrize("reference", ["of_pyproject.py", "of_pyproject:app"])
@pytest.mark.usefixtures("three_apps")
def test_a_pyproject_is_found_from_a_subfolder(
    monkeypatch: pytest.MonkeyPatch, directory: Path, reference: str
):
    write("pyproject.toml", f"[tool.scheduler]\napp = '{reference}'\n")
    write("below/pyproject.toml", "[tool.other]\n")
    monkeypatch.chdir(directory / "below")
    assert load_app(None).namespace == "pyproject"


def test_an_unknown_key_of_pyproject_is_refused_with_a_suggestion():
    write("pyproject.toml", f"{PYPROJECT}ap = 'jobs.py'\n")
    with pytest.raises(UsageError, match=r"pyproject\.toml.*'ap'; did you mean 'app'\?"):
        load_app(None)


@pytest.mark.parametrize(
    ("pyproject", "told"),
    [
        (b"[tool", r"pyproject\.toml cannot be read: "),
        (b"\xff\xfe", r"pyproject\.toml cannot be read: "),
        (b"[tool.scheduler]\napp = 5\n", r"write `app = .*, not 5"),
        (b"tool = 5\n", r"No app was named"),
        (b"[tool]\nscheduler = 5\n", r"No app was named"),
    ],
)
def test_an_unreadable_pyproject_is_reported(pyproject: bytes, told: str):
    Path("pyproject.toml").write_bytes(pyproject)
    with pytest.raises(AppNotFound, match=told):
        load_app(None)
    write_app("jobs.py", "shop")
    assert load_app("jobs.py:app").namespace == "shop"  # it is not read


@pytest.mark.parametrize(
    ("reference", "told"),
    [
        ("no_such", "There is no module 'no_such'.*with its `.py`, and a loop after its app"),
        *((name, "is not the name of a module") for name in (".jobs:app", "a-b:app")),
        ("scheduler.py:app", "would hide the package `scheduler`"),
        ("empty", "the module has no 'app'"),
        (":app", "An app is named as .*, got ':app'"),
        ("jobs:", "An app is named as .*, got 'jobs:'"),
        ("jobs.no_such_part:app", r"There is no module 'jobs\.no_such_part'"),
        ("jobs.py:ap", "the module has no 'ap'. It has 'app', 'other'"),
        ("jobs.py:text", "'text' is of type str. It has 'app', 'other'"),
        ("jobs.py:make", r"'make' is of type function\..* write `app = make\(\)`"),
        ("empty.py:app", "the module has no 'app'. It has no Scheduler."),
    ],
)
def test_a_bad_reference_is_explained(reference: str, told: str):
    more = "other = app\ntext = 'app'\ndef make(): ...\n"
    write("jobs.py", APP.format(name="app", namespace="a") + more)
    write("empty.py", "")
    write("scheduler.py", "")
    with pytest.raises(AppNotFound, match=told):
        load_app(reference)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("app = (", r"SyntaxError: '\(' was never closed \(jobs\.py, line 1\)$"),
        ("import no_such", "ModuleNotFoundError: No module named 'no_such'"),
        ("raise SystemExit('no key')", "SystemExit: no key\n"),
    ],
)
@pytest.mark.parametrize("place", ["jobs", "jobs.py"])
def test_an_app_that_cannot_be_imported_is_reported(place: str, text: str, told: str):
    write("jobs.py", f"{text}\n")
    with pytest.raises(UsageError, match=rf"^{place} cannot be imported: {told}") as refused:
        load_app(f"{place}:app")
    assert not isinstance(refused.value, AppNotFound)


def test_an_exception_of_an_app_is_shown_with_its_own_lines():
    write("names.py", "import json\ndef name():\n    return json.loads('?')\n")
    write("jobs.py", "import names\napp = names.name()\n")
    with pytest.raises(UsageError) as refused:
        load_app("jobs.py:app")
    first, *lines = str(refused.value).splitlines()
    assert first.startswith("jobs.py cannot be imported: JSONDecodeError: Expecting value")
    assert [line.strip().split(", ", 1)[1] for line in lines if "File" in line] == [
        "line 2, in <module>",
        "line 3, in name",
    ]


def test_an_exception_in_installed_code_is_shown_with_its_lines(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(loading, "INSTALLED", (str(Path.cwd()),))
    write("jobs.py", "app = 1 / 0\n")
    with pytest.raises(UsageError, match=r"line 1, in <module>\n    app = 1 / 0"):
        load_app("jobs.py:app")


def test_a_bad_schedule_is_reported_with_its_task():
    write(
        "jobs.py",
        "from scheduler import Scheduler\n"
        "app = Scheduler('shop')\n"
        "@app.periodic(cron='61 * * * *')\n"
        "async def report() -> None: ...\n",
    )
    with pytest.raises(ScheduleError, match="The schedule of 'report': .* the minute field") as it:
        load_app("jobs.py:app")
    assert str(it.value).endswith("jobs.py, line 3)")
