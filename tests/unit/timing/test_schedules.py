import functools
import random
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from croniter import croniter  # pyright: ignore[reportMissingTypeStubs]

from scheduler.errors import ScheduleError
from scheduler.tasks.registration import schedule_of
from scheduler.timing.durations import MILLISECOND
from scheduler.timing.schedules import (
    MISSED_COUNT_LIMIT,
    Admission,
    Cron,
    Every,
    Once,
    Plan,
    Recurring,
    Schedule,
    admit,
    describe,
    from_wire,
    jittered,
    plan_next,
    to_wire,
)

SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)


def at(text: str) -> datetime:
    """A moment of 2026 in UTC, from "06-15 09:00" or "06-15 09:00:30.5"."""
    return datetime.fromisoformat(f"2026-{text}").replace(tzinfo=UTC)


NOON = at("06-15 12:00")
"""A Monday."""
NOON_MS = 1_781_524_800_000


def ticks(schedule: Recurring, start: datetime, count: int) -> list[datetime]:
    found = [schedule.next_after(start)]
    while len(found) < count:
        found.append(schedule.next_after(found[-1]))
    return found


# Every


@pytest.mark.parametrize(
    ("period", "offset", "moment", "following", "latest"),
    [
        ("1h", "0s", "06-15 11:59:59.999999", "06-15 12:00", "06-15 11:00"),
        ("1h", "5m", "06-15 12:00", "06-15 12:05", "06-15 11:05"),
        ("1d", "9h", "06-15 12:00", "06-16 09:00", "06-15 09:00"),
        ("100ms", "0s", "06-15 12:00:00.05", "06-15 12:00:00.1", "06-15 12:00"),
    ],
)
def test_a_fixed_rate_keeps_to_multiples_of_the_period_since_the_epoch(
    period: str, offset: str, moment: str, following: str, latest: str
):
    every = Every(period, mode="fixed_rate", offset=offset)
    assert every.next_after(at(moment)) == at(following)
    assert every.latest_until(at(moment)) == at(latest)


def test_a_fixed_delay_has_no_latest_tick():
    with pytest.raises(ScheduleError, match='no grid of ticks: use mode="fixed_rate"'):
        Every("30s").latest_until(NOON)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"period": "99ms"}, "period: expected at least 100ms, got: 99ms"),
        ({"period": 30}, "period: expected a number and a unit.*got: 30"),
        ({"period": "100.5ms"}, "period: expected whole milliseconds, got: 100.5ms"),
        ({"period": "1h", "mode": "cron"}, "mode: expected one of 'fixed_delay', 'fixed_rate'"),
        ({"period": "1h", "offset": "5m"}, 'offset= needs mode="fixed_rate"'),
        (
            {"period": "1h", "mode": "fixed_rate", "offset": "1h"},
            r"offset: expected less than the period \(1h\), got: 1h",
        ),
        ({"period": "1h", "jitter": timedelta(seconds=-1)}, "jitter: expected a duration between"),
        ({"period": "1h", "catch_up": "none"}, "catch_up: expected one of 'latest', 'skip', 'all'"),
        ({"period": "1h", "catch_up": "all"}, 'catch_up="all" needs a grid to catch up on'),
        ({"period": "1h", "grace": "2m"}, "grace= needs catch_up=\"skip\", got: catch_up='latest'"),
        ({"period": "1h", "catch_up": "skip", "grace": "?"}, "grace: expected a number"),
    ],
)
def test_an_invalid_every_is_refused(arguments: dict[str, Any], message: str):
    with pytest.raises(ScheduleError, match=message):
        Every(**arguments)


