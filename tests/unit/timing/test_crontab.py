from datetime import date

import pytest

from scheduler.errors import ScheduleError
from scheduler.timing.crontab import pattern_of

JUNE_2026 = [date(2026, 6, day) for day in range(1, 31)]


@pytest.mark.parametrize(
    ("expression", "days"),
    [
        ("0 0 1,L * *", [1, 30]),
        ("0 0 * * 0", [7, 14, 21, 28]),
        ("0 0 * * 7", [7, 14, 21, 28]),
        ("0 0 * * MON#1", [1]),
        ("0 0 * * TUE#5", [30]),
        ("0 0 * * SUN#1", [7]),
        ("0 0 * * WED#5", []),
        ("0 0 * * L3", [24]),
        ("0 0 * * L0", [28]),
        ("0 0 16 * MON", [1, 8, 15, 16, 22, 29]),
        ("0 0 */15 * MON", [1]),
        ("0 0 1-7 * */2", [2, 4, 6, 7]),
        ("0 0 ? * TUE", [2, 9, 16, 23, 30]),
        ("0 0 * 5 *", []),
    ],
)
def test_crontab_fields_select_days_of_june(expression: str, days: list[int]):
    pattern = pattern_of(expression)
    assert [day.day for day in JUNE_2026 if pattern.has_day(day)] == days


@pytest.mark.parametrize("day", [date(2026, 12, 31), date(2028, 2, 29)])
def test_the_last_day_of_a_month_is_found(day: date):
    assert pattern_of("0 0 L * *").has_day(day)
    assert not pattern_of("0 0 L * *").has_day(day.replace(day=27))


def test_an_expression_has_at_most_five_hundred_characters():
    longest = ",".join(["10", *["0"] * 245]) + " * * * *"
    assert len(longest) == 500
    assert pattern_of(longest).minutes == (0, 10)
    with pytest.raises(ScheduleError, match="cron: expected an expression"):
        pattern_of(f"{longest} ")


@pytest.mark.parametrize("expression", ["0 0 29 2 MON#5", "0 0 * 2 TUE#5"])
def test_a_rare_day_is_found(expression: str):
    assert pattern_of(expression).months == {2}
