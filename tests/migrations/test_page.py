"""Each way over that there is."""

import re

import pytest

from tests.migrations.guides import GUIDES
from tests.reader import Typed, Wait, steps_of


@pytest.mark.parametrize("name", GUIDES)
def test_a_guide_migrates_there_and_back(name: str) -> None:
    guide = GUIDES[name]
    page = guide.page.read_text()
    assert (guide.project / "requirements.txt").exists()
    assert re.search(r"^#+ .*way back", page, re.MULTILINE | re.IGNORECASE)
    steps = [*steps_of(page)]
    typed = [step.command.line for step in steps if isinstance(step, Typed)]
    for command in "seed", "resume", "pause":
        assert any(f"scheduler {command} " in line for line in typed), command
    waits = [step for step in steps if isinstance(step, Wait)]
    assert len(waits) == page.count("<!-- meanwhile: ") >= 3
    assert sum(wait.is_until for wait in waits) == page.count("until second")
