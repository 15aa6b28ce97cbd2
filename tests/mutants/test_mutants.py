"""What is changed, what the changes do, and that tests which look away are told."""

import ast
import subprocess
import sys
from typing import cast
from unittest.mock import Mock

import pytest

from tests import shape
from tests.mutants.changes import mutants_of
from tests.mutants.trials import IMPORT, Chosen, Record


def every_change(source: str) -> list[str]:
    """The module after each of its changes, alone."""
    count = len(mutants_of(ast.parse(source)))
    found: list[str] = []
    for number in range(count):
        tree = ast.parse(source)
        mutants_of(tree)[number].apply()
        found.append(ast.unparse(tree))
    return found


@pytest.mark.parametrize(
    ("source", "changes"),
    [
        ("a < b", ["a <= b"]),
        ("a and b", ["a or b"]),
        ("not a", ["a"]),
        ("a + b", ["a - b"]),
        ("a = True", ["a = False"]),
        ("a = 5", ["a = 6", "a = 4"]),
        ("a = x[-1]", ["a = x[-2]", "a = x[-0]"]),
        ("a.b = c", ["pass"]),
        ("a += b", ["pass"]),
        ("raise a", ["pass"]),
        ("a()", ["pass"]),
        ("def f():\n    return h", ["def f():\n    return None"]),
        ("a if b else c", ["a if not b else c"]),
        ("[a for a in b if c]", ["[a for a in b if not c]"]),
        ("while a:\n    break", ["while not a:\n    break", "while a:\n    continue"]),
        ("def f():\n    return False", ["def f():\n    return True"]),
        ("def f(a=False):\n    return a", ["def f(a=True):\n    return a"]),
    ],
)
def test_one_thing_is_changed_at_a_time(source: str, changes: list[str]) -> None:
    found = every_change(source)
    assert found[: len(changes)] == changes


@pytest.mark.parametrize(
    "source",
    [
        '"""A docstring."""',
        "a: Literal[5]",
        "def f(a: Literal[5]) -> Literal[6]: ...",
        "@dataclass(frozen=True)\nclass A: ...",
        "class A(TypedDict, total=False): ...",
        "if TYPE_CHECKING:\n    a = 5",
        "def f():\n    return None",
    ],
)
def test_code_that_does_not_run_is_not_changed(source: str) -> None:
    assert every_change(source) == []


def test_a_change_concerns_tests_that_execute_its_lines() -> None:
    (mutant,) = mutants_of(ast.parse("a = b(\n    c,\n    d < e,\n)"))
    assert (mutant.line, mutant.lines) == (3, {1, 3})
    assert mutant.what == "d < e  ->  d <= e"


def test_a_change_of_import_time_lines_concerns_tests_that_import_them():
    path = shape.ROOT / "timing" / "moments.py"
    who = "tests/unit/timing/test_moments.py::test_a_moment_travels_as_milliseconds"
    other = "tests/unit/timing/test_pacing.py::test_waits_double_up_to_the_last"
    recorded = Record({(str(path), 6): {IMPORT}}, {who: 0.2, other: 0.1})
    assert recorded.of(path, frozenset({6})) == {who: 0.2}
    assert recorded.of(path, frozenset({12})) == {}


def test_a_parametrised_test_runs_also_if_the_change_renames_it():
    names = ["a.py::test_seen[5]", "a.py::test_seen[7]", "a.py::test_other[7]", "a.py::test_plain"]
    items = [Mock(spec=pytest.Item, nodeid=name) for name in names]
    chosen = Chosen({"a.py::test_plain": 0.1, "a.py::test_seen[6]": 0.2})
    chosen.pytest_collection_modifyitems(cast(list[pytest.Item], items))
    assert {item.nodeid for item in items} == set(names) - {"a.py::test_other[7]"}


@pytest.mark.parametrize(("tests", "noticed"), [("test_durations", True), ("test_pacing", False)])
def test_a_module_with_unnoticed_changes_is_under_its_goal(tests: str, noticed: bool) -> None:
    program = [sys.executable, "-m", "tests.mutants", "timing.durations", "--sample", "1"]
    looking = ["--tests", f"tests/unit/timing/{tests}.py"]
    done = subprocess.run([*program, *looking], capture_output=True, text=True)
    _, score, *survivors = done.stdout.splitlines()
    assert done.returncode == (0 if noticed else 1)
    assert score.split()[-1] == ("90%" if noticed else "under")
    assert noticed is not any("  ->  " in line for line in survivors)
