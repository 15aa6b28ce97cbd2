"""What the documentation shows is what happens: each of its code blocks is run."""

import asyncio
import logging
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.snippets import (
    Command,
    Page,
    commands_of,
    importing_from,
    is_as_expected,
)
from tests.acceptance.test_examples import sweep

ROOT = Path(__file__).parents[2]
PAGES = [
    path
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md")))
    if "generated" not in path.parts
    and re.search("```(python|console)", path.read_text(encoding="utf-8"))
]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Where a reader is: at the root of the sources, and what is written there is gone after."""
    for name in ("examples", "k8s", "docs"):
        (tmp_path / name).symlink_to(ROOT / name)
    before = Path.cwd()
    os.chdir(tmp_path)
    yield tmp_path
    os.chdir(before)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_does_as_it_says(path: Path, folder: Path, request: pytest.FixtureRequest) -> None:
    run = re.sub("<!-- skip: start.*?<!-- skip: end -->", "", path.read_text(), flags=re.DOTALL)
    seeded = set(re.findall(r"^\$ scheduler seed (\S+)", run, re.MULTILINE))
    url: str = request.getfixturevalue("broker_url") if seeded else "memory://"
    page = Page(path, folder, {"SCHEDULER_BROKER_URL": url} if seeded else {})
    try:
        page.run()
    finally:
        with importing_from(folder):
            for app in seeded:
                asyncio.run(sweep(url, app))
    assert all(page.left_out), "a block is left out, and nothing says why"
    logging.getLogger(__name__).info("%d blocks were run; not: %s", page.ran, page.left_out)


def test_what_varies_counts_as_equal() -> None:
    assert is_as_expected("10:00:00.123 ran in 1 ms", "23:59:59.001  ran in 17 ms\n")
    assert is_as_expected("a\n...\nd", "a\nb\nc\nd")
    assert is_as_expected("...\na\n...", "a\n")
    assert is_as_expected("due 2026-01-01 00:00:00+01:00", "due 2026-11-24 01:02:03-05:00")


def test_what_does_not_vary_does_not() -> None:
    assert not is_as_expected("ran", "ran twice")
    assert not is_as_expected("a\nd", "a\nb\nd")


def test_a_command_has_what_stands_below_it() -> None:
    assert list(commands_of("$ a  # first\n1\n2\n$ b\n")) == [
        Command("a  # first", "1\n2\n"),
        Command("b", ""),
    ]


def test_a_file_of_a_page_can_be_imported_there_and_nowhere_else(folder: Path) -> None:
    path = folder / "page.md"
    path.write_text("```python\n# shelf.py\nbooks = 3\n```\n```python\nimport shelf\n```\n")
    Page(path, folder, {}).run()
    assert "shelf" not in sys.modules
    assert str(folder) not in sys.path


def test_where_a_page_looks_for_modules_nobody_looks_after_it(folder: Path) -> None:
    path, before = folder / "page.md", sys.path.copy()
    path.write_text("```python\nimport sys\nsys.path.insert(0, 'elsewhere')\n```\n")
    Page(path, folder, {}).run()
    assert sys.path == before


@pytest.mark.parametrize(
    "block",
    [
        "```console\n$ echo one; false\n...\n```\n",
        "```console\n$ echo one\ntwo\n```\n",
        "```python\nassert False\n```\n",
        "```python\nasync def f(): assert False\nawait f()\n```\n",
        "```python\ndef test_one(): assert False\n```\n",
    ],
)
def test_what_goes_wrong_in_a_block_is_noticed(folder: Path, block: str) -> None:
    path = folder / "page.md"
    path.write_text(block)
    with pytest.raises(AssertionError) as caught:
        Page(path, folder, {}).run()
    assert "line 1" in "".join(caught.value.__notes__)