# Cron


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ("5/30 12-13 15 jun *", ["06-15 12:05", "06-15 12:35", "06-15 13:05"]),
        ("0 0 * * FRI#2", ["07-10 00:00", "08-14 00:00", "09-11 00:00"]),
        ("0 0 * * L5", ["06-26 00:00", "07-31 00:00", "08-28 00:00"]),
        ("@Daily", ["06-16 00:00", "06-17 00:00"]),
        ("  0   9 1 1-8/7 ? ", ["08-01 09:00"]),
    ],
)
def test_an_expression_matches_beyond_what_croniter_is_asked(expression: str, found: list[str]):
    assert ticks(Cron(expression), NOON, len(found)) == [at(text) for text in found]


def test_the_zone_decides_when_nine_oclock_is():
    assert Cron("0 9 * * *", tz="Asia/Kolkata").next_after(NOON) == at("06-16 03:30")
    assert Cron("0 9 * * *", tz=ZoneInfo("America/New_York")).next_after(NOON) == at("06-15 13:00")


def test_a_leap_day_is_found_across_a_century():
    cron = Cron("0 0 29 2 *")
    assert cron.next_after(datetime(2096, 3, 1, tzinfo=UTC)).year == 2104
    assert cron.latest_until(datetime(2104, 2, 28, tzinfo=UTC)).year == 2096
    assert Cron("0 0 * 2 MON#5").next_after(NOON) == datetime(2044, 2, 29, tzinfo=UTC)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("60 * * * *", "the minute field takes 0-59.*got: '60'"),
        ("0 25 * * *", "the hour field takes 0-23.*got: '25'"),
        ("0 0 32 * *", "the day of month field takes 1-31 or L.*got: '32'"),
        ("0 0 * 13 *", "the month field takes 1-12 or JAN-DEC.*got: '13'"),
        ("0 0 * * 8", "the day of week field takes 0-7 or SUN-SAT.*got: '8'"),
        ("0 0 * * FRI#6", "the day of week field .*got: 'FRI#6'"),
        ("0 0 * * MON,FRI#2", "the day of week field .*got: 'MON,FRI#2'"),
        ("0 0 9 * * MON-FRI", r"second \(the sixth field\) field takes 0-59.*got: 'MON-FRI'"),
        ("*/0 * * * *", r"the minute field .*got: '\*/0'"),
        ("1, * * * *", "the minute field .*got: '1,'"),
        ("? * * * *", r"the minute field .*got: '\?'"),
        ("H/5 * * * *", "the minute field .*got: 'H/5'"),
        ("0 9-9 * * *", "the hour field .*got: '9-9'"),
        ("0 0 15W * *", "the day of month field .*got: '15W'"),
        (f"{'9' * 300} * * * *", "the minute field "),
        ("* * * *", "expected five fields .* or six with the second last, got: 4"),
        ("0 0 1 1 * 0 2027", "expected five fields .*got: 7"),
        ("@reboot", "expected five fields .*got: 1"),
        ("0 0 30 2 *", "'0 0 30 2 .' never fires"),
        ("0 0 31 4,6,9,11 *", "never fires"),
        (["0 9 * * *"], "cron: expected an expression"),
        ("*" * 501, "cron: expected an expression"),
    ],
)
def test_a_bad_expression_is_refused_and_the_field_named(expression: Any, message: str):
    with pytest.raises(ScheduleError, match=message) as refusal:
        Cron(expression)
    assert refusal.value.__cause__ is None


@pytest.mark.parametrize(
    ("tz", "message"),
    [
        ("Europe/Berln", "did you mean .*Europe/Berlin"),
        ("europe/berlin", "did you mean .*Europe/Berlin"),
        ("Europe", "tz: expected an IANA time zone"),
        ("../etc/passwd", "tz: expected an IANA time zone"),
        ("", "tz: expected an IANA time zone"),
        ("\0", "tz: expected an IANA time zone"),
        ("x" * 5000, "tz: expected an IANA time zone"),
        (UTC, "tz: expected an IANA time zone"),
    ],
)
def test_an_unknown_zone_is_refused_and_the_nearest_named(tz: Any, message: str):
    with pytest.raises(ScheduleError, match=message):
        Cron("0 9 * * *", tz=tz)


