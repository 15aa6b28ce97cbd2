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
    did = [row["did"] for output in outputs for row in json.loads(output)["loops"]]
    assert did.count("created") == 5
    assert did.count("unchanged") == 95
    assert await field_.tokens(broker, 5) == {f"loop{number}": 1 for number in range(5)}
