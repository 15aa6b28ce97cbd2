"""What a cron expression means while the clocks change, against brute force.

The brute force knows nothing of cron or of zone changes: it walks through the minutes of real time,
looks at the wall clock in each, and applies the three rules of `Cron` literally.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cache
from itertools import pairwise, product
from zoneinfo import ZoneInfo, available_timezones

import pytest

from scheduler.timing.schedules import Cron

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
EVERY_HOUR = range(24)


@dataclass(frozen=True)
class Times:
    """Wall-clock times on every day, as cron and as numbers."""

    minutes: Sequence[int]
    hours: Sequence[int]

    def __str__(self) -> str:
        return f"{listed(self.minutes)} {listed(self.hours)} * * *"

    def on(self, days: Iterable[date]) -> Iterator[datetime]:
        for day, hour, minute in product(days, self.hours, self.minutes):
            yield datetime(day.year, day.month, day.day, hour, minute)  # noqa: DTZ001


def listed(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))


class Walk:
    """A walk through the minutes of real time, in a zone.

    Attributes:
        shown: the (naive) wall-clock time in each minute.
        first_shown: the first minute in which each wall-clock time shows.
        days: the days of its calendar, also those that the zone left out.
    """

    def __init__(self, zone: str, start: datetime, end: datetime, pace: timedelta = MINUTE) -> None:
        info = ZoneInfo(zone)
        moments = (start + number * pace for number in range((end - start) // pace))
        self.shown = {moment: moment.astimezone(info).replace(tzinfo=None) for moment in moments}
        self.first_shown = {wall: moment for moment, wall in reversed(self.shown.items())}
        self.first, self.last = min(self.first_shown), max(self.first_shown)
        count = (self.last.date() - self.first.date()).days + 1
        self.days = [self.first.date() + number * DAY for number in range(count)]

    def once_each(self, walls: Iterable[datetime]) -> set[datetime]:
        """Rules 1 and 2: each time runs when it first shows, or else right after the gap."""
        inside = (wall for wall in walls if self.first <= wall <= self.last)
        return {self.first_shown.get(wall) or self.first_later_than(wall) for wall in inside}

    def first_later_than(self, wall: datetime) -> datetime:
        return next(moment for moment, shown in self.shown.items() if shown > wall)

    def whenever_shown(self, minutes: Iterable[int]) -> set[datetime]:
        """Rule 3: every minute of real time in which the clock shows a match."""
        wanted = set(minutes)
        return {moment for moment, wall in self.shown.items() if wall.minute in wanted}

    def expected(self, times: Times) -> set[datetime]:
        if times.hours == EVERY_HOUR:
            return self.whenever_shown(times.minutes)
        return self.once_each(times.on(self.days))


def ticks(cron: Cron, start: datetime, end: datetime) -> list[datetime]:
    """The ticks in (start, end)."""
    found: list[datetime] = []
    tick = cron.next_after(start)
    while tick < end:
        found.append(tick)
        tick = cron.next_after(tick)
    return found


def within(moments: Iterable[datetime], start: datetime, end: datetime) -> list[datetime]:
    return sorted(moment for moment in moments if start < moment < end)


# Every change of the clocks in two years


@cache
def changes_of(name: str) -> tuple[tuple[datetime, timedelta], ...]:
    """When the zone's clocks change in 2026 and 2027, and by how much."""
    zone = ZoneInfo(name)

    def offset(moment: datetime) -> timedelta:
        return moment.astimezone(zone).utcoffset() or timedelta(0)

    def change_after(day: datetime) -> datetime:
        before = offset(day)
        minute = bisect_left(range(24 * 60), True, key=lambda n: offset(day + n * MINUTE) != before)
        return day + minute * MINUTE

    start = datetime(2026, 1, 1, tzinfo=UTC)
    offsets = [(day, offset(day)) for day in (start + number * DAY for number in range(731))]
    return tuple(
        (change_after(day), after - before)
        for (day, before), (_, after) in pairwise(offsets)
        if before != after
    )


def zones_that_change() -> list[str]:
    """One zone for each distinct behaviour."""
    start = datetime(2026, 1, 1, tzinfo=UTC)
    zones = {
        (changes_of(name), start.astimezone(ZoneInfo(name)).utcoffset()): name
        for name in sorted(available_timezones(), reverse=True)
    }
    return sorted(name for (changes, _), name in zones.items() if changes)


