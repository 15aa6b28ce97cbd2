"""Moments and lengths of time, as people are told them."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from scheduler.cli.printing import relative
from scheduler.timing.moments import exact

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("away", "told"),
    [
        ({"seconds": 12.7}, "in 12 s"),
        ({"seconds": 0.2}, "in 0 s"),
        ({}, "0 s ago"),
        ({"seconds": -119}, "119 s ago"),
        ({"seconds": 120}, "in 2 m"),
        ({"minutes": -119}, "119 m ago"),
        ({"minutes": 120}, "in 2 h 0 m"),
        ({"hours": 13, "minutes": 31}, "in 13 h 31 m"),
        ({"hours": 24}, "in 24 h"),
        ({"hours": -99}, "99 h ago"),
        ({"hours": 100}, "in 4 d"),
        ({"days": -400}, "400 d ago"),
    ],
)
def test_how_far_a_moment_is_from_now(away: dict[str, float], told: str) -> None:
    assert relative(NOW + timedelta(**away), NOW) == told


def test_a_moment_is_told_with_its_offset() -> None:
    assert exact(NOW, ZoneInfo("Europe/Berlin")) == "2026-06-01 14:00:00+02:00"
    assert exact(NOW, UTC) == "2026-06-01 12:00:00+00:00"
    assert datetime.fromisoformat(exact(NOW)) == NOW


def test_what_is_not_known_is_not_told() -> None:
    assert (exact(None), relative(None, NOW)) == ("", "")
