"""A short storm, on one node: what `make chaos` does at length."""

from pathlib import Path
from random import Random

import pytest
from rich.console import Console

from tests.chaos.arena import raised
from tests.chaos.faults import (
    DeleteTimer,
    Fault,
    Freeze,
    HalfOpen,
    KillAtStep,
    KillBroker,
    KillOperator,
    Rollout,
)
from tests.chaos.report import show
from tests.chaos.run import storm

KINDS: tuple[type[Fault], ...] = (
    KillAtStep,
    KillOperator,
    Freeze,
    HalfOpen,
    Rollout,
    KillBroker,
    DeleteTimer,
)


@pytest.mark.timeout(400)
async def test_a_short_storm(tmp_path: Path) -> None:
    rng = Random(1)
    async with raised(tmp_path, queue_type="quorum") as arena:
        verdict = await storm(arena, [kind(rng) for kind in KINDS])
    # How late it may be is for storms on a machine that does nothing else.
    wrong = [each for each in verdict.violations if each.what != "late"]
    if wrong:
        show(verdict, Console(highlight=False))
    assert not wrong, f"the record and the logs are in {tmp_path}"
