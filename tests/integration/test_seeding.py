"""Seeding: any number at once, again and again."""

import asyncio
import json

import pytest

from scheduler.brokers.contract import Broker
from tests.integration.conftest import Field

LOOPS = {"LOOPS": "5", "EVERY": "1h"}


@pytest.mark.timeout(120)
async def test_of_twenty_seeds_at_once_each_loop_gets_one_token(
    field_: Field, broker: Broker
) -> None:
    seeds = [field_.start("seed", "--json", **LOOPS) for _ in range(20)]
    # Not in this thread: the broker hangs up on who does not show that he lives.
    outputs = [await asyncio.to_thread(field_.output_of, seed) for seed in seeds]
    assert [seed.returncode for seed in seeds] == [0] * 20, outputs
    did = [row["did"] for output in outputs for row in json.loads(output)]
    assert did.count("created") == 5
    assert did.count("unchanged") == 95
    assert await field_.tokens(broker, 5) == {f"loop{number}": 1 for number in range(5)}


async def test_a_seed_leaves_a_running_wait_alone(field_: Field, broker: Broker) -> None:
    first = field_.call("seed", **LOOPS)
    again = field_.call("seed", **LOOPS)
    assert {row["did"] for row in again} == {"unchanged"}
    to_the_millisecond = len("2026-11-21T12:05:39.797")
    assert [row["due_at"][:to_the_millisecond] for row in again] == [
        row["due_at"][:to_the_millisecond] for row in first
    ]


async def test_a_changed_period_takes_effect_at_the_next_seed_without_a_new_queue(
    field_: Field, broker: Broker
) -> None:
    field_.call("seed", **LOOPS)
    changed = LOOPS | {"EVERY": "300ms"}
    assert {row["did"] for row in field_.call("seed", **changed)} == {"rescheduled"}
    field_.start("run", **changed)
    await field_.until(lambda: len(field_.notes("end")) >= 15)
    field_.stop()
    assert await field_.tokens(broker, 5) == {f"loop{number}": 1 for number in range(5)}


@pytest.mark.timeout(120)
async def test_a_seed_during_a_run_starts_no_second_chain(field_: Field, broker: Broker) -> None:
    slow = {"TAKES": "4", "EVERY": "200ms"}
    field_.call("seed", **slow)
    field_.start("run", **slow)
    await field_.until(lambda: len(field_.notes("start")) > len(field_.notes("end")))
    (report,) = field_.call("seed", **slow)
    assert report["did"] == "unchanged"
    seqs = len(field_.notes("end"))
    await field_.until(lambda: len(field_.notes("end")) >= seqs + 3)
    field_.stop()
    started = [note["seq"] for note in field_.notes("start")]
    assert started == list(range(len(started)))
    assert await field_.tokens(broker, 1) == {"loop0": 1}


async def test_a_changed_period_reaches_a_token_that_waits_for_a_processor(
    field_: Field, broker: Broker
) -> None:
    field_.call("seed", EVERY="100ms")
    await field_.until(lambda: field_.call("status", EVERY="100ms")["loops"][0]["where"] == "ready")
    (report,) = field_.call("seed", EVERY="250ms")
    assert report["did"] == "rescheduled"
    (report,) = field_.call("seed", EVERY="250ms")
    assert report["did"] == "unchanged"
    field_.start("run", EVERY="250ms")
    await field_.until(lambda: len(field_.notes("start")) > 2)
    field_.stop()
    assert [note["seq"] for note in field_.notes("start")][:3] == [0, 1, 2]
    assert await field_.tokens(broker, 1) == {"loop0": 1}
