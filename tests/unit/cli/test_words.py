"""The words that commands and logs use of loops and messages are explained in the reference."""

import re
from pathlib import Path

import pytest

from scheduler.control.beginnings import REPAIRED
from scheduler.control.loops import Where
from scheduler.control.supervision import ADVICE
from scheduler.protocol.tokens import Ending

PAGE = (Path(__file__).parents[3] / "docs/reference/words.md").read_text(encoding="utf-8")
FIRST_CELLS = re.findall(r"^\| (`[^|]+) \|", PAGE, re.MULTILINE)
EXPLAINED = {word for cell in FIRST_CELLS for word in re.findall(r"`(\w+)`", cell)}


@pytest.mark.parametrize(
    "word",
    sorted(
        {*map(str, Where), *map(str, Ending), *ADVICE, *REPAIRED, "adopted", "parked", "delayed"}
    ),
)
def test_a_word_is_explained(word: str) -> None:
    assert word in EXPLAINED
