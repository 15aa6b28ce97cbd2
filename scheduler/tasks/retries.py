"""Decide when the next attempt is due after a failed one. No I/O: random numbers are arguments.

A task ends its run otherwise than by returning or failing with one of these exceptions::

    NamedOutcome
    ├── RetryLater    try again, after this delay
    ├── Reject        no retry can help: park it
    └── StopLoop      pause this loop
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, TypeAlias, cast

from scheduler.errors import ScheduleError, default_message
from scheduler.spelling import refusing_misnamed
from scheduler.timing.durations import ZERO, Duration, format_duration, parse_duration, shown

ErrorTypes: TypeAlias = tuple[type[BaseException], ...]

_INITIAL = timedelta(seconds=1)
_MULTIPLIER = 1.6
_MAXIMUM = timedelta(minutes=2)


class NamedOutcome(Exception):
    """End a run in a way that the task chose.

    Args:
        reason: one line for the operator: it is logged, and travels with the message.
    """

    reason = ""  # also of a subclass whose `__init__` does not call this one

    def __init__(self, reason: object = "") -> None:
        self.reason = str(reason)
        super().__init__(self.reason or default_message(type(self)))

    def __reduce__(self) -> tuple[Any, ...]:
        return _without_init, (type(self), self.args), vars(self)


def _without_init(kind: type[NamedOutcome], args: tuple[Any, ...]) -> NamedOutcome:
    """Make an outcome that was pickled: `__init__` of a subclass may take other arguments."""
    return kind.__new__(kind, *args)


class RetryLater(NamedOutcome):
    """The task asked to be tried again later.

    It counts as a failed attempt: when no retries are left, the run is escalated.

    Args:
        delay: how long to wait, such as "10m" or a timedelta.
        reason: one line for the operator.

    Raises:
        ScheduleError: the delay is not a duration.
    """

    def __init__(self, delay: Duration, reason: str = "") -> None:
        self.delay: timedelta = parse_duration(delay, "delay")
        super().__init__(reason)


class Reject(NamedOutcome):
    """The task rejected its input: no retry can help, so it is parked at once."""


class StopLoop(NamedOutcome):
    """The task asked for its loop to be paused."""


@dataclass(frozen=True, slots=True, init=False)
class Retry:
    """Limit how often a failed run is retried, and set the wait before each attempt.

    The waits are either stages (`delays`) or grow exponentially: initial, initial x multiplier,
    and so on up to the maximum.

    Args:
        retries: how many attempts may follow the first one; 0: never try again.
        delays: the wait before each retry in turn, such as ["1s", "10s", "1m"]; the last repeats.
        initial: exponential: the first wait.
        multiplier: exponential: what each wait is multiplied by to get the next; 1 to 1000.
        maximum: exponential: no wait grows beyond this (jitter comes on top).
        jitter: each wait is multiplied by a random factor from 1 - jitter to 1 + jitter; 0 to 1.
        retry_on: only errors of these types are tried again.
        give_up_on: errors of these types are never tried again, even if `retry_on` has them.

    Raises:
        ScheduleError: a value is out of range, or stages and exponential growth are mixed.

    The defaults are what the common task queues agree on: 3 retries, 1 s x 1.6 up to 2 min.
    """

    retries: int
    delays: tuple[timedelta, ...] | None
    initial: timedelta
    multiplier: float
    maximum: timedelta
    jitter: float
    retry_on: ErrorTypes
    give_up_on: ErrorTypes

    @refusing_misnamed("Retry", ScheduleError)
    def __init__(
        self,
        retries: int = 3,
        *,
        delays: Sequence[Duration] | None = None,
        initial: Duration = _INITIAL,
        multiplier: float = _MULTIPLIER,
        maximum: Duration = _MAXIMUM,
        jitter: float = 0.2,
        retry_on: ErrorTypes = (Exception,),
        give_up_on: ErrorTypes = (),
    ) -> None:
        values: dict[str, Any] = {
            "retries": _whole("retries", retries),
            "delays": None if delays is None else _stages(delays),
            "initial": parse_duration(initial, "initial"),
            "multiplier": _number("multiplier", multiplier, 1, 1000),
            "maximum": parse_duration(maximum, "maximum"),
            "jitter": _number("jitter", jitter, 0, 1),
            "retry_on": _error_types("retry_on", retry_on),
            "give_up_on": _error_types("give_up_on", give_up_on),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        growth = (self.initial, self.multiplier, self.maximum)
        if delays is not None and growth != (_INITIAL, _MULTIPLIER, _MAXIMUM):
            raise ScheduleError(
                "delays= cannot be combined with initial=, multiplier= or maximum=: "
                "give either the stages or the exponential growth"
            )
        if not ZERO < self.initial <= self.maximum:
            raise ScheduleError(
                "expected 0s < initial <= maximum, got: "
                f"initial={format_duration(self.initial)}, maximum={format_duration(self.maximum)}"
            )

    def delay_after(
        self, attempt: int, error: BaseException | None, chance: float
    ) -> timedelta | None:
        """Return how long to wait before the next attempt; None: do not retry.

        Args:
            attempt: how many attempts had failed before this one; 0 for the first run.
            error: what this attempt raised; None if it failed without an exception.
            chance: a random number in [0, 1), which places the wait within the jitter.

        A `RetryLater` gets exactly the delay it names, whatever `retry_on` says, as long as retries
        are left. `Reject` and `StopLoop` ask for no further attempt.
        """
        if attempt >= self.retries or isinstance(error, Reject | StopLoop):
            return None
        if isinstance(error, RetryLater):
            return parse_duration(error.delay, "delay")
        if error is not None and (
            not isinstance(error, self.retry_on) or isinstance(error, self.give_up_on)
        ):
            return None
        return self._wait(attempt) * (1 - self.jitter + 2 * self.jitter * chance)

    def describe(self) -> str:
        """Describe the policy in one phrase, such as "3 retries, after 1s, 10s, 1m"."""
        if not self.retries:
            return "no retries"
        count = f"{self.retries} {'retry' if self.retries == 1 else 'retries'}"
        if self.delays:
            return f"{count}, after {', '.join(map(format_duration, self.delays))}"
        initial, maximum = format_duration(self.initial), format_duration(self.maximum)
        return f"{count}, after {initial} x {self.multiplier:g} up to {maximum}"

    def _wait(self, attempt: int) -> timedelta:
        if self.delays:
            return self.delays[min(attempt, len(self.delays) - 1)]
        # As logarithms, because multiplier ** 10_000 is no float.
        growth = min(attempt * math.log(self.multiplier), math.log(self.maximum / self.initial))
        return self.initial * math.exp(growth)


def _stages(delays: object) -> tuple[timedelta, ...]:
    if not isinstance(delays, Sequence) or isinstance(delays, str) or not delays:
        raise ScheduleError(
            'delays: expected a list of durations with at least one, such as ["1s", "10s", "1m"], '
            f"got: {shown(cast('object', delays))}; for no retries at all write Retry(0)"
        )
    stages = cast("Sequence[Duration]", delays)
    return tuple(parse_duration(stage, f"delays[{index}]") for index, stage in enumerate(stages))


def _whole(name: str, value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise ScheduleError(f"{name}: expected a whole number of at least 0, got: {shown(value)}")


def _number(name: str, value: object, low: float, high: float) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high:
        return value
    raise ScheduleError(f"{name}: expected a number from {low:g} to {high:g}, got: {shown(value)}")


def _error_types(name: str, types: object) -> ErrorTypes:
    entries = cast("tuple[object, ...]", types)
    if isinstance(types, tuple) and all(
        isinstance(entry, type) and issubclass(entry, BaseException) for entry in entries
    ):
        return cast("ErrorTypes", types)
    raise ScheduleError(
        f"{name}: expected a tuple of exception types, such as (ConnectionError,), "
        f"got: {shown(entries)}"
    )


@dataclass(frozen=True, slots=True)
class Policy:
    """Configure what happens when a task fails, and when a call is too old."""

    retry: Retry
    after_failure: Literal["continue", "pause"] = "continue"
    expired: Literal["park", "drop"] = "park"
