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


@pytest.mark.parametrize(
    ("trips", "length"),
    [
        ([], ms(50)),
        ([ms(60)], ms(90)),  # longer than the way took lately
        ([ms(100)], LONGEST),
        ([ms(3)] * 1000, ms(20)),  # the shortest
    ],
)
def test_a_lead_is_longer_than_the_last_trips_took_within_limits(
    trips: list[timedelta], length: timedelta
) -> None:
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
