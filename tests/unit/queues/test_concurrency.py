"""Doing something to each of many, a few at once, in virtual time."""

import asyncio

import pytest

from scheduler.queues.concurrency import Gathering, side_by_side
from tests.unit.queues.conftest import took

pytestmark = pytest.mark.usefixtures("clock")  # in virtual time


async def test_thirty_two_run_at_once_and_their_results_are_in_order() -> None:
    at_it, most = set[int](), 0

    async def act(number: int) -> str:
        nonlocal most
        at_it.add(number)
        most = max(most, len(at_it))
        await asyncio.sleep(80 - number)
        at_it.remove(number)
        return str(number)

    assert await side_by_side(act, range(80)) == [str(number) for number in range(80)]
    assert most == 32


async def test_the_error_of_one_is_raised_once_the_others_have_stopped() -> None:
    left_off, ended = list[int](), list[int]()

    async def act(number: int) -> None:
        if number == 1:
            await asyncio.sleep(1)
            raise ValueError("the first to fail")
        try:
            await asyncio.sleep(60)
            ended.append(number)
        finally:
            await asyncio.sleep(2)
            left_off.append(number)

    with pytest.raises(ValueError, match="the first to fail"):
        await side_by_side(act, range(3))
    assert (left_off, ended) == ([0, 2], [])
    assert took() == pytest.approx(3)


async def test_concurrent_requests_share_the_next_answer() -> None:
    batches, asked = list[list[str]](), list[asyncio.Task[str]]()

    async def serve(batch: list[str]) -> str:
        batches.append(batch)
        await asyncio.sleep(1)
        return "".join(batch)

    gathering = Gathering(serve)
    for names in ("a", "bcd"):
        asked += [asyncio.create_task(gathering.ask(name)) for name in names]
        await asyncio.sleep(0.5)
    asked[1].cancel()  # who leaves takes nobody along
    found = await asyncio.gather(*asked[:1], *asked[2:])
    assert (found, batches) == (["a", "bcd", "bcd"], [["a"], ["b", "c", "d"]])
    alone = asyncio.create_task(gathering.ask("e"))
    await asyncio.sleep(0)
    alone.cancel()
    await asyncio.wait([alone])
    assert await gathering.ask("f") == "f"