PARTS = {
    "minute": ["*", "0", "30", "*/7", "5-20", "1,2,59"],
    "hour": ["*", "0", "9", "*/5", "22-23", "8,20"],
    "day": ["*", "*", "1", "31", "*/9", "10-12", "L"],
    "month": ["*", "*", "2,3", "*/4", "6,12"],
    "weekday": ["*", "*", "MON-FRI", "0", "7", "sat,2"],
    "second": ["", "", "", "*", "5", "*/20", "10,59"],
}


def test_a_thousand_expressions_agree_with_croniter():
    choose = random.Random(20261121).choice
    for _ in range(1000):
        expression = " ".join(choose(parts) for parts in PARTS.values())
        library = croniter(expression, NOON, ret_type=datetime, implement_cron_bug=True)
        assert ticks(Cron(expression), NOON, 5) == [library.get_next() for _ in range(5)], (
            expression
        )


# Both


@pytest.mark.parametrize("schedule", [Every("1h"), Every("1h", mode="fixed_rate"), Cron("@hourly")])
def test_a_moment_is_aware_and_of_the_years_1970_to_9000(schedule: Recurring):
    first, last = datetime(1970, 1, 1, tzinfo=UTC), datetime(9000, 12, 31, 23, tzinfo=UTC)
    questions = [schedule.next_after]
    if schedule.has_grid:
        questions.append(schedule.latest_until)
    for question in questions:
        for moment in (first - SECOND, last + HOUR + SECOND, datetime.max.replace(tzinfo=UTC)):
            with pytest.raises(ScheduleError, match="expected a moment of the years 1970 to 9000"):
                question(moment)
        with pytest.raises(ScheduleError, match="expected an aware moment, got: 2026-06-15T00:00"):
            question(datetime(2026, 6, 15))  # noqa: DTZ001
    assert schedule.next_after(first) == first + HOUR
    assert schedule.next_after(last) == last + HOUR


# Jitter


@pytest.mark.parametrize(
    "schedule", [Every("1h", jitter="10m"), Cron("0 * * * *", tz="Asia/Tokyo", jitter="10m")]
)
def test_jitter_spreads_over_its_whole_range(schedule: Recurring):
    assert jittered(schedule, "poll", NOON) != jittered(schedule, "poll", NOON + HOUR)
    late = [jittered(schedule, f"loop {number}", NOON) - NOON for number in range(500)]
    assert min(late) < 10 * SECOND
    assert max(late) > 590 * SECOND


@pytest.mark.parametrize(
    ("schedule", "late"),
    [
        (Every("1h", jitter="10m"), timedelta(minutes=3, seconds=31, milliseconds=674)),
        (Every("1s", mode="fixed_rate", jitter="10m"), timedelta(milliseconds=352)),
    ],
)
def test_jitter_is_the_same_in_every_version(schedule: Recurring, late: timedelta):
    assert jittered(schedule, "poll", NOON) == NOON + late


# Misfires


HOURLY = Every("1h", mode="fixed_rate")
HOURLY_SKIP = Every("1h", mode="fixed_rate", catch_up="skip", grace="5m")
HOURLY_ALL = Every("1h", mode="fixed_rate", catch_up="all")
DAILY_SKIP = Cron("0 9 * * *", catch_up="skip")
TEN_SKIP = Every("10s", mode="fixed_rate", catch_up="skip")


