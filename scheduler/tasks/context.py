"""Describe the current run."""

import json
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Generic, NamedTuple

from typing_extensions import TypeVar  # typing's takes a default from Python 3.13 on

from scheduler.errors import CarryError, UsageError
from scheduler.protocol.messages import Message, one_line
from scheduler.timing.durations import Duration, parse_duration, shown

CARRY_LIMIT = 64 * 1024

current_run: ContextVar[tuple[str, int | str] | None] = ContextVar("current_run", default=None)
"""The loop and seq, or task and message ID, of the current run."""


State = TypeVar("State", default=Any)


class Progress(NamedTuple):
    """Report the progress of a run."""

    fraction: float
    text: str = ""


@dataclass(slots=True)
class Context(Generic[State]):
    """Describe one run of a task: `Context[Pool]` if the app's lifespan yields a `Pool`.

    Attributes:
        task: the task's name.
        arguments: the arguments of its function, by name, without this one.
        loop: the loop's name; with `seq` the idempotency key of the tick, the same for each retry.
        key: which of the task's loops this is; empty for the task's own.
        seq: how many ticks of the loop were settled before this one.
        scheduled_at: the nominal time of the tick this run stands for.
        previous_at: the nominal time of the run before; None for the first.
        started_at: when this run started.
        attempt: which attempt at this tick, or call, this is, counted from 1.
        redelivered: whether the token was delivered before, so that part of it may have run.
        deadline: when the run is cancelled; see `extend`.
        message: a copy of the message that asked for this run, with its headers and properties.
        routing_key: the key it was published with first.
        carried: the value that the last successful run carried; None at first.
        state: the value that the app's lifespan yielded; None without one.
    """

    task: str
    arguments: Mapping[str, Any]
    loop: str
    key: str
    seq: int
    scheduled_at: datetime
    previous_at: datetime | None
    started_at: datetime
    attempt: int
    redelivered: bool
    deadline: datetime
    carried: Any
    message: Message
    routing_key: str
    state: State
    _extend: Callable[[timedelta], datetime] = field(repr=False)
    _hand_on: Callable[[Any], None] = field(repr=False)
    _note_progress: Callable[[Progress], None] = field(default=lambda _: None, repr=False)

    def carry(self, value: Any) -> None:
        """Carry a value to the next run, if this one returns: a failed run changes nothing.

        Args:
            value: any JSON value of at most 64 KiB.

        Raises:
            CarryError: the value is not JSON, or too large.
        """
        try:
            text = json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise CarryError(
                f"The carried value must be JSON: {error}. Carry a string, number, list or dict, "
                "or store the value elsewhere."
            ) from None
        if len(text.encode()) > CARRY_LIMIT:
            raise CarryError(
                f"The carried value is {len(text.encode())} bytes of JSON; at most 64 KiB are "
                "allowed. Store the value elsewhere, and carry its location."
            )
        self._hand_on(json.loads(text))

    def extend(self, timeout: Duration) -> None:
        """Move the deadline of this run to a time from now."""
        self.deadline = self._extend(parse_duration(timeout, "timeout"))

    def progress(self, fraction: float, text: str = "") -> None:
        """Report the progress of this run, for `scheduler ps`.

        Call it as often as you like: it costs next to nothing unless an operator asks.

        Args:
            fraction: of the whole, from 0 to 1.
            text: a few words, such as "page 4 of 10".

        Raises:
            UsageError: the fraction is not from 0 to 1.
        """
        if not isinstance(fraction, int | float) or not 0 <= fraction <= 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(
                f"The progress of a run must be a fraction from 0 to 1, such as 0.4, got "
                f"{shown(fraction)}."
            )
        # `str` also makes a plain text of a subclass, which may not be able to travel.
        self._note_progress(Progress(float(fraction), one_line(str(text))))
