from datetime import timedelta

import pytest

from scheduler.errors import UsageError
from scheduler.protocol.ladder import (
    LONGEST,
    STEP,
    UNITS,
    Rung,
    check_length,
    digits,
    entrance,
    key_of,
    rung_pattern,
    rungs,
    zero_pattern,
)
from scheduler.protocol.topology import QueueType
from scheduler.timing.durations import ZERO, parse_duration
from tests.stage import climbed

MICROSECOND = timedelta(microseconds=1)


@pytest.mark.parametrize(
    ("delay", "key", "enters_at"),
    [
        ("0s", "0.0.0.0.0.0.0.0.0.0.0.task.sms", None),
        ("100ms", "0.0.0.0.0.0.0.0.0.0.1.task.sms", "100ms"),
        ("1s", "0.0.0.0.0.0.0.0.0.1.0.task.sms", "s"),
        ("1.5s", "0.0.0.0.0.0.0.0.0.1.5.task.sms", "s"),
        ("30s", "0.0.0.0.0.0.0.0.2.0.0.task.sms", "15s"),
        ("5m", "0.0.0.0.0.0.0.5.0.0.0.task.sms", "m"),
        ("59m59.9s", "0.0.0.0.0.0.3.14.3.14.9.task.sms", "15m"),
        ("2h", "0.0.0.0.0.2.0.0.0.0.0.task.sms", "h"),
        ("1h30m", "0.0.0.0.0.1.2.0.0.0.0.task.sms", "h"),
        ("1d", "0.0.0.1.0.0.0.0.0.0.0.task.sms", "d"),
        ("31d", "0.0.4.3.0.0.0.0.0.0.0.task.sms", "7d"),
        ("32d", "0.1.0.0.0.0.0.0.0.0.0.task.sms", "32d"),
        ("1000d", "5.1.1.1.0.0.0.0.0.0.0.task.sms", "192d"),
        ("1343d23h59m59.9s", "6.5.4.3.3.5.3.14.3.14.9.task.sms", "192d"),
        # Rounded up to whole steps, and carried over to the next unit.
        ("1ms", "0.0.0.0.0.0.0.0.0.0.1.task.sms", "100ms"),
        ("101ms", "0.0.0.0.0.0.0.0.0.0.2.task.sms", "100ms"),
        ("901ms", "0.0.0.0.0.0.0.0.0.1.0.task.sms", "s"),
        ("59.901s", "0.0.0.0.0.0.0.1.0.0.0.task.sms", "m"),
        ("23h59m59.95s", "0.0.0.1.0.0.0.0.0.0.0.task.sms", "d"),
        ("31d23h59m59.999999s", "0.1.0.0.0.0.0.0.0.0.0.task.sms", "32d"),
    ],
)
def test_a_delay_is_written_like_this(delay: str, key: str, enters_at: str | None):
    span = parse_duration(delay)
    assert key_of(span, "task.sms") == key
    index = entrance(span)
    assert (None if index is None else UNITS[index].name) == enters_at


def test_the_longest_delay_is_more_than_three_years():
    assert timedelta(days=1343, hours=23, minutes=59, seconds=59, milliseconds=900) == LONGEST


@pytest.mark.parametrize(
    "delay", [-MICROSECOND, LONGEST + MICROSECOND, timedelta.max, timedelta.min]
)
def test_what_the_ladder_cannot_hold_is_refused(delay: timedelta):
    with pytest.raises(UsageError, match=r"from 0 to 1343 days, got .*send it from a loop"):
        digits(delay)


def test_a_delay_that_is_refused_is_shown_as_it_was_given():
    with pytest.raises(UsageError, match=r"got 5 years\. For later"):
        check_length(timedelta(days=5 * 365), given="5 years")
    with pytest.raises(UsageError, match=r"got 1825 days, 0:00:00\. For later"):
        check_length(timedelta(days=5 * 365))


def test_each_rung_has_a_name_and_a_time_of_its_own():
    names = [rung.name for rung in rungs()]
    times = [rung.time_to_live for rung in rungs()]
    assert len(names) == len(set(names)) == len(set(times)) == 72
    assert [Rung(*at).name for at in [(1, 2), (3, 6), (6, 3), (7, 5), (10, 9)]] == [
        "2x32d",
        "6d",
        "3x15m",
        "5m",
        "9x100ms",
    ]
    # No queue of the ladder is called like one of its exchanges.
    assert not set(names) & {unit.name for unit in UNITS}


def test_a_digit_leads_to_its_rung_and_a_zero_past_it():
    assert rung_pattern(Rung(0, 6)) == "6.#"
    assert rung_pattern(Rung(3, 5)) == "*.*.*.5.#"
    assert zero_pattern(5) == "*.*.*.*.*.0.#"


@pytest.mark.parametrize("unit", range(len(UNITS)))
def test_the_most_of_a_unit_leads_up_to_the_next_one(unit: int):
    longest = UNITS[unit - 1].length - STEP if unit else LONGEST
    counts = digits(longest)
    assert counts[unit] <= UNITS[unit].most
    assert all(count <= each.most for count, each in zip(counts, UNITS, strict=True))
    assert sum((n * each.length for n, each in zip(counts, UNITS, strict=True)), ZERO) == longest


@pytest.mark.parametrize(
    ("hops", "delays"),
    [
        (1, "1s 2s 3s 5s 10s 15s 30s 45s 1m 2m 5m 10m 15m 30m 45m 1h 2h 3h 6h 12h 18h 1d 2d 3d 7d"),
        (2, "20s 25s 40s 50s 1m30s 2m30s 20m 25m 40m 1h30m 4h30m 8h 36h 10d 30d 60d"),
    ],
)
def test_the_delays_that_people_write_are_so_many_hops(hops: int, delays: str):
    counted = [sum(map(bool, digits(parse_duration(delay)))) for delay in delays.split()]
    assert counted == [hops] * len(counted)


def spans(*texts: str) -> list[timedelta]:
    return list(map(parse_duration, texts))


def test_a_short_delay_does_not_wait_for_a_long_one_that_was_sent_before(queue_type: QueueType):
    delays = spans("5m", "1s", "1000d", "100ms", "0s", "59.9s")
    assert climbed(delays, queue_type) == [(delay, delay) for delay in sorted(delays)]


def test_delays_through_the_same_rung_are_each_as_long_as_they_should_be(queue_type: QueueType):
    delays = spans("5m", "1h5m", "5m2s", "1d5m", "5.1s", "2h5m2.1s")
    assert climbed(delays, queue_type) == [(delay, delay) for delay in sorted(delays)]


def test_messages_of_one_delay_arrive_in_the_order_in_which_they_were_sent(queue_type: QueueType):
    # All of them leave a step before the last whole one, and are told apart by what they were.
    delays = [timedelta(seconds=1) + n * MICROSECOND for n in range(1, 51)]
    arrived = climbed(delays, queue_type)
    assert [sent for sent, _ in arrived] == delays
    assert {after for _, after in arrived} == {timedelta(seconds=1) - STEP}


def test_a_whole_delay_takes_no_further_hop_to_come_early(queue_type: QueueType):
    for delay in timedelta(minutes=5), STEP:
        assert climbed([delay], queue_type) == [(delay, delay)]


def test_a_delay_that_is_shorter_than_the_way_through_a_timer_takes_goes_straight(
    queue_type: QueueType,
):
    for delay in 2 * STEP - MICROSECOND, STEP + MICROSECOND, MICROSECOND:
        assert climbed([delay], queue_type) == [(delay, timedelta(0))]
