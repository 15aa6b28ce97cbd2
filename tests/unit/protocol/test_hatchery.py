from datetime import timedelta

import pytest

from scheduler.errors import SettingsError, UsageError
from scheduler.protocol.hatchery import (
    LONGEST,
    SHORT_BY,
    UNITS,
    Timer,
    route,
    timers,
)
from scheduler.protocol.messages import LONGEST_LEAD_MS
from scheduler.protocol.topology import QueueType
from scheduler.settings import Settings
from scheduler.timing.durations import MILLISECOND, parse_duration
from scheduler.timing.moments import milliseconds
from tests.stage import hatched

MICROSECOND = timedelta(microseconds=1)


@pytest.mark.parametrize(
    ("delay", "key", "rest_ms"),
    [
        ("150ms", "0.0.0.0.0.0.0.0.0.0.0", 150),
        ("151ms", "0.0.0.0.0.0.0.0.0.0.1", 51),
        ("849ms", "0.0.0.0.0.0.0.0.0.0.8", 49),
        ("850ms", "0.0.0.0.0.0.0.0.0.1.0", 0),
        ("1s", "0.0.0.0.0.0.0.0.0.1.0", 150),
        ("59m59.9s", "0.0.0.0.0.1.0.0.0.0.0", 50),
        ("1h30m", "0.0.0.0.0.1.6.0.0.0.3", 0),
        ("32d", "0.1.0.0.0.0.0.0.0.0.0", 150),
        # Just too short for the timer of a minute, or of a day: each timer is short of its name.
        ("59.849s", "0.0.0.0.0.0.0.0.11.4.9", 249),
        ("23h59m59.849s", "0.0.0.0.3.5.11.4.11.4.9", 849),
    ],
)
def test_a_delay_takes_these_timers_and_leaves_this_rest(delay: str, key: str, rest_ms: int):
    way = route(parse_duration(delay))
    assert (way.key, way.rest) == (key, rest_ms * MILLISECOND)


@pytest.mark.parametrize(
    ("delay", "headers"),
    [
        ("0s", {}),
        ("1h", {"scheduler-at-192d": "1h"}),
        (
            "1h21.7s",
            {"scheduler-at-192d": "1h", "scheduler-at-5m": "4x5s", "scheduler-at-s": "2s"},
        ),
    ],
)
def test_a_route_names_the_timer_for_each_exchange_on_the_way(delay: str, headers: dict[str, str]):
    assert route(parse_duration(delay)).headers == headers


@pytest.mark.parametrize(
    "delay", [-MICROSECOND, LONGEST + MICROSECOND, timedelta.max, timedelta.min]
)
def test_delays_beyond_the_timers_are_refused(delay: timedelta):
    with pytest.raises(UsageError, match=r"from 0 to 1343 days, got .*send it from a loop"):
        route(delay)


def test_each_timer_has_its_own_name_and_wait():
    names = [timer.name for timer in timers()]
    waits = [timer.wait for timer in timers()]
    assert len(names) == len(set(names)) == len(set(waits)) == 68
    shown = [Timer(*at).name for at in [(1, 2), (3, 6), (6, 9), (10, 9)]]
    assert shown == ["2x32d", "6d", "9x5m", "9x100ms"]
    # No timer is called like one of the exchanges.
    assert not set(names) & {unit.name for unit in UNITS}


PERIODS = """
1s 2s 3s 5s 10s 15s 20s 30s 45s 1m 2m 5m 10m 15m 20m 30m 45m 1h 2h 3h 6h 12h 18h 1d 2d 3d 7d 14d
"""


@pytest.mark.parametrize("settling_and_lead_ms", [0, 20, 120, 150])
def test_a_round_period_is_one_hop(settling_and_lead_ms: int):
    shorter_by = settling_and_lead_ms * MILLISECOND
    for period in PERIODS.split():
        assert sum(map(bool, route(parse_duration(period) - shorter_by).digits)) == 1, period


def test_a_lead_may_be_as_long_as_the_longest_rest_and_the_longest_lead():
    # The longest cascade: a little too short for the timer of 14 days.
    longest = route(parse_duration("14d") - SHORT_BY - MILLISECOND).rest
    assert milliseconds(longest) == 1149
    longest_lead = 200 * MILLISECOND
    assert Settings(longest_lead=longest_lead)
    with pytest.raises(SettingsError):
        Settings(longest_lead=longest_lead + MILLISECOND)
    assert milliseconds(longest + longest_lead) <= LONGEST_LEAD_MS


def test_messages_of_one_delay_arrive_in_the_order_of_sending(queue_type: QueueType):
    delays = [timedelta(seconds=1) + n * MICROSECOND for n in range(1, 51)]
    arrived = hatched(delays, queue_type)
    assert [sent for sent, _ in arrived] == delays
    assert {after for _, after in arrived} == {Timer(9, 1).wait}