@pytest.mark.parametrize(
    ("schedule", "tick", "now", "admission"),
    [
        # a late fixed delay runs
        (Every("1h"), "06-15 09:00", "06-15 12:30", ("06-15 09:00", True, 0)),
        # a fixed delay within its grace runs
        (Every("1h", catch_up="skip"), "06-15 09:00", "06-15 09:01", ("06-15 09:00", True, 0)),
        # a fixed delay beyond its grace is skipped
        (Every("1h", catch_up="skip"), "06-15 09:00", "06-15 09:01:01", ("06-15 09:00", False, 1)),
        (HOURLY, "06-15 09:00", "06-15 09:59", ("06-15 09:00", True, 0)),  # nothing missed
        # the next tick is due already
        (HOURLY, "06-15 09:00", "06-15 10:00", ("06-15 10:00", True, 1)),
        # a tick off the grid, nothing missed
        (HOURLY, "06-15 09:30", "06-15 09:45", ("06-15 09:30", True, 0)),
        # a tick off the grid counts too, the latest stands for those before
        (HOURLY, "06-15 09:30", "06-15 12:30", ("06-15 12:00", True, 3)),
        (HOURLY_SKIP, "06-15 09:00", "06-15 09:05", ("06-15 09:00", True, 0)),  # within the grace
        # the latest is just within the grace
        (HOURLY_SKIP, "06-15 09:00", "06-15 12:05", ("06-15 12:00", True, 3)),
        # even the latest is beyond the grace
        (HOURLY_SKIP, "06-15 09:00", "06-15 12:06", ("06-15 12:00", False, 4)),
        # within a grace of several ticks
        (TEN_SKIP, "06-15 09:00", "06-15 09:00:30", ("06-15 09:00", True, 0)),
        (HOURLY_ALL, "06-15 09:00", "06-15 12:30", ("06-15 09:00", True, 0)),  # each in order
        # a clock that is behind
        (HOURLY_SKIP, "06-15 13:00", "06-15 12:30", ("06-15 13:00", True, 0)),
        # over a weekend
        (Cron("0 9 * * MON-FRI"), "06-12 09:00", "06-16 08:00", ("06-15 09:00", True, 1)),
        # a calendar beyond its grace
        (DAILY_SKIP, "06-12 09:00", "06-15 12:00", ("06-15 09:00", False, 4)),
    ],
)
def test_the_worth_of_a_token(
    schedule: Recurring, tick: str, now: str, admission: tuple[str, bool, int]
):
    nominal, run, missed = admission
    assert admit(schedule, "loop", at(tick), at(now)) == Admission(at(nominal), run, missed)


@pytest.mark.parametrize(
    ("schedule", "tick", "now", "plan"),
    [
        # a fixed delay starts at the end
        (Every("1h"), "06-15 09:00", "06-15 09:10", ("06-15 10:10", 0)),
        (HOURLY, "06-15 09:00", "06-15 09:10", ("06-15 10:00", 0)),  # the next tick
        # a run that ends with the next tick
        (HOURLY, "06-15 09:00", "06-15 10:00", ("06-15 11:00", 1)),
        (HOURLY, "06-15 09:00", "06-15 11:10", ("06-15 12:00", 2)),  # an overrun
        # a clock that is behind does not run the tick twice
        (HOURLY, "06-15 09:00", "06-15 08:50", ("06-15 10:00", 0)),
        # each in order, due at once
        (HOURLY_ALL, "06-15 09:00", "06-15 11:10", ("06-15 10:00", 0)),
        # a run over a weekend
        (Cron("0 9 * * MON-FRI"), "06-12 09:00", "06-15 09:30", ("06-16 09:00", 1)),
    ],
)
def test_the_next_tick_after_a_run(schedule: Recurring, tick: str, now: str, plan: tuple[str, int]):
    following, missed = plan
    assert plan_next(schedule, "loop", at(tick), at(now)) == Plan(at(following), missed)


