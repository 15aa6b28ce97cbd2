"""Where the token of a loop's current epoch is found, and when it counts as lost."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from scheduler import Scheduler
from scheduler.control.location import Place, Sighting
from scheduler.errors import Rejected, Unconfirmed
from scheduler.protocol.tokens import LoopId, Token
from scheduler.queues.hatchery import LOOK_PAUSE, LOOKS
from tests.faulty import FaultyBroker
from tests.stage import Stage, new_app

TASK = LoopId("task")


def looping(takes: float = 0) -> Scheduler:
    app = new_app(supervision_interval="1h")

    @app.periodic(every="1h")
    async def task() -> None:
        await asyncio.sleep(takes)

    return app


async def epoch_of(stage: Stage) -> int:
    return (await stage.listing()).known(TASK)


async def seen(stage: Stage, *, epoch: int | None = None) -> Sighting:
    """Where the token of the current epoch is seen, or that of this one."""
    current = await epoch_of(stage) if epoch is None else epoch
    return (await stage.locator.find({TASK: current}))[TASK]


async def begin_another_epoch(stage: Stage) -> Token:
    """Begin another epoch of a loop, and lose its token; returns the one of the epoch before."""
    before = await stage.token(TASK)
    await stage.verbs.pause(stage.app.loop("task"))
    await stage.verbs.resume(stage.app.loop("task"))
    await stage.lose(TASK)
    return before


Deed = Callable[[Stage], Awaitable[None]]


async def trigger(stage: Stage) -> None:
    await stage.verbs.trigger(stage.app.loop("task"))
    await asyncio.sleep(1)


async def wait(stage: Stage) -> None:
    await asyncio.sleep(3601)


async def nothing(stage: Stage) -> None: ...


async def lose(stage: Stage) -> None:
    stage.expects_none(TASK)
    await stage.lose(TASK)


async def delete_slot(stage: Stage) -> None:
    stage.expects_none(TASK)
    await stage.broker.delete(stage.app.names.hatchery(TASK))


async def delete_queue(stage: Stage) -> None:
    await stage.broker.delete(stage.app.names.processor_queue("task"))


@pytest.mark.parametrize(
    ("deed", "place"),
    [
        (nothing, Place.SLOT),
        (trigger, Place.READY),
        (lose, Place.NOWHERE),
        (delete_slot, Place.NO_SLOT),
        (delete_queue, Place.NO_TASK),
    ],
)
async def test_without_processors_a_token_is_in_its_slot_or_ready_or_nowhere(
    stage: Stage, deed: Deed, place: Place
) -> None:
    await stage.seed(looping())
    await deed(stage)
    found = await seen(stage)
    assert (found.place, found.processors) == (place, 0)
    assert (found.token is not None) is (place is Place.SLOT)
    assert found.is_lost is (place is Place.NOWHERE)
    assert found.is_unattended is (place is Place.READY)


async def test_a_token_that_is_run_is_in_a_hand(stage: Stage) -> None:
    await stage.seed(looping(takes=60))
    async with stage.supervised(), stage.supervised():
        await trigger(stage)
        assert await seen(stage) == Sighting(Place.HAND, processors=2)


@asynccontextmanager
async def mute(stage: Stage) -> AsyncGenerator[None]:
    """A processor at work that answers to no roll call."""
    broker = FaultyBroker(stage.server)
    broker.on("publish", key=stage.app.names.roll_call).fails(Unconfirmed())
    async with stage.supervised(over=broker):
        yield


async def test_what_is_nowhere_is_not_lost_while_not_all_have_answered(stage: Stage) -> None:
    await stage.seed(looping())
    async with stage.supervised(), mute(stage):
        await lose(stage)
        found = await seen(stage)
        assert (found.place, found.is_lost) == (Place.UNKNOWN, False)
    assert (await seen(stage)).is_lost


async def test_a_token_in_a_hand_is_found_though_not_all_answer(stage: Stage) -> None:
    await stage.seed(looping(takes=60))
    async with stage.supervised():
        await trigger(stage)
        async with mute(stage):
            assert (await seen(stage)).place is Place.HAND


async def test_a_slot_is_judged_by_its_head(stage: Stage) -> None:
    await stage.seed(looping())
    void = await begin_another_epoch(stage)
    assert await stage.hatchery.offer(void)
    assert (await seen(stage)).is_lost
    current = replace(void, epoch=await epoch_of(stage))
    await stage.crowd([current])  # behind that one: there it may wait for ever
    found = await seen(stage)
    assert (found.is_lost, found.token) == (True, None)


async def test_a_token_of_a_later_epoch_is_as_good(stage: Stage) -> None:
    await stage.seed(looping())
    token = await stage.token(TASK)
    found = await seen(stage, epoch=token.epoch - 1)
    assert (found.place, found.token) == (Place.SLOT, token)


async def test_a_hand_that_has_an_older_token_only_has_none(stage: Stage) -> None:
    await stage.seed(looping(takes=60))
    async with stage.supervised():
        await trigger(stage)
        assert (await seen(stage)).place is Place.HAND
        await stage.verbs.pause(stage.app.loop("task"))
        await lose(stage)
        assert (await seen(stage)).is_lost


async def test_a_token_that_somebody_holds_who_looks_at_it_is_seen_all_the_same(
    stage: Stage,
) -> None:
    await stage.seed(looping())
    occupant = await stage.hatchery.take(TASK)
    assert occupant is not None
    looking = asyncio.create_task(seen(stage))
    await asyncio.sleep((LOOKS - 2) * LOOK_PAUSE)
    await stage.hatchery.leave(occupant)
    assert (await looking).token == occupant.token


@pytest.mark.parametrize("deed", [trigger, wait])
async def test_a_hand_tells_that_its_slot_takes_nothing(stage: Stage, deed: Deed) -> None:
    await stage.seed(looping())
    await deed(stage)
    broker = FaultyBroker(stage.server)
    refusing = broker.on("publish", ".scheduler", key="loop.task").fails(Rejected())
    async with stage.supervised(over=broker):
        await asyncio.sleep(20)
        assert await seen(stage) == Sighting(Place.HAND, processors=1, refused=True)
        await refusing.cease()
        await asyncio.sleep(20)
        found = await seen(stage)
        assert (found.place, found.refused) == (Place.SLOT, False)
