"""Cron fields of others: the numbers that they stand for, and the moments that they mean.

Those of Celery are what Celery 5.6.3 says; those of cron and Kubernetes are worked out by hand.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.errors import ScheduleError
from scheduler.importing.calendars import (
    COLUMNS,
    DAY,
    HOUR,
    MINUTE,
    WEEKDAY,
    Calendar,
    Column,
    Dialect,
)
from scheduler.importing.celery import read_celery
from scheduler.importing.crontab import read_cronjobs, read_crontab
from scheduler.importing.writing import Found, ImportedJob
from scheduler.timing.crontab import pattern_of
from scheduler.timing.schedules import Cron

SETS = st.tuples(*(st.frozensets(st.integers(each.low, each.high), min_size=1) for each in COLUMNS))


# Each crontab of Celery's with its zone, a start, and the next moments at which Celery runs it. In
# zones without summer time, `test_celery_fuzz.py` asks Celery itself.
RUNS = """
crontab(minute=15, hour=6, day_of_month='1-7', day_of_week='monday')
    Europe/Berlin 2026-01-01T00:00 2026-01-05T05:15 2026-02-02T05:15
    2026-03-02T05:15 2026-04-06T04:15 2026-05-04T04:15 2026-06-01T04:15
crontab(minute='*/20', hour='22-4/2', month_of_year='11-2')
    Europe/Berlin 2026-02-28T20:00 2026-02-28T21:00 2026-02-28T21:20
    2026-02-28T21:40 2026-10-31T23:00 2026-10-31T23:20 2026-10-31T23:40
crontab(minute=30, hour=2)
    Europe/Berlin 2026-10-24T00:00 2026-10-24T00:30 2026-10-25T00:30
    2026-10-26T01:30 2026-10-27T01:30 2026-10-28T01:30 2026-10-29T01:30
crontab(minute=0)
    Europe/Berlin 2026-03-28T22:30 2026-03-28T23:00 2026-03-29T00:00
    2026-03-29T01:00 2026-03-29T02:00 2026-03-29T03:00 2026-03-29T04:00
"""


def next_runs(job: ImportedJob, start: str, count: int) -> list[str]:
    """When it runs, in UTC."""
    assert isinstance(job.schedule, Cron)
    moment = datetime.fromisoformat(start).replace(tzinfo=UTC)
    found: list[str] = []
    while len(found) < count:
        moment = job.schedule.next_after(moment)
        found.append(moment.isoformat(timespec="minutes").removesuffix("+00:00"))
    return found


@pytest.mark.parametrize("runs", re.split(r"\n(?=\w)", RUNS.strip()))
def test_a_crontab_of_celery_runs_when_celery_runs_it(runs: str) -> None:
    crontab, _, rest = runs.partition("\n")
    tz, start, *moments = rest.split()
    text = f"timezone = {tz!r}\nbeat_schedule = {{'x': {{'task': 'a.b', 'schedule': {crontab}}}}}"
    (job,) = read_celery({"beat.py": text}).jobs
    assert next_runs(job, start, len(moments)) == moments


def of_kubernetes(when: str) -> Found:
    container = "{command: [x]}"
    spec = f"jobTemplate: {{spec: {{template: {{spec: {{containers: [{container}]}}}}}}}}"
    return read_cronjobs(f"kind: CronJob\nspec:\n  schedule: '{when}'\n  {spec}\n", "jobs.yaml")


def of_cron(when: str) -> Found:
    return read_crontab(f"{when} x", "crontab")


@pytest.mark.parametrize(
    ("read", "when", "start", "moments"),
    [
        # Either suffices: Fridays, and the 13th.
        (of_cron, "0 9 13 * fri", "2026-01-08T12", ["2026-01-09", "2026-01-13", "2026-01-16"]),
        (of_kubernetes, "0 9 13 * fri", "2026-01-08T12", ["2026-01-09", "2026-01-13"]),
        # One begins with a star, so both have to match: Mondays of odd days.
        (of_cron, "0 9 */2 * mon", "2026-01-01", ["2026-01-05", "2026-01-19", "2026-02-09"]),
        # In Kubernetes, a step does not leave a field open: either suffices.
        (of_kubernetes, "0 9 */10 * mon", "2026-01-01T10", ["2026-01-05", "2026-01-11"]),
        (of_kubernetes, "0 9 ? * 1/2", "2026-01-01T10", ["2026-01-02", "2026-01-05"]),
        (of_kubernetes, "0 9 30/1 * ?", "2026-01-01T10", ["2026-01-30", "2026-01-31"]),
        (of_cron, "0 9 1 * */3", "2026-01-01", ["2026-02-01", "2026-03-01", "2026-04-01"]),
        (of_cron, "0 9 31 * *", "2026-01-31T10", ["2026-03-31", "2026-05-31", "2026-07-31"]),
        (of_cron, "0 9 * 2 7", "2026-02-20", ["2026-02-22", "2027-02-07", "2027-02-14"]),
        (of_cron, "0 9 29 2 *", "2026-01-01", ["2028-02-29", "2032-02-29", "2036-02-29"]),
    ],
)
def test_a_job_runs_when_cron_or_kubernetes_runs_it(
    read: Callable[[str], Found], when: str, start: str, moments: list[str]
) -> None:
    (job,) = read(when).jobs
    assert next_runs(job, start, len(moments)) == [f"{each}T09:00" for each in moments]


@given(SETS, st.booleans())
def test_an_expression_is_equivalent_or_refused(
    sets: tuple[frozenset[int], ...], both: bool
) -> None:
    calendar = Calendar(*sets, both=both)
    if calendar.days <= {30, 31} and calendar.months <= {2}:
        return  # there may be no such day
    try:
        pattern = pattern_of(calendar.expression("none"))
    except ScheduleError:
        assert both
        assert calendar.days != DAY.all
        assert calendar.weekdays != WEEKDAY.all
        return
    assert (frozenset(pattern.minutes), frozenset(pattern.hours)) == sets[:2]
    for number in range(366 * 5):
        day = datetime(2026, 1, 1, tzinfo=UTC).date() + timedelta(days=number)
        weekday = day.isoweekday() % 7
        of_month, of_week = day.day in calendar.days, weekday in calendar.weekdays
        wanted = of_month and of_week if both else of_month or of_week
        assert pattern.has_day(day) == (wanted and day.month in calendar.months)


EVERY = Dialect(seven=True, wraps=True, open_steps=True, long_names=True, question=True)


def test_fields_of_each_dialect_are_read() -> None:
    assert EVERY.read(WEEKDAY, "friday-7") == {5, 6, 0}
    assert EVERY.read(HOUR, "22-4/2") == {22, 0, 2, 4}
    assert EVERY.read(MINUTE, "50/5,1") == {1, 50, 55}
    assert EVERY.read(DAY, "?") == DAY.all
    with pytest.raises(ScheduleError, match="day of month field is not understood"):
        Dialect().read(DAY, "?")


@pytest.mark.parametrize(
    "text", ["", "a", "1-", "-1", "*/0", "1-2-3", "1//2", "99", "1,", "*-3", "²"]
)
@pytest.mark.parametrize("column", COLUMNS)
def test_an_invalid_field_is_refused(column: Column, text: str) -> None:
    with pytest.raises(ScheduleError, match=f"the {column.name} field is not understood"):
        EVERY.read(column, text)
