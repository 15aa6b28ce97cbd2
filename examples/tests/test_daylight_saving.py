"""A year of a schedule, day by day, as the clocks on the wall of a zone show it."""

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from scheduler import Scheduler
from scheduler.testing import Kit

BERLIN = ZoneInfo("Europe/Berlin")
app = Scheduler("reports")


@app.periodic(cron="30 2 * * *", tz="Europe/Berlin")
async def backup() -> None: ...


@app.periodic(cron="0 9 * * MON-FRI", tz="Europe/Berlin")
async def report() -> None: ...


@pytest.mark.scheduler_kit(start=datetime(2026, 1, 1, tzinfo=BERLIN))
async def test_a_year_of_nights_and_working_days(scheduler_kit: Kit) -> None:
    await scheduler_kit.advance_to(datetime(2027, 1, 1, tzinfo=BERLIN))

    nights = [run.started_at.astimezone(BERLIN) for run in scheduler_kit.runs.of(backup)]
    assert len({night.date() for night in nights}) == len(nights) == 365
    # On 29 March there is no half past two: it ran at three, as soon as that time was over. On
    # 25 October there are two, and it ran at the first.
    odd = [night for night in nights if (night.hour, night.minute) != (2, 30)]
    assert odd == [datetime(2026, 3, 29, 3, tzinfo=BERLIN)]
    assert [night.fold for night in nights if (night.month, night.day) == (10, 25)] == [0]

    mornings = [run.started_at.astimezone(BERLIN) for run in scheduler_kit.runs.of(report)]
    assert {(morning.hour, morning.minute) for morning in mornings} == {(9, 0)}
    assert {morning.isoweekday() for morning in mornings} == {1, 2, 3, 4, 5}
