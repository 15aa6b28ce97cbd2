"""A short storm, on one node: what `make chaos` does at length."""

from pathlib import Path
from random import Random

import pytest
from rich.console import Console

from tests.chaos.arena import raised
from tests.chaos.faults import BY_NAME
from tests.chaos.report import show
from tests.chaos.run import storm

KINDS = (
    *("kill-at-step", "kill-operator", "freeze", "half-open", "rollout"),
    *("kill-broker", "delete-timer"),
)


@pytest.mark.timeout(400)
async def test_a_short_storm(tmp_path: Path) -> None:
    rng = Random(1)
    async with raised(tmp_path, queue_type="quorum") as arena:
        faults = [BY_NAME[kind](rng) for kind in KINDS]
        verdict = await storm(arena, faults, lambda number, strike: None)
    # How late it may be is for storms on a machine that does nothing else.
    wrong = [each for each in verdict.violations if each.what != "late"]
    if wrong:
        show(verdict, Console(highlight=False))
    assert not wrong, f"the record and the logs are in {tmp_path}"
