"""Seeding: any number at once, again and again."""

import asyncio

from scheduler.brokers.contract import Broker
from tests.integration.conftest import Field


async def test_of_twenty_seeds_at_once_each_loop_gets_one_token(
    field_: Field, broker: Broker
) -> None:
    seeds = [field_.calling("seed", LOOPS="5", EVERY="1h") for _ in range(20)]
    # Not in this thread: the broker hangs up on who does not show that he lives.
    told = [await asyncio.to_thread(seed) for seed in seeds]
    did = [row["did"] for each in told for row in each["loops"]]
    assert did.count("created") == 5
    assert did.count("unchanged") == 95
    assert await field_.tokens(broker, 5) == {f"loop{number}": 1 for number in range(5)}
