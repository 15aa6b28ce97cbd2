"""The register of a loop: which of two tokens stays in it, and what waits there."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta

import pytest

from scheduler.brokers.memory.server import MemoryServer
from scheduler.errors import QueueNotFound, Rejected, Unroutable
from scheduler.protocol.messages import Message
from scheduler.protocol.tokens import LoopId, State, Token
from scheduler.protocol.topology import Names, QueueType, routing_key, topology
from scheduler.queues.hatchery import LONGEST_WAIT, PATIENCE, Hatchery
from scheduler.timing.clock import LoopClock
from scheduler.timing.schedules import Every
from tests.faulty import Call, FaultyBroker
from tests.stage import START, hatchery_of, journal_of

NAMES = Names("test")
LOOP = LoopId("report")
SLOT = NAMES.hatchery(LOOP)
READY = NAMES.processor_queue(LOOP.task)
IN_A_MINUTE = START + timedelta(minutes=1)


def token(epoch: int = 5, seq: int = 0, attempt: int = 0, *, first: bool = False) -> Token:
    made = Token(LOOP, Every("1m"), IN_A_MINUTE, IN_A_MINUTE, epoch=epoch, seq=seq, attempt=attempt)
    return replace(made, first=first)


MINE = token(seq=3, attempt=1)
BEHIND = [
    token(seq=3),
    token(seq=2, attempt=9),
    token(seq=3, attempt=1, first=True),
    token(epoch=4, seq=9),
    replace(token(seq=2), state=State.PAUSED),
]
AHEAD = [
    token(seq=3, attempt=2),
    token(seq=4),
    token(epoch=6, first=True),
    replace(token(epoch=6, first=True), state=State.PAUSED),
]


@pytest.fixture
async def broker(clock: LoopClock, queue_type: QueueType) -> AsyncIterator[FaultyBroker]:
    async with FaultyBroker(MemoryServer(clock)) as broker:
        await broker.declare(topology("test", [LOOP.task], [LOOP], queue_type=queue_type))
        yield broker


@pytest.fixture
def hatchery(broker: FaultyBroker, clock: LoopClock) -> Hatchery:
    return hatchery_of(NAMES, broker, clock)


async def ready(broker: FaultyBroker) -> int:
    depth = await broker.depth(READY)
    assert depth is not None
    return depth.ready


async def test_a_token_that_was_put_waits(hatchery: Hatchery) -> None:
    assert await hatchery.put(MINE) is MINE
    for _ in range(3):
        assert await hatchery.look(LOOP) == MINE


@pytest.mark.parametrize("occupant", BEHIND)
async def test_what_is_behind_gives_way(hatchery: Hatchery, occupant: Token) -> None:
    await hatchery.put(occupant)
    assert await hatchery.put(MINE) is MINE
    assert await hatchery.clear(LOOP) == [MINE]


@pytest.mark.parametrize("occupant", AHEAD)
async def test_what_is_ahead_is_left_as_it_is(hatchery: Hatchery, occupant: Token) -> None:
    await hatchery.put(occupant)
    assert await hatchery.put(MINE) == occupant
    assert await hatchery.clear(LOOP) == [occupant]


async def test_the_same_token_is_there_once_however_often_it_is_put(hatchery: Hatchery) -> None:
    for _ in range(3):
        assert await hatchery.put(MINE) == MINE
    assert await hatchery.clear(LOOP) == [MINE]


async def test_what_is_left_keeps_its_time(broker: FaultyBroker, hatchery: Hatchery) -> None:
    await hatchery.put(AHEAD[0])
    await asyncio.sleep(40)
    await hatchery.put(MINE)
    await asyncio.sleep(19)
    assert await ready(broker) == 0
    await asyncio.sleep(2)
    assert await ready(broker) == 1


async def test_whoever_begins_an_epoch_puts_its_token_whatever_was_there(
    hatchery: Hatchery,
) -> None:
    for occupant in (*BEHIND, *AHEAD):
        await hatchery.clear(LOOP)
        await hatchery.put(occupant)
        await hatchery.put_first(MINE, at_once=False)
        assert await hatchery.clear(LOOP) == [MINE]


@pytest.mark.parametrize(
    ("at_once", "state", "after"),
    [
        (False, State.ARMED, 60.0),
        (True, State.ARMED, 0.0),
        (False, State.PAUSED, None),
        (True, State.PAUSED, None),
    ],
)
async def test_a_first_token_hatches_when_it_is_due_or_at_once_if_it_is_not_paused(
    broker: FaultyBroker, hatchery: Hatchery, at_once: bool, state: State, after: float | None
) -> None:
    await hatchery.put_first(replace(MINE, state=state), at_once=at_once)
    await asyncio.sleep(0.1)
    assert await ready(broker) == (after == 0)
    await asyncio.sleep(59)
    assert await ready(broker) == (after == 0)
    await asyncio.sleep(1)
    assert await ready(broker) == (after is not None)


@pytest.mark.parametrize(
    ("due_in", "wait"),
    [
        (timedelta(seconds=-5), timedelta(0)),
        (timedelta(seconds=5), timedelta(seconds=5)),
        (2 * LONGEST_WAIT, LONGEST_WAIT),
    ],
)
async def test_a_token_waits_no_less_and_no_longer_than_a_broker_takes(
    broker: FaultyBroker, hatchery: Hatchery, due_in: timedelta, wait: timedelta
) -> None:
    published = broker.on("publish")
    await hatchery.put(replace(MINE, due_at=START + due_in))
    assert [call.message.expiration for call in published.met] == [wait]


async def test_all_that_waits_is_taken_out(broker: FaultyBroker, hatchery: Hatchery) -> None:
    await hatchery.put(MINE)
    held = await hatchery.take(LOOP)
    assert held is not None
    await hatchery.put(AHEAD[0])
    await hatchery.leave(held)
    assert await hatchery.clear(LOOP) == [MINE, AHEAD[0]]
    assert await hatchery.clear(LOOP) == []
    assert await hatchery.put(MINE) is MINE


async def test_what_is_no_token_is_parked_and_out_of_the_way(
    broker: FaultyBroker, hatchery: Hatchery
) -> None:
    await broker.publish(Message(b"?"), exchange=NAMES.scheduler, routing_key=routing_key(LOOP))
    assert await hatchery.put(MINE) is MINE
    parked = await broker.get(NAMES.failed_queue(LOOP.task))
    assert parked is not None
    assert parked.message.body == b"?"


async def test_a_token_that_somebody_looks_at_is_found(hatchery: Hatchery) -> None:
    await hatchery.put(MINE)
    held = await hatchery.take(LOOP)
    assert held is not None
    finding = asyncio.create_task(hatchery.find(LOOP))
    await asyncio.sleep(0.1)
    await hatchery.leave(held)
    assert await finding == MINE


async def test_what_is_nowhere_is_not_found(hatchery: Hatchery) -> None:
    assert await hatchery.find(LOOP) is await hatchery.look(LOOP) is None


# A slot that refuses though nothing is in it, as that of a quorum queue does for a moment.


@pytest.mark.parametrize("first", [False, True])
async def test_a_slot_that_refuses_for_a_moment_is_asked_again(
    broker: FaultyBroker, hatchery: Hatchery, first: bool
) -> None:
    broker.on("publish", times=5).fails(Rejected())
    await (hatchery.put_first(MINE, at_once=False) if first else hatchery.put(MINE))
    assert await hatchery.look(LOOP) == MINE


async def test_a_slot_that_takes_it_the_second_time_is_not_looked_into(
    broker: FaultyBroker, hatchery: Hatchery
) -> None:
    broker.on("publish", times=1).fails(Rejected())
    await hatchery.put(MINE)
    assert [call.operation for call in broker.calls].count("get") == 0


@pytest.mark.parametrize("first", [False, True])
async def test_a_slot_that_keeps_refusing_is_told_of(
    broker: FaultyBroker, hatchery: Hatchery, clock: LoopClock, first: bool
) -> None:
    broker.on("publish").fails(Rejected())
    with pytest.raises(Rejected, match="takes no token, though none waits in it"):
        await (hatchery.put_first(MINE, at_once=False) if first else hatchery.put(MINE))
    assert PATIENCE <= clock.now() - START < PATIENCE + timedelta(seconds=1)


async def test_what_comes_into_the_slot_while_it_refuses_counts(
    broker: FaultyBroker, hatchery: Hatchery
) -> None:
    async def overtake(call: Call) -> None:
        if len(refusing.met) == 3:
            await refusing.cease()
            await hatchery.put(AHEAD[0])
        raise Rejected

    refusing = broker.on("publish").first(overtake)
    assert await hatchery.put(MINE) == AHEAD[0]


# A slot that is gone


async def test_without_its_slot_a_token_is_in_the_journal(
    broker: FaultyBroker, hatchery: Hatchery
) -> None:
    await broker.delete(SLOT)
    assert await hatchery.put(MINE) is MINE
    heard = await journal_of(NAMES, broker).heard([LOOP], since=None)
    assert heard[LOOP].last == MINE
    for looking in hatchery.look, hatchery.find, hatchery.clear:
        with pytest.raises(QueueNotFound):
            await looking(LOOP)


async def test_without_slot_and_journal_it_is_nowhere_and_that_is_told(
    broker: FaultyBroker, hatchery: Hatchery
) -> None:
    await broker.delete(SLOT)
    await broker.delete(NAMES.journal)
    for putting in hatchery.put(MINE), hatchery.put_first(MINE, at_once=False):
        with pytest.raises(Unroutable):
            await putting


# What was never used


class Woken(FaultyBroker):
    """Notes whom it was asked to wake."""

    def __init__(self, server: MemoryServer) -> None:
        super().__init__(server)
        self.woken: list[str] = []

    async def wake(self, queue: str) -> None:
        self.woken.append(queue)
        await super().wake(queue)


@pytest.mark.parametrize("is_new", [True, False])
async def test_a_slot_that_is_empty_is_woken_unless_nothing_was_ever_in_it(
    clock: LoopClock, *, is_new: bool
) -> None:
    async with Woken(MemoryServer(clock)) as broker:
        await broker.declare(topology("test", [LOOP.task], [LOOP]))
        hatchery = hatchery_of(NAMES, broker, clock)
        assert await hatchery.clear(LOOP, is_new=is_new) == []
        assert broker.woken == ([] if is_new else [SLOT])
        assert await hatchery.offer(MINE)
        assert await hatchery.clear(LOOP, is_new=is_new) == [MINE]
