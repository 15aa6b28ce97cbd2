"""What holds for every delay."""

from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.protocol.ladder import LONGEST, STEP, UNITS, Rung, digits, entrance, key_of
from tests.stage import climbed

lawful = settings(derandomize=True, max_examples=300, deadline=None, database=None)

MICROSECOND = timedelta(microseconds=1)
NOTHING = timedelta(0)
THREE_YEARS = timedelta(days=3 * 365)

delays = st.integers(0, LONGEST // MICROSECOND).map(lambda us: us * MICROSECOND)
# Half of them short, because of the long ones hardly any has a zero among its digits.
climbable = st.one_of(
    st.integers(100, 60_000).map(lambda ms: timedelta(milliseconds=ms)),
    st.integers(100, THREE_YEARS // timedelta(milliseconds=1)).map(
        lambda ms: timedelta(milliseconds=ms)
    ),
)


@lawful
@given(delays)
def test_the_rungs_add_up_to_the_delay_rounded_up_to_a_step(delay: timedelta):
    counts = digits(delay)
    rungs = [Rung(unit, count) for unit, count in enumerate(counts) if count]
    total = sum((rung.time_to_live for rung in rungs), NOTHING)
    assert NOTHING <= total - delay < STEP
    assert total % STEP == NOTHING
    assert all(0 <= count <= unit.most for unit, count in zip(UNITS, counts, strict=True))


@lawful
@given(delays, delays)
def test_the_longer_of_two_delays_is_never_the_shorter_on_the_ladder(a: timedelta, b: timedelta):
    shorter, longer = sorted([a, b])
    assert digits(shorter) <= digits(longer)


@lawful
@given(delays)
def test_a_delay_enters_at_its_first_digit(delay: timedelta):
    counts, unit = digits(delay), entrance(delay)
    if unit is None:
        assert delay == NOTHING
    else:
        assert not any(counts[:unit])
        assert counts[unit]


@lawful
@given(delays)
def test_the_key_of_a_delay_is_its_digits_and_its_destination(delay: timedelta):
    *counts, word, task = key_of(delay, "task.sms").split(".")
    assert (tuple(map(int, counts)), word, task) == (digits(delay), "task", "sms")


@settings(lawful, max_examples=25)
@given(st.lists(climbable, min_size=1, max_size=20), st.sampled_from(["quorum", "classic"]))
def test_every_message_arrives_once_and_less_than_two_steps_early(
    sent: list[timedelta], queue_type: str
):
    arrived = climbed(sent, "quorum" if queue_type == "quorum" else "classic")
    assert sorted(delay for delay, _ in arrived) == sorted(sent)
    # The clock of the machine is a float: some years away it has steps of its own.
    assert all(-MICROSECOND <= delay - after < 2 * STEP for delay, after in arrived)
    assert [after for _, after in arrived] == sorted(after for _, after in arrived)
