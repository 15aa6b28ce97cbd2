from datetime import timedelta
from typing import Any

import pytest

from scheduler.errors import ScheduleError
from scheduler.timing.durations import LONGEST, format_duration, parse_duration, shown
from scheduler.timing.moments import milliseconds

WRITTEN = [
    ("0s", timedelta(0)),
    ("100ms", timedelta(milliseconds=100)),
    ("0.5ms", timedelta(microseconds=500)),
    ("999.999ms", timedelta(microseconds=999_999)),
    ("1s", timedelta(seconds=1)),
    ("30s", timedelta(seconds=30)),
    ("1.5s", timedelta(seconds=1, milliseconds=500)),
    ("1m", timedelta(minutes=1)),
    ("1h30m", timedelta(minutes=90)),
    ("1d", timedelta(days=1)),
    ("10d", timedelta(days=10)),
    ("2w", timedelta(weeks=2)),
    ("1d2h3m4.005s", timedelta(days=1, hours=2, minutes=3, seconds=4, milliseconds=5)),
]


@pytest.mark.parametrize(("text", "span"), WRITTEN)
def test_a_duration_is_read_as_it_is_written(text: str, span: timedelta):
    assert parse_duration(text) == span
    assert format_duration(span) == text


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("90s", timedelta(seconds=90)),
        ("36h", timedelta(hours=36)),
        ("1w3d", timedelta(days=10)),
        ("1s500ms", timedelta(seconds=1.5)),
        ("0h5m", timedelta(minutes=5)),
        ("007s", timedelta(seconds=7)),
    ],
)
def test_other_ways_to_write_it_are_understood(text: str, span: timedelta):
    assert parse_duration(text) == span


def test_a_timedelta_is_a_duration_already():
    assert parse_duration(timedelta(minutes=5)) == timedelta(minutes=5)


@pytest.mark.parametrize(
    "text",
    ["", " ", "s", "30", "1.s", ".5s", "-1s", "+1s", "30 s", "30S", "1y", "1m1h", "1s1s", "1e3s"]
    + ["30s ", "\u0663s", "1m\n"],
)
def test_anything_else_is_refused_and_the_legal_form_shown(text: str):
    with pytest.raises(ScheduleError, match=r'expected a number and a unit .* such as "30s"'):
        parse_duration(text)


@pytest.mark.parametrize("value", [30, 1.5, True, None, b"30s", ["30s"], [10**5000]])
def test_a_bare_number_or_another_type_is_refused(value: Any):
    with pytest.raises(ScheduleError, match="expected a number and a unit"):
        parse_duration(value)


def test_the_error_shows_what_was_got():
    with pytest.raises(ScheduleError, match="got: '5 minutes'"):
        parse_duration("5 minutes")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("x" * 58, f"'{'x' * 58}'"),
        ("x" * 59, f"'{'x' * 56}..."),
        (timedelta(minutes=5), "0:05:00"),
        ([10**5000], "list"),
    ],
)
def test_a_value_is_shown_in_sixty_characters(value: Any, text: str):
    assert shown(value) == text
    assert len(text) <= 60


@pytest.mark.parametrize(
    "value",
    [timedelta(seconds=-1), timedelta.max, "999999999999w", "36526d", LONGEST + timedelta(days=1)],
)
def test_a_duration_is_neither_negative_nor_over_a_hundred_years(value: Any):
    with pytest.raises(ScheduleError, match="expected a duration between 0s and 36525d"):
        parse_duration(value)


@pytest.mark.parametrize(
    ("span", "count"),
    [
        (timedelta(0), 0),
        (timedelta(microseconds=1), 1),
        (timedelta(milliseconds=1), 1),
        (timedelta(milliseconds=1, microseconds=1), 2),
        (timedelta(days=2), 172_800_000),
    ],
)
def test_milliseconds_are_rounded_up_so_that_nothing_is_early(span: timedelta, count: int):
    assert milliseconds(span) == count
