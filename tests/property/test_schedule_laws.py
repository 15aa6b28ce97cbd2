"""What holds for every schedule and every moment."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from hypothesis import assume, given
from hypothesis import strategies as st

from scheduler.errors import ScheduleError
from scheduler.timing.durations import format_duration, parse_duration
from scheduler.timing.moments import milliseconds
from scheduler.timing.schedules import (
    MISSED_COUNT_LIMIT,
    Cron,
    Every,
    Recurring,
    admit,
    describe,
    from_wire,
    jittered,
    plan_next,
    to_wire,
)

MILLISECOND = timedelta(milliseconds=1)
ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "Africa/Cairo",
    "Africa/Casablanca",
    "Asia/Kolkata",
    "Pacific/Apia",
    "America/Sao_Paulo",
    "Antarctica/Troll",
]

LOOP = "poll"


def spans(shortest: int, longest: int) -> st.SearchStrategy[timedelta]:
    """Durations between two numbers of milliseconds."""
    return st.integers(shortest, longest).map(lambda number: number * MILLISECOND)


def field(low: int, high: int) -> st.SearchStrategy[str]:
    values = st.integers(low, high)
    return st.one_of(
        st.just("*"),
        values.map(str),
        st.integers(1, high).map(lambda step: f"*/{step}"),
        st.tuples(values, values)
        .filter(lambda pair: pair[0] < pair[1])
        .map("{0[0]}-{0[1]}".format),
        st.lists(values, min_size=2, max_size=4).map(lambda some: ",".join(map(str, some))),
    )


@st.composite
def misfire_policies(draw: st.DrawFn, *choices: str) -> dict[str, Any]:
    policy: dict[str, Any] = {
        "catch_up": draw(st.sampled_from(choices)),
        "jitter": draw(spans(0, 3_600_000)),
    }
    if policy["catch_up"] == "skip":
        policy["grace"] = draw(spans(0, 7_200_000))
    return policy


@st.composite
def fixed_delays(draw: st.DrawFn) -> Every:
    period = draw(spans(100, 10**10))
    return Every(period, **draw(misfire_policies("latest", "skip")))


@st.composite
def fixed_rates(draw: st.DrawFn) -> Every:
    period = draw(spans(100, 10**10))
    offset = draw(spans(0, milliseconds(period) - 1))
    policy = draw(misfire_policies("latest", "skip", "all"))
    return Every(period, mode="fixed_rate", offset=offset, **policy)


@st.composite
def calendars(draw: st.DrawFn) -> Cron:
    day, weekday = draw(st.sampled_from(["*", "1,15", "10-20", "L"])), draw(field(0, 6))
    fields = [draw(field(0, 59)), draw(field(0, 23)), day, draw(field(1, 12)), weekday]
    fields += draw(st.lists(field(0, 59), max_size=1))
    policy = draw(misfire_policies("latest", "skip", "all"))
    return Cron(" ".join(fields), tz=draw(st.sampled_from(ZONES)), **policy)


grids = fixed_rates() | calendars()
schedules = fixed_delays() | grids
moments = st.datetimes(
    datetime(2010, 1, 1),  # noqa: DTZ001
    datetime(2040, 1, 1),  # noqa: DTZ001
    timezones=st.sampled_from(ZONES).map(ZoneInfo),
)
delays = spans(0, 10**9) | spans(0, 10**5)


@given(schedules, moments)
def test_ticks_strictly_increase_and_are_never_in_the_past(schedule: Recurring, moment: datetime):
    for _ in range(5):
        following = schedule.next_after(moment)
        assert following > moment
        assert following.tzinfo is UTC
        moment = following


@given(grids, moments, delays)
def test_a_later_question_has_no_earlier_answer(
    schedule: Recurring, moment: datetime, delay: timedelta
):
    later = moment.astimezone(UTC) + delay
    following = schedule.next_after(moment)
    assert schedule.next_after(later) >= following
    if later < following:
        assert schedule.next_after(later) == following


@given(grids, moments)
def test_the_latest_tick_and_the_next_are_neighbours(schedule: Recurring, moment: datetime):
    latest, following = schedule.latest_until(moment), schedule.next_after(moment)
    assert latest <= moment < following
    assert schedule.next_after(latest) == following
    assert schedule.latest_until(latest) == latest
    assert schedule.latest_until(following) == following
    assert schedule.latest_until(following - timedelta(microseconds=1)) == latest


@given(grids, moments, st.integers(0, 20))
def test_ticks_are_counted_as_they_come(schedule: Recurring, moment: datetime, count: int):
    until = moment.astimezone(UTC)
    for _ in range(count):
        until = schedule.next_after(until)
    assert schedule.count_between(moment, until) == count


@given(schedules, moments, delays)
def test_a_token_is_worth_at_most_one_run_of_a_tick_that_is_due(
    schedule: Recurring, moment: datetime, delay: timedelta
):
    tick = schedule.next_after(moment)
    early = admit(schedule, LOOP, tick, tick - delay)
    assert (early.tick, early.run) == (tick, True)
    now = tick + delay
    admission = admit(schedule, LOOP, tick, now)
    assert tick <= admission.tick <= now
    assert admission.missed >= 0
    assert admission.run or admission.missed >= 1
    assert admission.run or schedule.catch_up == "skip"
    if schedule.catch_up == "skip":
        started_at = jittered(schedule, LOOP, admission.tick)
        assert admission.run == (now - started_at <= schedule.grace)
    if schedule.has_grid and schedule.catch_up == "latest":
        following = schedule.next_after(admission.tick)
        assert jittered(schedule, LOOP, following) > now
        assert admission.tick == tick or jittered(schedule, LOOP, admission.tick) <= now
    if schedule.catch_up == "all":
        assert (admission.tick, admission.missed) == (tick, 0)


@given(schedules, moments, delays)
def test_the_plan_continues_after_the_tick_and_only_all_goes_back(
    schedule: Recurring, moment: datetime, delay: timedelta
):
    tick = schedule.next_after(moment)
    now = tick + delay
    plan = plan_next(schedule, LOOP, tick, now)
    assert plan.tick > tick
    starts_at = jittered(schedule, LOOP, plan.tick)
    assert starts_at > now or schedule.catch_up == "all"
    if schedule.catch_up == "all":
        assert plan == plan_next(schedule, LOOP, tick, tick)


@given(grids, moments, delays, delays)
def test_every_tick_is_either_run_or_counted_as_missed(
    schedule: Recurring, moment: datetime, late: timedelta, long: timedelta
):
    assume(schedule.catch_up != "all")
    tick = schedule.next_after(moment)
    now = tick + late
    admission = admit(schedule, LOOP, tick, now)
    plan = plan_next(schedule, LOOP, admission.tick, now + long)
    total = schedule.count_between(tick - MILLISECOND, plan.tick - MILLISECOND)
    assume(isinstance(schedule, Every) or total < MISSED_COUNT_LIMIT)
    assert admission.run + admission.missed + plan.missed == total


@given(schedules, moments, st.text(max_size=20))
def test_jitter_stays_within_bounds_and_before_the_next_tick(
    schedule: Recurring, moment: datetime, loop: str
):
    tick = schedule.next_after(moment)
    start = jittered(schedule, loop, tick)
    assert tick <= start <= tick + schedule.jitter
    assert (start - tick) % MILLISECOND == timedelta(0)
    assert start == jittered(schedule, loop, tick)
    if schedule.has_grid:
        assert start < schedule.next_after(tick)


@given(schedules)
def test_a_schedule_survives_the_wire(schedule: Recurring):
    wire = json.loads(json.dumps(to_wire(schedule)))
    assert from_wire(wire) == schedule
    assert describe(from_wire(wire)) == describe(schedule)


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
anything = st.recursive(
    scalars,
    lambda values: (
        st.lists(values, max_size=4) | st.dictionaries(st.text(max_size=10), values, max_size=4)
    ),
    max_leaves=8,
)
cron_like = st.text("0123456789*/-,#LWHR?@() \tMONJAN\u0663\u00a0", max_size=30)
near_misses = st.fixed_dictionaries(
    {},
    optional={
        "every_ms": st.integers(0, 2**70) | anything,
        "cron": cron_like | anything,
        "tz": st.sampled_from([*ZONES, "Europe", "..", "/", "\0"]) | anything,
        "mode": st.sampled_from(["fixed_rate", "fixed_delay"]) | anything,
        "offset_ms": st.integers(-1, 2**40) | anything,
        "jitter_ms": st.integers(-1, 2**40) | anything,
        "catch_up": st.sampled_from(["latest", "skip", "all"]) | anything,
        "grace_ms": st.integers(-1, 2**40) | anything,
        "other": anything,
    },
)
single_expressions = st.fixed_dictionaries(
    {"cron": st.lists(cron_like, min_size=5, max_size=6).map(" ".join) | cron_like}
)


@given(anything | near_misses | single_expressions, moments)
def test_any_wire_value_is_a_schedule_or_refused(wire: object, moment: datetime):
    try:
        schedule = from_wire(wire)
    except ScheduleError:
        return
    assert schedule.next_after(moment) > moment
    assert from_wire(to_wire(schedule)) == schedule


@given(st.timedeltas(timedelta(0), timedelta(days=36525)))
def test_a_duration_survives_being_written(span: timedelta):
    assert parse_duration(format_duration(span)) == span
    assert timedelta(0) <= milliseconds(span) * MILLISECOND - span < MILLISECOND


@given(st.text() | st.text("0123456789.wdhms", max_size=12))
def test_any_text_is_a_duration_or_refused(text: str):
    try:
        span = parse_duration(text)
    except ScheduleError:
        return
    assert parse_duration(format_duration(span)) == span
