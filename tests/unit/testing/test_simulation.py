"""A schedule in moments."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from scheduler.errors import UsageError
from scheduler.events import RunStarted
from scheduler.testing import simulate
from tests.stage import new_app, of


async def nothing() -> None: ...


def test_a_year_that_begins_in_a_zone_is_as_long_as_any() -> None:
    app, berlin = new_app(), ZoneInfo("Europe/Berlin")
    app.periodic(cron="30 2 * * *", tz="Europe/Berlin", name="backup")(nothing)
    events = simulate(app, "365d", start=datetime(2026, 1, 1, tzinfo=berlin))
    runs = of(RunStarted, events)
    assert len(runs) == 365
    assert {run.started_at.astimezone(UTC) - run.scheduled_at for run in runs} == {timedelta(0)}


def test_a_start_is_aware() -> None:
    with pytest.raises(UsageError, match="^The start is an aware datetime, got 2026-01-01T00:00"):
        simulate(new_app(), "1d", start=datetime(2026, 1, 1))  # noqa: DTZ001
