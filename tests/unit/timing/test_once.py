"""The schedule of a named one-off."""

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from scheduler.errors import ScheduleError
from scheduler.timing.schedules import (
    Admission,
    Once,
    Plan,
    admit,
    describe,
    from_wire,
    jittered,
    plan_next,
    to_wire,
)

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def test_a_one_off_is_rounded_up_so_that_it_is_never_early() -> None:
    assert Once(NOON + timedelta(microseconds=1)).at == NOON + timedelta(milliseconds=1)
    assert Once(NOON.astimezone(ZoneInfo("Asia/Tokyo"))) == Once(NOON)
    assert from_wire(to_wire(kept := Once(NOON, HOUR / 7))) == kept
    assert describe(Once(NOON)) == "once at 2026-06-01 12:00:00+00:00"


@pytest.mark.parametrize(
    "moment", [NOON.replace(tzinfo=None), NOON.replace(year=1969), NOON.replace(year=9001)]
)
def test_a_one_off_needs_an_aware_moment_of_the_calendar(moment: datetime) -> None:
    with pytest.raises(ScheduleError):
        Once(moment)


@pytest.mark.parametrize("now", [NOON - HOUR, NOON, NOON + HOUR])
def test_a_one_off_has_one_tick_which_runs_however_late(now: datetime) -> None:
    once = Once(NOON)
    assert once.next_after(now) == NOON
    assert admit(once, "remind.order-7", NOON, now) == Admission(NOON, run=True, missed=0)
    assert plan_next(once, "remind.order-7", NOON, now) == Plan(NOON, missed=0)
    assert jittered(once, "remind.order-7", NOON) == NOON


@pytest.mark.parametrize(
    ("once", "wire"),
    [
        (Once(NOON), {"once_ms": 1780315200000}),
        (Once(NOON, HOUR), {"once_ms": 1780315200000, "kept_ms": 3600000}),
    ],
)
def test_a_one_off_travels(once: Once, wire: dict[str, Any]) -> None:
    assert to_wire(once) == wire
    assert from_wire(wire) == once


@pytest.mark.parametrize(
    "wire",
    [
        {"once_ms": -1},
        {"once_ms": True},
        {"once_ms": 10**15},
        {"once_ms": 1, "every_ms": 1000},
        {"once_ms": 1, "kept_ms": -1},
        {"once_ms": 1, "jitter_ms": 1},
    ],
)
def test_a_one_off_without_a_moment_is_refused(wire: dict[str, Any]) -> None:
    with pytest.raises(ScheduleError):
        from_wire(wire)
