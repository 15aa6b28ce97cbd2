"""Leads: how early what waits has to leave, to be there in time."""

from datetime import UTC, datetime, timedelta

import pytest

from scheduler.queues.timers import Lead

LONGEST = timedelta(milliseconds=100)
START = datetime(2026, 6, 1, tzinfo=UTC)


def ms(count: float) -> timedelta:
    return timedelta(milliseconds=count)


def learned(*trips: timedelta) -> Lead:
    """One after the other, a second apart."""
    lead = Lead(LONGEST)
    for seconds, trip in enumerate(trips):
        lead.learn(trip, START + timedelta(seconds=seconds))
    return lead


def test_at_first_it_is_half_of_the_longest() -> None:
    assert Lead(LONGEST).length == ms(50)


@pytest.mark.parametrize("trip", [ms(40), ms(60)])
def test_it_is_longer_than_the_way_took_lately(trip: timedelta) -> None:
    assert trip < learned(trip).length <= trip * 1.5


@pytest.mark.parametrize("trip", [ms(100), timedelta(hours=1)])
def test_it_is_never_longer_than_it_may_be(trip: timedelta) -> None:
    assert learned(trip).length == LONGEST


@pytest.mark.parametrize("trip", [ms(0), ms(-50), ms(3)])
def test_where_the_way_is_short_it_ends_as_the_shortest(trip: timedelta) -> None:
    assert learned(*[trip] * 1000).length == ms(20)


def test_what_took_long_is_forgotten_by_and_by_however_often_it_is_short() -> None:
    lead = learned(ms(60))
    lengths = list[timedelta]()
    for each in range(301):
        lead.learn(ms(1), START + timedelta(seconds=each / 10))
        lengths.append(lead.length)
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] == ms(90)
    assert ms(44) <= lengths[-1] <= ms(45)  # half a minute later


def test_a_clock_that_was_set_back_forgets_nothing() -> None:
    lead = learned(ms(60))
    lead.learn(ms(1), START - timedelta(hours=1))
    assert lead.length == ms(90)


def test_it_counts_in_whole_milliseconds() -> None:
    assert not learned(ms(33.3)).length % ms(1)


def test_there_may_be_none() -> None:
    lead = Lead(timedelta(0))
    lead.learn(ms(10), START)
    assert lead.length == timedelta(0)