def test_missed_ticks_are_computed_and_calendar_ticks_are_counted_to_a_limit():
    every = Every("100ms", mode="fixed_rate", catch_up="skip")
    assert admit(every, "loop", NOON - timedelta(days=30), NOON).missed == 25_920_000
    latest, skip = Cron("* * * * *"), Cron("* * * * *", catch_up="skip", grace="0s")
    start, now = NOON - timedelta(minutes=999), NOON + 30 * SECOND
    assert MISSED_COUNT_LIMIT == 1000
    assert admit(latest, "loop", start, now).missed == 999
    assert admit(skip, "loop", start, now) == Admission(NOON, False, 1000)
    assert admit(latest, "loop", start - 9 * HOUR, now) == Admission(NOON, True, MISSED_COUNT_LIMIT)
    assert admit(skip, "loop", start - 9 * HOUR, now) == Admission(NOON, False, MISSED_COUNT_LIMIT)
    assert plan_next(latest, "loop", start - 9 * HOUR, now) == Plan(
        NOON + MINUTE, MISSED_COUNT_LIMIT
    )


# A named one-off


def test_a_one_off_is_rounded_up_so_that_it_is_never_early():
    assert Once(NOON + timedelta(microseconds=1)).at == NOON + MILLISECOND
    assert Once(NOON.astimezone(ZoneInfo("Asia/Tokyo"))) == Once(NOON)
    last = Once(datetime(9001, 1, 1, tzinfo=UTC) - timedelta(microseconds=1))
    assert Once(last.at) == last
    kept = Once(NOON, HOUR / 7)
    assert from_wire(to_wire(kept)) == kept


@pytest.mark.parametrize(
    "moment",
    [
        *(NOON.replace(tzinfo=None), NOON.replace(year=1969), NOON.replace(year=9001)),
        datetime(1970, 1, 1, tzinfo=ZoneInfo("Asia/Tokyo")),
    ],
)
def test_a_one_off_needs_an_aware_moment_of_the_calendar(moment: datetime):
    with pytest.raises(ScheduleError):
        Once(moment)


@pytest.mark.parametrize("now", [NOON - HOUR, NOON, NOON + HOUR])
def test_a_one_off_has_one_tick_which_runs_however_late(now: datetime):
    once = Once(NOON)
    assert once.next_after(now) == NOON
    assert admit(once, "remind.order-7", NOON, now) == Admission(NOON, run=True, missed=0)
    assert plan_next(once, "remind.order-7", NOON, now) == Plan(NOON, missed=0)
    assert jittered(once, "remind.order-7", NOON) == NOON


# The wire


AT_NOON = "once at 2026-06-15 12:00:00+00:00"


@pytest.mark.parametrize(
    ("schedule", "phrase", "wire"),
    [
        (Every("30s"), "every 30s", {"every_ms": 30_000}),
        (Every("36525d"), "every 36525d", {"every_ms": 36_525 * 86_400_000}),
        (
            Every("1h", mode="fixed_rate", offset="5m", jitter="10s", catch_up="skip", grace="2s"),
            "every 1h at fixed rate, offset 5m",
            {"every_ms": 3_600_000, "mode": "fixed_rate", "offset_ms": 300_000}
            | {"jitter_ms": 10_000, "catch_up": "skip", "grace_ms": 2_000},
        ),
        (Cron("@daily"), "@daily in UTC", {"cron": "@daily"}),
        (
            Cron("0 9 * * *", tz="Europe/Berlin", jitter="1m", catch_up="all"),
            "0 9 * * * in Europe/Berlin",
            {"cron": "0 9 * * *", "tz": "Europe/Berlin", "jitter_ms": 60_000, "catch_up": "all"},
        ),
        (Once(NOON), AT_NOON, {"once_ms": NOON_MS}),
        (Once(NOON, HOUR), AT_NOON, {"once_ms": NOON_MS, "kept_ms": 3_600_000}),
    ],
)
def test_a_schedule_is_described_and_travels_without_its_defaults(
    schedule: Schedule, phrase: str, wire: dict[str, Any]
):
    assert describe(schedule) == phrase
    assert to_wire(schedule) == wire
    assert from_wire(wire) == schedule


ENDLESS = functools.reduce(lambda inner, _: [inner], range(100_000), list[object]())


