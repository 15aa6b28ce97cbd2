import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from scheduler import Cron, Scheduler
from scheduler.errors import ScheduleError, UsageError
from scheduler.tasks.retries import Reject, Retry, RetryLater, StopLoop

STEADY = 0.5
"""The chance that leaves a wait as it is."""


@Scheduler("retries").task
def run() -> None: ...


def seconds(retry: Retry, attempt: int, chance: float = STEADY) -> float:
    delay = retry.delay_after(attempt, ValueError(), chance)
    assert delay is not None
    return delay.total_seconds()


@pytest.mark.parametrize(
    ("make", "options", "told"),
    [
        (Retry, {"max": 3}, "Retry takes no max=; it takes retries=, delays=, "),
        (Cron, {}, "Cron cannot be called like this: missing .* 'expression'"),
        (run.options, {"dedline": "5s"}, r"options takes no dedline=; did you mean deadline=\?"),
    ],
)
def test_an_unknown_option_is_refused_with_the_known_ones(
    make: Callable[..., object], options: dict[str, Any], told: str
):
    with pytest.raises(UsageError, match=f"^{told}"):
        make(**options)


def test_delays_are_taken_in_order_and_the_last_repeats():
    retry = Retry(5, delays=["1s", "10s", timedelta(minutes=1)], jitter=0)
    assert [seconds(retry, attempt) for attempt in range(5)] == [1, 10, 60, 60, 60]
    assert retry.delay_after(5, ValueError(), STEADY) is None
    assert Retry(0).delay_after(0, RetryLater("1s"), STEADY) is None


def test_exponential_waits_grow_up_to_the_maximum():
    retry = Retry(6, initial="1s", multiplier=2, maximum="10s", jitter=0)
    waits = [seconds(retry, attempt) for attempt in range(6)]
    assert waits == pytest.approx([1, 2, 4, 8, 10, 10])  # pyright: ignore[reportUnknownMemberType]


@pytest.mark.parametrize("multiplier", [1.6, 1000])
def test_the_ten_thousandth_attempt_does_not_overflow(multiplier: float):
    retry = Retry(20_000, multiplier=multiplier, jitter=0)
    assert seconds(retry, 10_000) == 120


@pytest.mark.parametrize(("chance", "wait"), [(0.0, 8), (0.25, 9), (0.5, 10), (0.75, 11)])
def test_jitter_spreads_a_wait_evenly_around_its_length(chance: float, wait: float):
    assert seconds(Retry(1, delays=["10s"], jitter=0.2), 0, chance) == wait


class Transient(ConnectionError):
    pass


@pytest.mark.parametrize(
    ("error", "delay"),
    [
        (Transient(), timedelta(seconds=0.8)),
        (TimeoutError(), None),
        (ValueError(), None),
        (asyncio.CancelledError(), None),  # no exception of the program
        (None, timedelta(seconds=0.8)),
        # A task may name the delay itself, or rule out another attempt.
        (RetryLater("7m"), timedelta(minutes=7)),
        (Reject("bad input"), None),
        (StopLoop(), None),
    ],
)
def test_only_named_errors_are_retried(error: BaseException | None, delay: timedelta | None):
    retry_on = OSError, Reject, StopLoop
    retry = Retry(delays=["1s"], jitter=0.2, retry_on=retry_on, give_up_on=(TimeoutError,))
    assert retry.delay_after(0, error, chance=0) == delay
    assert retry.delay_after(3, error, STEADY) is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"retries": -1}, "retries: expected a whole number of at least 0, got: -1"),
        ({"retries": True}, "retries: expected a whole number"),
        ({"delays": []}, "delays: expected a list of durations with at least one"),
        ({"delays": "10s"}, "delays: expected a list of durations"),
        ({"delays": ["1s", "soon"]}, r"delays\[1\]: expected a number and a unit"),
        ({"delays": [timedelta(seconds=-1)]}, r"delays\[0\]: expected a duration between"),
        ({"delays": ["1s"], "initial": "2s"}, "delays= cannot be combined with initial="),
        ({"delays": ["1s"], "maximum": "1h"}, "delays= cannot be combined with initial="),
        ({"initial": "0s"}, "expected 0s < initial <= maximum, got: initial=0s, maximum=2m"),
        ({"initial": "3m"}, "expected 0s < initial <= maximum, got: initial=3m, maximum=2m"),
        ({"multiplier": 0.5}, "multiplier: expected a number from 1 to 1000, got: 0.5"),
        ({"multiplier": 10**400}, "multiplier: expected a number from 1 to 1000"),
        ({"jitter": 1.1}, "jitter: expected a number from 0 to 1, got: 1.1"),
        ({"jitter": float("nan")}, "jitter: expected a number from 0 to 1"),
        ({"retry_on": (ValueError, "OSError")}, "retry_on: expected a tuple of exception types"),
        ({"retry_on": ValueError}, r"such as \(ConnectionError,\)"),
        ({"give_up_on": (int,)}, "give_up_on: expected a tuple of exception types"),
    ],
)
def test_an_invalid_policy_is_refused(arguments: dict[str, Any], message: str):
    with pytest.raises(ScheduleError, match=message):
        Retry(**arguments)


@pytest.mark.parametrize(
    ("retry", "phrase"),
    [
        (Retry(0), "no retries"),
        (Retry(1, delays=["1s"]), "1 retry, after 1s"),
        (Retry(3, delays=["1s", "10s", "1m"]), "3 retries, after 1s, 10s, 1m"),
        (Retry(), "3 retries, after 1s x 1.6 up to 2m"),
    ],
)
def test_a_policy_describes_itself(retry: Retry, phrase: str):
    assert retry.describe() == phrase


def test_a_task_gives_the_reason_of_its_outcome():
    for kind in (Reject, StopLoop):
        assert str(kind("bad order")) == kind("bad order").reason == "bad order"
        assert kind(ValueError("bad order")).reason == "bad order"
        assert kind(5).reason == "5"
    later = RetryLater("10m", "busy")
    assert (later.delay, later.reason, str(later)) == (timedelta(minutes=10), "busy", "busy")


class Undocumented(Reject): ...


def test_an_outcome_without_a_reason_names_itself():
    assert (StopLoop().reason, RetryLater("1s").reason) == ("", "")
    assert str(StopLoop()) == "The task asked for its loop to be paused."
    assert str(Undocumented()).startswith("The task rejected its input: no retry can help")


@pytest.mark.parametrize("delay", ["soon", "-1s"])
def test_a_delay_must_be_a_duration(delay: Any):
    with pytest.raises(ScheduleError, match="^delay: expected"):
        RetryLater(delay)
