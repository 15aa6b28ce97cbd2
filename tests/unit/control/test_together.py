"""What is asked for side by side is done at once, and everybody hears of their own."""

import asyncio
from collections.abc import Sequence

import pytest

from scheduler import Every
from scheduler.control.reports import Did, Report
from scheduler.control.together import Together
from scheduler.errors import AccessRefused, BrokerUnavailable, SchedulerError
from scheduler.protocol.tokens import LoopId
from scheduler.tasks.loops import Loop, absent
from scheduler.timing.clock import LoopClock

MOST = 20
TASK = absent("report")


@pytest.fixture(autouse=True)
def _virtual(clock: LoopClock) -> None:
    """In virtual time."""


def loop(key: str) -> Loop:
    return Loop(LoopId("report", key), TASK, Every("1m"), {})


class Desk:
    """Does things with loops, some of which it fails at, and notes which came together."""

    def __init__(self, takes: float = 1, **fails: Exception) -> None:
        self.together = Together(self._act, most=MOST)
        self.batches: list[list[str]] = []
        self._takes = takes
        self._fails = fails

    async def _act(self, loops: Sequence[Loop]) -> Sequence[Report]:
        keys = [each.id.key for each in loops]
        self.batches.append(keys)
        await asyncio.sleep(self._takes)
        for key in keys:
            if key in self._fails:
                raise self._fails[key]
        return [Report(each, Did.CREATED) for each in loops]

    async def do(self, *keys: str) -> list[str]:
        """Ask for all of them side by side; returns what each was told."""

        async def ask(key: str) -> str:
            try:
                report = await self.together.do(loop(key))
            except SchedulerError as error:
                return type(error).__name__
            assert report.loop.id.key == key
            return report.did

        return await asyncio.gather(*map(ask, keys))


async def test_who_is_alone_does_not_wait_for_others() -> None:
    desk = Desk()
    assert await desk.do("a") == ["created"]
    assert await desk.do("b") == ["created"]
    assert desk.batches == [["a"], ["b"]]


async def test_who_asks_while_somebody_is_at_it_is_served_with_all_others_who_do() -> None:
    desk = Desk()
    first = asyncio.create_task(desk.do("a"))
    await asyncio.sleep(0.5)
    rest = asyncio.create_task(desk.do("b", "c", "d"))
    assert (await first, await rest) == (["created"], ["created"] * 3)
    assert desk.batches == [["a"], ["b", "c", "d"]]
    assert asyncio.get_running_loop().time() == pytest.approx(2)


async def test_others_have_their_turn_after_so_many() -> None:
    desk, keys = Desk(), [f"{number:04}" for number in range(2 * MOST + 1)]
    assert await desk.do(*keys) == ["created"] * len(keys)
    assert [len(batch) for batch in desk.batches] == [MOST, MOST, 1]
    assert [key for batch in desk.batches for key in batch] == keys


async def test_what_is_asked_for_one_loop_is_done_one_after_the_other() -> None:
    desk = Desk()
    assert await desk.do("a", "a", "b", "a") == ["created"] * 4
    assert desk.batches == [["a", "b"], ["a"], ["a"]]


async def test_who_cannot_be_served_keeps_no_other_one_from_it() -> None:
    desk = Desk(bad=AccessRefused("No right to configure."))
    assert await desk.do("a", "bad", "b") == ["created", "AccessRefused", "created"]
    assert desk.batches == [["a", "bad", "b"], ["a"], ["bad"], ["b"]]
    assert await desk.do("c") == ["created"]


async def test_what_all_were_in_for_is_told_to_all() -> None:
    desk = Desk(bad=BrokerUnavailable("It went."))
    assert await desk.do("a", "bad", "b") == ["BrokerUnavailable"] * 3
    assert desk.batches == [["a", "bad", "b"]]


async def test_who_came_while_others_waited_in_vain_waits_for_itself() -> None:
    desk = Desk(bad=BrokerUnavailable("In vain."))
    in_vain = asyncio.create_task(desk.do("bad"))
    await asyncio.sleep(0.5)
    assert await desk.do("a") == ["created"]
    assert await in_vain == ["BrokerUnavailable"]


async def test_where_the_one_who_is_at_it_leaves_another_one_takes_over() -> None:
    desk = Desk()
    first, *others = (asyncio.create_task(desk.do(key)) for key in ("a", "b", "c"))
    await asyncio.sleep(0.5)
    first.cancel()
    assert await asyncio.gather(*others) == [["created"], ["created"]]
    assert desk.batches == [["a", "b", "c"], ["b", "c"]]


async def test_who_does_not_wait_any_more_is_not_served() -> None:
    desk = Desk()
    first, second = (asyncio.create_task(desk.do(key)) for key in ("a", "b"))
    await asyncio.sleep(0.5)
    third = asyncio.create_task(desk.do("c"))
    await asyncio.sleep(0.1)
    third.cancel()
    await asyncio.wait([first, second, third])
    assert desk.batches == [["a", "b"]]