@pytest.mark.parametrize(
    ("wire", "message"),
    [
        (None, "one of every_ms, cron and once_ms, and its options, got: None"),
        ({}, "expected an object with one of every_ms"),
        ({"every_ms": 1000, "cron": "@daily"}, "expected an object with one of every_ms"),
        ({"every_ms": 1000, "tz": "UTC"}, "Every takes no tz="),
        ({"cron": "@daily", "mode": "fixed_rate"}, "Cron takes no mode="),
        ({"every_ms": 1000, "jitter": "1s"}, "its options, got: .*'jitter': '1s'"),
        ({"every_ms": True}, "every_ms: expected a whole number"),
        ({"every_ms": 1000.0}, "every_ms: expected a whole number"),  # though it equals one
        ({"every_ms": -1}, "every_ms: expected a whole number"),
        ({"every_ms": 10**5000}, "every_ms: expected a whole number"),
        ({"every_ms": 36_525 * 86_400_000 + 1}, "period: expected a duration between 0s and"),
        ({"every_ms": 1000, "jitter_ms": -1}, "jitter_ms: expected a whole number"),
        ({"every_ms": 1000, "mode": ["fixed_rate"]}, "its options, got:"),
        ({"cron": "now"}, "cron expression 'now': expected five fields"),
        (ENDLESS, "got: list"),
        ({"once_ms": -1}, "once_ms: expected a whole number"),
        ({"once_ms": 10**15}, "once_ms: expected a whole number"),
        ({"once_ms": 1, "every_ms": 1000}, "expected an object with one of every_ms"),
        ({"once_ms": 1, "kept_ms": -1}, "kept_ms: expected a whole number"),
        ({"once_ms": 1, "kept_ms": 36_525 * 86_400_000 + 1}, "kept: expected a duration between"),
        ({"once_ms": 1, "jitter_ms": 1}, "expected an object with one of every_ms"),
    ],
)
def test_an_invalid_schedule_is_refused(wire: object, message: str):
    said = {"every_ms": 1000, "mode": "fixed_delay", "offset_ms": 0, "jitter_ms": 0}
    assert from_wire(said | {"catch_up": "latest", "grace_ms": 60_000}) == Every("1s")
    with pytest.raises(ScheduleError, match=message):
        from_wire(wire)


# What the decorator takes


@pytest.mark.parametrize(
    ("arguments", "schedule"),
    [
        (
            {"every": HOUR, "mode": "fixed_rate", "offset": "5m"},
            Every("1h", mode="fixed_rate", offset="5m"),
        ),
        ({"every": "30s", "jitter": None, "tz": None}, Every("30s")),
        ({"cron": "@daily", "tz": "Asia/Tokyo"}, Cron("@daily", tz="Asia/Tokyo")),
        ({"schedule": Every("2s")}, Every("2s")),
    ],
)
def test_arguments_become_a_schedule(arguments: dict[str, Any], schedule: Recurring):
    assert schedule_of(**arguments) == schedule


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"every": "1s", "cron": "@daily"}, "got: every and cron"),
        ({"every": "1s", "jitter": "1s", "tz": "UTC"}, "Every takes no tz=; it takes period="),
        ({"cron": "@daily", "offset": "1m"}, "Cron takes no offset=; it takes expression="),
        ({"schedule": Every("1s"), "jitter": "1s"}, "jitter= cannot be combined with schedule="),
        ({"every": "1s", "jiter": "1s"}, r"Every takes no jiter=; did you mean jitter=\?"),
        ({"schedule": "30s"}, "schedule: expected an Every or a Cron, got: '30s'"),
        ({"every": timedelta(days=40_000)}, r"every: expected .* and 36525d \(100 years\), got"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_with_the_fix(
    arguments: dict[str, Any], message: str
):
    with pytest.raises(ScheduleError, match=message):
        schedule_of(**arguments)
