"""How a token is put into the shared timers: which of them, and how long it is held after them."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta

import pytest

from scheduler.brokers.memory.broker import MemoryBroker
from scheduler.brokers.memory.server import MemoryServer
from scheduler.protocol.hatchery import LONGEST, Timer, route
from scheduler.protocol.messages import LEAD
from scheduler.protocol.tokens import LoopId, Token
from scheduler.protocol.topology import Names, topology
from scheduler.queues.timers import Lead, Timers, longest_leg
from scheduler.timing.durations import parse_duration
from scheduler.timing.moments import LoopClock, milliseconds_since_epoch
from scheduler.timing.schedules import Every, Once, Schedule
from tests.stage import START

NAMES = Names("test")
LOOP = LoopId("report", "berlin")


@pytest.fixture
async def broker(clock: LoopClock) -> AsyncIterator[MemoryBroker]:
    async with MemoryBroker(MemoryServer(clock)) as broker:
        yield broker


@pytest.fixture
def timers(broker: MemoryBroker, clock: LoopClock) -> Timers:
    return Timers(broker, NAMES, clock, Lead(timedelta(milliseconds=100)))  # 50 ms, to begin with


def token(due_in: timedelta) -> Token:
    return Token(LOOP, Every("1m"), START + due_in, START + due_in, epoch=5)


@pytest.mark.parametrize(
    ("due_in", "queue", "held_ms"),
    [
        ("1m", "hatchery.1m", 150),
        ("59.95s", "hatchery.1m", 100),
        ("59.9s", "hatchery.1m", 50),
        ("6h", "hatchery.1x6h", 150),
        ("200ms", "processor.report", 200),
        ("30ms", "processor.report", 30),  # less than the lead
        ("0s", "processor.report", None),
        ("2000d", "hatchery.6x192d", None),  # cut to what the timers can hold
    ],
)
async def test_a_token_is_put_into_the_timer_of_its_delay_and_held_for_the_rest(
    broker: MemoryBroker, timers: Timers, due_in: str, queue: str, held_ms: int | None
) -> None:
    await broker.declare(topology("test", ["report"]))
    await timers.put(token(parse_duration(due_in)))
    found = await broker.get(f"test.v1.{queue}")
    assert found is not None
    assert found.message.headers.get(LEAD) == held_ms


NOW = milliseconds_since_epoch(START)
MINUTE = timedelta(minutes=1)


@pytest.mark.parametrize(
    ("schedule", "epoch", "life", "leg"),
    [
        (Every("1m"), NOW, 1, LONGEST),
        (Once(START), NOW, NOW, LONGEST),  # it was never moved
        (Once(START), NOW - 600_000, 1, 10 * MINUTE),
        (Once(START), 2, 1, LONGEST),
        (Once(START), NOW + 5000, 1, MINUTE),  # by the clock of another
        (Once(START), 2**62, 1, MINUTE),
    ],
)
async def test_a_one_off_that_is_moved_often_waits_in_short_legs(
    broker: MemoryBroker, timers: Timers, schedule: Schedule, epoch: int, life: int, leg: timedelta
) -> None:
    moved = replace(token(timedelta(days=2000)), schedule=schedule, epoch=epoch, life=life)
    assert longest_leg(moved, START) == leg
    await broker.declare(topology("test", ["report"]))
    await timers.put(moved)
    first = next(Timer(unit, count) for unit, count in enumerate(route(leg).digits) if count)
    found = await broker.get(NAMES.timer(first))
    assert found is not None
    assert LEAD not in found.message.headers  # it comes too early, and is put again
