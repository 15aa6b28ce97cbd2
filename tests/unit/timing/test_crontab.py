from datetime import date

import pytest

from scheduler.errors import ScheduleError
from scheduler.timing.crontab import in_words, pattern_of, seconds_first

JUNE_2026 = [date(2026, 6, day) for day in range(1, 31)]


@pytest.mark.parametrize(
    ("expression", "days"),
    [
        ("0 0 1,L * *", [1, 30]),
        ("0 0 * * MON#1", [1]),
        ("0 0 * * TUE#5", [30]),
        ("0 0 * * SUN#1", [7]),
        ("0 0 * * WED#5", []),
        ("0 0 * * L3", [24]),
        ("0 0 * * L0", [28]),
        ("0 0 */15 * MON", [1]),
        ("0 0 1-7 * */2", [2, 4, 6, 7]),
        ("0 0 ? * TUE", [2, 9, 16, 23, 30]),
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


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("0 9 * * MON-FRI", "at 09:00, Monday to Friday"),
        ("30 9,17 * * MON,THU", "at 09:30 and 17:30, on Monday and Thursday"),
        ("0 9 * * *", "at 09:00 every day"),
        ("30 9 * * * 15", "at 09:30:15 every day"),
        ("@hourly", "every hour"),
        ("@yearly", "at 00:00, on day 1 of January"),
        ("* * * * *", "every minute"),
        ("*/10 * * * *", "every 10 minutes"),
        ("7,19 * * * *", "at minutes 7 and 19 of every hour"),
        ("*/7 * * * *", "at minutes 0, 7 ... 56 of every hour"),
        ("5 */2 * * *", "at minute 5 of every 2nd hour"),
        ("* 9 * * *", "every minute of the hour 9 every day"),
        ("*/15 9-17 * * MON-FRI", "every 15 minutes from 09:00 to 17:59, Monday to Friday"),
        ("0 9-17 * * *", "every hour from 09:00 to 17:00 every day"),
        ("0 1,2,3,7,8 * * *", "at 01:00, 02:00, 03:00, 07:00 and 08:00 every day"),
        ("* * * * * */10", "every 10 seconds"),
        ("*/10 * * * * *", "every second of every 10th minute"),
        ("*/3 * * * * 5,7", "at seconds 5 and 7 of every 3rd minute"),
        ("* * * * * 5", "at second 5 of every minute"),
        ("0 0 9 * * *", "every second of the minute 00:00, on day 9 of the month"),
        ("0 */5 * * * *", "every second of minute 0 of the hours 0, 5, 10, 15 and 20 every day"),
        ("0 0 1,L * *", "at 00:00, on day 1 and the last day of the month"),
        ("0 0 15 * MON", "at 00:00, on day 15 of the month and also on Monday"),
        ("0 0 15 * MON-FRI", "at 00:00, on day 15 of the month and also Monday to Friday"),
        ("0 0 */2 * MON", "at 00:00, on days 1, 3 ... 31 of the month if that is Monday"),
        # Either suffices, and one of them is any day.
        ("0 0 15 * 0-6", "at 00:00 every day"),
        ("0 0 1-31 * MON", "at 00:00 every day"),
        ("0 12 * 6-8 *", "at 12:00, every day in June to August"),
        ("0 12 * 1,6 MON", "at 12:00, on Monday in January and June"),
        ("0 0 * * L5", "at 00:00, on the last Friday"),
        ("0 0 * * FRI,L5", "at 00:00, on Friday"),
        ("0 0 * DEC-FEB/2 *", "at 00:00, every day in February and December"),
        ("0 0 25-5/3 * *", "at 00:00, on days 3, 25, 28 and 31 of the month"),
        ("0 9 * * SUN,SAT", "at 09:00, on Saturday and Sunday"),
    ],
)
def test_an_expression_is_described_in_words(expression: str, words: str):
    assert in_words(expression) == words


@pytest.mark.parametrize(
    ("expression", "meant"),
    [
        ("0 0 9 * * *", "0 9 * * *"),
        ("15 0 9 * * *", "0 9 * * * 15"),
        ("*/10 * * * * *", "* * * * * */10"),
        ("0 */5 * * * *", "*/5 * * * *"),
        ("0 0 9 * * 1-5", "0 9 * * 1-5"),
        # Nothing speaks for it, or it would make no sense.
        ("0 9 * * *", None),
        ("* * * * * *", None),
        ("* * * * * */10", None),
        ("30 9 * * * 15", None),
        ("30 9 * * * 0-59", None),
        ("0 9 31 12 * *", None),
    ],
)
def test_a_leading_field_of_seconds_is_detected(expression: str, meant: str | None):
    assert seconds_first(expression) == meant
