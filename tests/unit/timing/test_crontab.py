from datetime import UTC, date, datetime

import pytest

from scheduler.errors import ScheduleError
from scheduler.timing.crontab import pattern_of


def wall(text: str) -> datetime:
    """A time on a wall clock, which belongs to no zone."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC).replace(tzinfo=None)


@pytest.mark.parametrize(
    ("expression", "start", "first"),
    [
        # A match is the first from itself on.
        ("30 9 * * * 15", "2026-06-15 09:30:15", "2026-06-15 09:30:15"),
        # The seconds, minutes and hours of an earlier one start over.
        ("* * * * * 10,20", "2026-06-15 09:30:11", "2026-06-15 09:30:20"),
        ("* * * * * 10,20", "2026-06-15 09:30:21", "2026-06-15 09:31:10"),
        ("5,10 * * * * 10,20", "2026-06-15 09:06:00", "2026-06-15 09:10:10"),
        ("5,10 * * * * 10,20", "2026-06-15 09:10:21", "2026-06-15 10:05:10"),
        ("5,10 8,9 * * * 10,20", "2026-06-15 08:10:21", "2026-06-15 09:05:10"),
        ("5,10 8,9 * * * 10,20", "2026-06-15 09:10:21", "2026-06-16 08:05:10"),
        ("5,10 8,9 * * * 10,20", "2026-06-15 07:59:59", "2026-06-15 08:05:10"),
        ("* * * * * *", "2026-06-15 23:59:59", "2026-06-15 23:59:59"),
        ("59 23 * * * 59", "2026-06-15 23:59:59", "2026-06-15 23:59:59"),
        ("0 0 * * *", "2026-12-31 00:00:01", "2027-01-01 00:00:00"),
        # Months are passed over as a whole, whatever day it is.
        ("0 0 1 3 *", "2026-03-01 00:00:01", "2027-03-01 00:00:00"),
        ("0 0 * 2 *", "2026-01-31 12:00:00", "2026-02-01 00:00:00"),
        ("0 0 * 1 *", "2026-12-01 12:00:00", "2027-01-01 00:00:00"),
        ("0 0 * 3 *", "2028-02-29 12:00:00", "2028-03-01 00:00:00"),
        ("0 0 * 5 *", "2026-04-30 12:00:00", "2026-05-01 00:00:00"),
    ],
)
def test_the_first_match_from_a_time_on(expression: str, start: str, first: str):
    assert pattern_of(expression).first_from(wall(start)) == wall(first)


JUNE_2026 = [date(2026, 6, day) for day in range(1, 31)]


@pytest.mark.parametrize(
    ("expression", "days"),
    [
        ("0 0 L 6 *", [30]),
        ("0 0 1,L * *", [1, 30]),
        ("0 0 * * 0", [7, 14, 21, 28]),
        ("0 0 * * 7", [7, 14, 21, 28]),
        ("0 0 * * MON#1", [1]),
        ("0 0 * * MON#5", [29]),
        ("0 0 * * TUE#5", [30]),
        ("0 0 * * SUN#1", [7]),
        ("0 0 * * WED#5", []),
        ("0 0 * * L1", [29]),
        ("0 0 * * L3", [24]),
        ("0 0 * * L0", [28]),
        ("0 0 15 * MON", [1, 8, 15, 22, 29]),
        ("0 0 16 * MON", [1, 8, 15, 16, 22, 29]),
        ("0 0 */15 * MON", [1]),
        ("0 0 1-7 * */2", [2, 4, 6, 7]),
        ("0 0 ? * TUE", [2, 9, 16, 23, 30]),
        ("0 0 * 5 *", []),
    ],
)
def test_the_days_of_june(expression: str, days: list[int]):
    pattern = pattern_of(expression)
    assert [day.day for day in JUNE_2026 if pattern.has_day(day)] == days


@pytest.mark.parametrize("day", [date(2026, 12, 31), date(2028, 2, 29), date(2026, 2, 28)])
def test_the_last_day_of_a_month_is_found(day: date):
    assert pattern_of("0 0 L * *").has_day(day)
    assert not pattern_of("0 0 L * *").has_day(day.replace(day=27))


@pytest.mark.parametrize(
    ("expression", "every"),
    [("0 * * * *", True), ("0 */1 * * *", True), ("0 0-22 * * *", False), ("0 9 * * *", False)],
)
def test_an_expression_may_match_in_every_hour(expression: str, every: bool):
    assert pattern_of(expression).every_hour is every


def test_an_expression_has_at_most_five_hundred_characters():
    longest = ",".join(["10", *["0"] * 245]) + " * * * *"
    assert len(longest) == 500
    assert pattern_of(longest).minutes == (0, 10)
    with pytest.raises(ScheduleError, match="cron: expected an expression"):
        pattern_of(f"{longest} ")


@pytest.mark.parametrize("expression", ["0 0 29 2 MON#5", "0 0 29 2 *", "0 0 * 2 TUE#5"])
def test_a_day_that_is_rare_is_no_day_that_never_comes(expression: str):
    assert pattern_of(expression).months == {2}
