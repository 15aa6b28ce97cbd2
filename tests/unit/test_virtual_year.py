"""A year of loops on the virtual clock, through the whole of the machinery."""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from scheduler import Context, Scheduler, Settings
from scheduler.events import RunStarted, TicksSkipped
from scheduler.testing import simulate

ZONES = ("Europe/Berlin", "Australia/Lord_Howe")
START = datetime(2026, 1, 1, tzinfo=UTC)


def half_past_two(zone: ZoneInfo, start: datetime, days: int) -> list[datetime]:
    """Every 02:30 on the clocks of a zone; where there is none, the first instant after the gap.

    Found by walking through every minute between two and four, which knows of no rule but clocks.
    """
    found: list[datetime] = []
    day = start.astimezone(zone).date()
    while len(found) < days + 2:
        minutes = (
            datetime(day.year, day.month, day.day, 1, 30, tzinfo=zone).astimezone(UTC)
            + timedelta(minutes=minute)
            for minute in range(180)
        )
        reached = (
            minute
            for minute in minutes
            if (local := minute.astimezone(zone)).date() == day
            and (local.hour, local.minute) >= (2, 30)
        )
        found.append(next(reached))
        day += timedelta(days=1)
    return [tick for tick in found if start < tick <= start + timedelta(days=days)]


def year_of(zone: str) -> tuple[list[datetime], float]:
    app = Scheduler("year", Settings())
    ticks: list[datetime] = []

    @app.periodic(cron="30 2 * * *", tz=zone)
    async def report(ctx: Context) -> None:
        ticks.append(ctx.scheduled_at)

    began = time.perf_counter()
    simulate(app, "365d", start=START)
    return ticks, time.perf_counter() - began


def test_a_year_of_a_daily_loop_is_the_year_of_the_clocks_on_the_wall() -> None:
    took = 0.0
    for zone in ZONES:
        ticks, seconds = year_of(zone)
        took += seconds
        assert ticks == half_past_two(ZoneInfo(zone), START, 365), zone
        assert len(ticks) == 365
    # Generous on a busy machine: the benchmark has the figure.
    assert took < 20


@pytest.mark.parametrize("zone", ZONES)
def test_a_year_of_an_hourly_loop_runs_once_in_each_real_hour(zone: str) -> None:
    app = Scheduler("hours", Settings())
    ticks: list[datetime] = []

    @app.periodic(cron="0 * * * *", tz=zone)
    async def hourly(ctx: Context) -> None:
        ticks.append(ctx.scheduled_at)

    simulate(app, "60d", start=datetime(2026, 3, 1, tzinfo=UTC))
    walked = (datetime(2026, 3, 1, tzinfo=UTC) + timedelta(minutes=m) for m in range(1, 86400))
    assert ticks == [m for m in walked if m.astimezone(ZoneInfo(zone)).minute == 0]


def test_a_fixed_rate_does_not_drift_in_ten_minutes_of_runs_that_take_their_time() -> None:
    app = Scheduler("rate", Settings())
    started: list[tuple[datetime, datetime]] = []

    @app.periodic(every="1s", mode="fixed_rate")
    async def beat(ctx: Context) -> None:
        started.append((ctx.scheduled_at, ctx.started_at))
        await asyncio.sleep(0.001 * (ctx.seq % 900))

    events = simulate(app, "10m500ms", start=START)
    assert [tick for tick, _ in started] == [START + timedelta(seconds=s) for s in range(1, 601)]
    assert max(at - tick for tick, at in started) < timedelta(milliseconds=2)
    assert not [event for event in events if isinstance(event, TicksSkipped)]
    assert len([event for event in events if isinstance(event, RunStarted)]) == 600
