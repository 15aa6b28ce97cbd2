"""Loops on a real broker, with real processors."""

from collections import defaultdict
from typing import Any

import pytest

from scheduler.brokers.contract import Broker
from tests.integration.conftest import Field

RUNS = 8


def overlaps(notes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Starts of a run while another run of the same loop was going on."""
    running: dict[str, int] = defaultdict(int)
    found: list[dict[str, Any]] = []
    for note in sorted(notes, key=lambda note: note["at"]):
        if note["what"] == "start":
            running[note["loop"]] += 1
            if running[note["loop"]] > 1:
                found.append(note)
        elif note["what"] in ("end", "cancelled"):
            running[note["loop"]] -= 1
    return found


@pytest.mark.timeout(150)
async def test_two_processors_run_fifty_loops_without_losing_doubling_or_overlapping_any(
    field_: Field, broker: Broker
) -> None:
    loops = {"LOOPS": "50"}
    field_.call("seed", **loops)
    for _ in range(2):
        field_.start("run", **loops)

    def runs() -> dict[str, list[int]]:
        found: dict[str, list[int]] = defaultdict(list)
        for note in field_.notes("start"):
            found[note["loop"]].append(note["seq"])
        return found

    def none_is_left_behind() -> bool:
        return len(runs()) == 50 and min(map(len, runs().values())) >= RUNS

    await field_.until(none_is_left_behind, seconds=90)
    field_.stop()
    assert all(seqs == list(range(len(seqs))) for seqs in runs().values()), "a tick ran twice"
    assert overlaps(field_.notes()) == []
    assert len({note["pid"] for note in field_.notes()}) == 2, "one processor did all the work"
    assert await field_.tokens(broker, 50) == {f"loop{number}": 1 for number in range(50)}
