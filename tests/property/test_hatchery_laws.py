"""What holds for every delay."""

from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.protocol.hatchery import LONGEST, STEP, UNITS, Timer, Unit, route
from scheduler.protocol.messages import LONGEST_LEAD_MS
from scheduler.timing.durations import MICROSECOND, MILLISECOND, ZERO
from tests.stage import hatched

THREE_YEARS = timedelta(days=3 * 365)
LONGEST_LEAD = timedelta(milliseconds=200)
LONGEST_REST = LONGEST_LEAD_MS * MILLISECOND - LONGEST_LEAD


# What is just too short for a timer takes the most of others.
def just_about(timer: tuple[Unit, int, int]) -> timedelta:
    unit, count, less = timer
    return unit.length * count - less * MILLISECOND


about_a_timer = st.tuples(
    st.sampled_from(UNITS[:-1]), st.integers(1, 6), st.integers(-400, 600)
).map(just_about)
delays = st.one_of(
    st.integers(0, LONGEST // MICROSECOND).map(lambda us: us * MICROSECOND), about_a_timer
)
# Half of them short, because of the long ones hardly any has a zero among its digits.
hatchable = st.one_of(
    st.integers(100, 60_000).map(lambda ms: timedelta(milliseconds=ms)),
    st.integers(100, THREE_YEARS // MILLISECOND).map(lambda ms: timedelta(milliseconds=ms)),
)


@given(delays)
def test_the_timers_and_the_rest_add_up_to_the_delay_and_none_is_late(delay: timedelta):
    way = route(delay)
    waits = [Timer(unit, count).wait for unit, count in enumerate(way.digits) if count]
    assert sum(waits, way.rest) == delay
    assert ZERO <= way.rest < LONGEST_REST
    assert len(way.digits) == len(UNITS)
    assert all(0 <= count <= unit.most for unit, count in zip(UNITS, way.digits, strict=True))


@given(delays, delays)
def test_the_longer_of_two_delays_never_takes_the_lesser_timers(a: timedelta, b: timedelta):
    shorter, longer = sorted([a, b])
    assert route(shorter).digits <= route(longer).digits


@settings(max_examples=25)
@given(st.lists(hatchable, min_size=1, max_size=20), st.sampled_from(["quorum", "classic"]))
def test_every_message_arrives_once_and_so_early_that_its_processor_holds_it(
    sent: list[timedelta], queue_type: str
):
    arrived = hatched(sent, "quorum" if queue_type == "quorum" else "classic")
    assert sorted(delay for delay, _ in arrived) == sorted(sent)
    # The clock of the machine is a float: some years away it has steps of its own.
    assert all(STEP - MICROSECOND <= delay - after < LONGEST_REST for delay, after in arrived)
    assert [after for _, after in arrived] == sorted(after for _, after in arrived)