def times_around(wall: datetime) -> Iterator[Times]:
    for number in range(-8, 13):
        moment = wall + number * 15 * MINUTE
        yield Times([moment.minute], [moment.hour])
    nearby = sorted({(wall.hour + number) % 24 for number in range(-2, 4)})
    yield Times(range(0, 60, 10), nearby)
    yield Times([0], nearby)
    yield Times([5, 35], nearby[::2])
    yield Times([7], EVERY_HOUR)
    yield Times(range(0, 60, 15), EVERY_HOUR)


def test_the_rules_hold_at_every_change_of_the_clocks_in_two_years():
    changes = [(name, *each) for name in zones_that_change() for each in changes_of(name)]
    assert {HOUR, -HOUR, HOUR / 2, -HOUR / 2} <= {shift for *_, shift in changes}
    for name, change, _ in changes:
        walk = Walk(name, change - 36 * HOUR, change + 36 * HOUR)
        start, end = change - 20 * HOUR, change + 20 * HOUR
        for times in times_around(walk.shown[change - MINUTE]):
            found = ticks(Cron(str(times), tz=name), start, end)
            assert found == within(walk.expected(times), start, end), (name, times, change)


@pytest.mark.parametrize("name", ["Europe/Berlin", "Australia/Lord_Howe", "Africa/Cairo"])
def test_asking_from_any_minute_gives_the_first_tick_after_it(name: str):
    for change, _ in changes_of(name):
        walk = Walk(name, change - 36 * HOUR, change + 36 * HOUR)
        for times in (Times([15, 45], [0, 1, 2, 3]), Times([15, 45], EVERY_HOUR)):
            cron, grid = Cron(str(times), tz=name), sorted(walk.expected(times))
            for moment in within(walk.shown, change - 3 * HOUR, change + 3 * HOUR):
                assert cron.next_after(moment) == next(tick for tick in grid if tick > moment)
                assert cron.latest_until(moment) == max(tick for tick in grid if tick <= moment)


ZONES = ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "UTC"]


@pytest.mark.parametrize("name", ZONES)
def test_a_year_of_ticks_is_right(name: str):
    start, end = datetime(2026, 1, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC)
    year = Walk(name, start - 2 * DAY, end + 2 * DAY, pace=5 * MINUTE)
    days = [day for day in year.days if day.isoweekday() <= 5]
    working_days = year.once_each(Times([30], [2]).on(days))
    assert ticks(Cron("30 2 * * MON-FRI", tz=name), start, end) == within(working_days, start, end)
    shown = year.shown.items()
    sundays = (at for at, wall in shown if wall.isoweekday() == 7 and wall.minute in (0, 30))
    assert ticks(Cron("*/30 * * * SUN", tz=name), start, end) == within(sundays, start, end)


# Cases by hand, of other years


@pytest.mark.parametrize(
    ("expression", "tz", "start", "found"),
    [
        # A day without its midnight.
        ("30 0 29 3 *", "Asia/Beirut", "2026-03-01T00:00Z", ["29 01:00 +0300"]),
        # A day that was left out, a tick on that day alone, and every hour through it.
        (
            *("0 9 * * *", "Pacific/Apia", "2011-12-29T00:00Z"),
            ["29 09:00 -1000", "31 00:00 +1400", "31 09:00 +1400"],
        ),
        (
            *("0 */8 30 12 *", "Pacific/Apia", "2011-12-29T00:00Z"),
            ["31 00:00 +1400", "30 00:00 +1400"],
        ),
        (
            *("0 * * * *", "Pacific/Apia", "2011-12-30T08:30Z"),
            ["29 23:00 -1000", "31 00:00 +1400", "31 01:00 +1400"],
        ),
    ],
)
def test_wall_clock_times_at_changes(expression: str, tz: str, start: str, found: list[str]):
    cron, tick, shown = Cron(expression, tz=tz), datetime.fromisoformat(start), list[str]()
    for _ in found:
        tick = cron.next_after(tick)
        shown.append(tick.astimezone(ZoneInfo(tz)).strftime("%d %H:%M %z"))
    assert shown == found


def test_a_run_each_second_survives_both_changes():
    cron = Cron("* 2 * * * *", tz="Europe/Berlin")
    last = datetime(2026, 10, 25, 0, 59, 59, tzinfo=UTC)
    assert cron.next_after(last - timedelta(seconds=1)) == last
    assert cron.next_after(last) == datetime(2026, 10, 26, 1, tzinfo=UTC)
    assert cron.next_after(last + 30 * MINUTE) == datetime(2026, 10, 26, 1, tzinfo=UTC)
