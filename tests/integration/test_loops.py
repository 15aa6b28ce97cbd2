"""Loops on a real broker, with real processors."""

import asyncio
from collections import defaultdict
from itertools import pairwise
from typing import Any

import pytest

from scheduler.brokers.contract import Broker
from tests.integration.conftest import Field

SECONDS = 15
RUNS = 20


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
    await field_.until(lambda: bool(field_.notes()))
    await asyncio.sleep(SECONDS)
    field_.stop()

    runs: dict[str, list[int]] = defaultdict(list)
    for note in field_.notes("start"):
        runs[note["loop"]].append(note["seq"])
    assert len(runs) == 50
    # About one a second on an idle machine; on a busy one fewer, but none is left behind.
    counts = sorted(len(seqs) for seqs in runs.values())
    assert SECONDS / 2 <= counts[0] <= counts[-1] <= SECONDS + 3, counts
    assert counts[-1] - counts[0] <= 5, counts
    assert all(seqs == list(range(len(seqs))) for seqs in runs.values()), "a tick ran twice"
    assert overlaps(field_.notes()) == []
    assert len({note["pid"] for note in field_.notes()}) == 2, "one processor did all the work"
    assert await field_.tokens(broker, 50) == {f"loop{number}": 1 for number in range(50)}


async def test_a_fixed_rate_keeps_to_its_grid(field_: Field) -> None:
    schedule = {"MODE": "fixed_rate", "TAKES": "0.05"}
    field_.call("seed", **schedule)
    field_.start("run", **schedule)
    await field_.until(lambda: len(field_.notes("end")) >= RUNS, seconds=90)
    field_.stop()

    starts = field_.notes("start")
    ticks = [note["scheduled_at"] for note in starts]
    assert ticks[0] % 1 == 0
    # Each tick once, in order. A machine that is too busy leaves out some, and says so of each.
    assert all(tick < later for tick, later in pairwise(ticks))
    began, ended = starts[0]["at"], starts[-1]["at"]
    skipped = [note for note in field_.notes("skipped") if began < note["at"] < ended]
    left_out = sum(note["count"] for note in skipped)
    assert ticks[-1] - ticks[0] == len(ticks) - 1 + left_out
    late = [note["started_at"] - note["scheduled_at"] for note in starts]
    assert min(late) >= 0
    # What a busy machine adds comes and goes; a drift stays.
    drift = min(late[-RUNS // 3 :]) - min(late[: RUNS // 3])
    assert abs(drift) < 0.05, f"lateness moved by {drift:.3f} s in {RUNS} s"
