"""Putting tokens into the shared timers, with a lead as long as the way takes."""

from dataclasses import replace
from datetime import timedelta

import pytest

from scheduler.protocol.hatchery import LONGEST, Timer, route
from scheduler.protocol.messages import LEAD
from scheduler.protocol.tokens import LoopId, Token
from scheduler.protocol.topology import topology
from scheduler.queues.timers import Lead, Timers, longest_leg
from scheduler.timing.durations import parse_duration
from scheduler.timing.moments import LoopClock, milliseconds_since_epoch
from scheduler.timing.schedules import Every, Once, Schedule
from tests.faulty import FaultyBroker
from tests.stage import START
from tests.unit.queues.conftest import NAMES

LOOP = LoopId("report", "berlin")
LONGEST_LEAD = timedelta(milliseconds=100)


@pytest.fixture
async def timers(broker: FaultyBroker, clock: LoopClock) -> Timers:
    await broker.declare(topology("test", ["report"]))
    return Timers(broker, NAMES, clock, Lead(LONGEST_LEAD))  # 50 ms, to begin with


def token(due_in: timedelta) -> Token:
    return Token(LOOP, Every("1m"), START + due_in, START + due_in, epoch=5)


@pytest.mark.parametrize(
    ("due_in", "queue", "held_ms"),
    [
        ("1m", "hatchery.1m", 150),
        ("59.9s", "hatchery.1m", 50),
        ("6h", "hatchery.1x6h", 150),
        ("200ms", "processor.report", 200),
        ("30ms", "processor.report", 30),  # less than the lead
        ("0s", "processor.report", None),
        ("2000d", "hatchery.6x192d", None),  # cut to what the timers can hold
    ],
)
async def test_a_token_is_put_into_the_timer_of_its_delay_and_held_for_the_rest(
    broker: FaultyBroker, timers: Timers, due_in: str, queue: str, held_ms: int | None
) -> None:
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
    broker: FaultyBroker, timers: Timers, schedule: Schedule, epoch: int, life: int, leg: timedelta
) -> None:
    moved = replace(token(timedelta(days=2000)), schedule=schedule, epoch=epoch, life=life)
    assert longest_leg(moved, START) == leg
    await timers.put(moved)
    first = next(Timer(unit, count) for unit, count in enumerate(route(leg).digits) if count)
    found = await broker.get(NAMES.timer(first))
    assert found is not None
    assert LEAD not in found.message.headers  # it comes too early, and is put again


def ms(count: float) -> timedelta:
    return timedelta(milliseconds=count)


def learned(*trips: timedelta) -> Lead:
    """One after the other, a second apart."""
    lead = Lead(LONGEST_LEAD)
    for seconds, trip in enumerate(trips):
        lead.learn(trip, START + timedelta(seconds=seconds))
    return lead


@pytest.mark.parametrize(
    ("trips", "length"),
    [
        ([], ms(50)),
        ([ms(60)], ms(90)),  # longer than the way took lately
        ([ms(100)], LONGEST_LEAD),
        ([ms(3)] * 1000, ms(20)),  # the shortest
    ],
)
def test_a_lead_exceeds_the_last_trips(trips: list[timedelta], length: timedelta) -> None:
    assert learned(*trips).length == length


def test_a_long_trip_is_forgotten_by_time_and_not_by_the_number_of_short_ones() -> None:
    lead = learned(ms(60))
    lengths = list[timedelta]()
    for each in range(301):
        lead.learn(ms(1), START + timedelta(seconds=each / 10))
        lengths.append(lead.length)
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] == ms(90)
    assert ms(44) <= lengths[-1] <= ms(45)  # half a minute later


def test_a_lead_stays_if_the_clock_is_set_back() -> None:
    lead = learned(ms(60))
    lead.learn(ms(1), START - timedelta(hours=1))
    assert lead.length == ms(90)
