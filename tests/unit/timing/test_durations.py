from datetime import timedelta
from typing import Any

import pytest

from scheduler.errors import ScheduleError
from scheduler.timing.durations import LONGEST, format_duration, parse_duration, shown


@pytest.mark.parametrize(
    ("text", "span", "written"),
    [
        ("0s", timedelta(0), "0s"),
        ("0.5ms", timedelta(microseconds=500), "0.5ms"),
        ("999.999ms", timedelta(microseconds=999_999), "999.999ms"),
        ("1.5s", timedelta(seconds=1, milliseconds=500), "1.5s"),
        ("1h30m", timedelta(minutes=90), "1h30m"),
        ("10d", timedelta(days=10), "10d"),
        ("2w", timedelta(weeks=2), "2w"),
        (
            "1d2h3m4.005s",
            timedelta(days=1, hours=2, minutes=3, seconds=4, milliseconds=5),
            "1d2h3m4.005s",
        ),
        ("90s", timedelta(seconds=90), "1m30s"),
        ("1w3d", timedelta(days=10), "10d"),
        ("1s500ms", timedelta(seconds=1.5), "1.5s"),
        ("0h5m", timedelta(minutes=5), "5m"),
        (timedelta(minutes=5), timedelta(minutes=5), "5m"),
    ],
)
def test_a_duration_is_read_and_written(text: str | timedelta, span: timedelta, written: str):
    assert parse_duration(text) == span
    assert format_duration(span) == written


@pytest.mark.parametrize(
    "value",
    ["", "3", "1.s", ".5s", "-1s", "30 s", "30S", "1y", "1m1h", "1s1s", "1e3s", "\u0663s", "1m\n"]
    + [30, True, None, b"30s", [10**5000]],
)
def test_anything_else_is_refused_and_the_legal_form_shown(value: Any):
    with pytest.raises(
        ScheduleError, match=r'expected a number and a unit .* such as "30s".*; got: '
    ):
        parse_duration(value)


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
    [timedelta(seconds=-1), "999999999999w", "36526d", LONGEST + timedelta(days=1)],
)
def test_a_duration_is_neither_negative_nor_over_a_hundred_years(value: Any):
    with pytest.raises(ScheduleError, match="expected a duration between 0s and 36525d"):
        parse_duration(value)
