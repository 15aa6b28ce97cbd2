"""Tokens: the one message that travels round a loop, and how it looks on the wire.

A token on the wire is an AMQP message with a JSON object as its body. A program in any language can
read it, make one, and take part.

====================================  =====================================================
property or header                    holds
====================================  =====================================================
message_id                            ``{namespace}/{loop}/{seq}/{attempt}``
content_type                          ``application/json``
type                                  ``scheduler.token``
scheduler-lead-ms                     how long before its time it leaves its timer; none: not
traceparent, tracestate               of the run before, where it was traced
====================================  =====================================================

Nobody but its receiver looks for the rest, so it is in the body: brokers parse headers at each hop.

====================================  =====================================================
member of the body                    holds
====================================  =====================================================
version                               1, the version of this format
namespace, task, key                  whose token it is; the key is empty for the task's own loop
epoch, life                           the epoch that it is of, and that of its loop's last start
first                                 true: it is the first of its epoch, made by no run; else none
seq                                   how many ticks of the loop have been settled before this one
attempt                               how many attempts of this tick have failed
state                                 armed, paused, done or replay
scheduled_at_ms                       nominal time of the tick, milliseconds since the Unix epoch
due_at_ms                             when it is due: the tick with its jitter, or a retry
previous_at_ms                        nominal time of the tick before; none: this is the first
reason                                why it is paused
schedule                              see `scheduler.timing.schedules`
args                                  the arguments of the task
carry                                 what the run before handed on
act                                   what was done to it by somebody else than a run: the ``verb``,
                                      when (``at_ms``), and ``by`` whom
last                                  the run before, which the journal records: its ``outcome``,
                                      nominal time (``scheduled_at_ms``), ``started_at_ms``,
                                      ``duration_ms``, and its ``error``, in a line
====================================  =====================================================
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple, cast

from pydantic import BaseModel, ConfigDict, Field

from scheduler.errors import ScheduleError, Undecodable
from scheduler.protocol.epochs import Position, Verb
from scheduler.protocol.messages import (
    FORMAT_VERSION,
    LEAD,
    MOST_COUNTED,
    Message,
    compact_json,
    parsed,
    parsed_json,
    trace_of,
)
from scheduler.timing.durations import MILLISECOND, milliseconds
from scheduler.timing.moments import (
    LATEST_MS,
    milliseconds_since_epoch,
    moment_of,
    optional_milliseconds,
    optional_moment,
)
from scheduler.timing.schedules import Schedule, from_wire, to_wire

TOKEN_TYPE = "scheduler.token"


class LoopId(NamedTuple):
    """A task, and a key where the task has many loops."""

    task: str
    key: str = ""

    def __str__(self) -> str:
        return f"{self.task}.{self.key}" if self.key else self.task


class State(StrEnum):
    """Say what a token is for.

    An armed one travels and is due at its time. The other two that runs make wait nowhere, only the
    journal hears of them: paused, when a run has stopped its loop, and done, after the run of a
    named one-off. A replay is a parked tick that an operator runs once more, apart from its loop:
    it has no successor, and its epoch means nothing.
    """

    ARMED = "armed"
    PAUSED = "paused"
    DONE = "done"
    REPLAY = "replay"


@dataclass(frozen=True, slots=True)
class Act:
    """An operator's, or supervision's, doing.

    Attributes:
        by: who did it; empty: that was not told.
    """

    verb: Verb
    at: datetime
    by: str = ""


class Ending(StrEnum):
    """How a run ended."""

    SUCCEEDED = "succeeded"
    RETRIED = "retried"
    ESCALATED = "escalated"
    STOPPED = "stopped"
    SKIPPED = "skipped"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class LastRun:
    """The run that was settled when this token was made."""

    ending: Ending
    scheduled_at: datetime
    started_at: datetime
    duration: timedelta
    error: str | None = None

    @property
    def late(self) -> timedelta:
        """How long after its nominal time it started."""
        return self.started_at - self.scheduled_at


@dataclass(frozen=True, slots=True)
class Token:
    """The one message that travels round a loop.

    Attributes:
        scheduled_at: nominal time of the tick.
        due_at: when the wait ends. Before the nominal time only when an operator triggered it.
        epoch: the epoch that it is of.
        life: the epoch of its loop's last start.
        first: whether it is the first of its epoch, made by no run (`scheduler.protocol.epochs`).
        seq: how many ticks of the loop have been settled before this one.
        attempt: how many attempts of this tick have failed.
        carry: what the run before handed on.
        reason: why it is paused.
        previous_at: nominal time of the tick before this one.
        act: what made this token, where it was not the run before.
        trace: headers by which the run before can be found in a trace
            (https://www.w3.org/TR/trace-context/).
    """

    loop: LoopId
    schedule: Schedule
    scheduled_at: datetime
    due_at: datetime
    epoch: int = 0
    life: int = 0
    first: bool = False
    seq: int = 0
    attempt: int = 0
    state: State = State.ARMED
    args: Mapping[str, Any] = field(default_factory=dict[str, Any])
    carry: Any = None
    reason: str | None = None
    previous_at: datetime | None = None
    last: LastRun | None = None
    act: Act | None = None
    trace: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def rests(self) -> bool:
        """Return whether it waits nowhere: only the journal hears of it."""
        return self.state in (State.PAUSED, State.DONE)

    @property
    def triggered(self) -> bool:
        """Whether an operator had it run before its time."""
        return self.due_at < self.scheduled_at

    @property
    def position(self) -> Position:
        """Where it stands among its loop's tokens."""
        return Position(self.epoch, self.seq, self.attempt, joined=not self.first)


def encode(token: Token, namespace: str, *, lead: timedelta = timedelta(0)) -> Message:
    """Return the message of a token.

    Args:
        lead: how long before its time it leaves the timers.
    """
    headers: dict[str, Any] = dict(token.trace)
    if lead:
        headers[LEAD] = milliseconds(lead)
    return Message(
        body=compact_json(_wire_of(token, namespace)),
        headers=headers,
        content_type="application/json",
        message_id=f"{namespace}/{token.loop}/{token.seq}/{token.attempt}",
        type=TOKEN_TYPE,
    )


def is_token(message: Message) -> bool:
    """Whether a message is, or claims to be, a token."""
    return message.type == TOKEN_TYPE


def claims_of(message: Message) -> Mapping[str, Any]:
    """What a message that claims to be a token says, unchecked; nothing, where it says nothing."""
    try:
        body = parsed_json(message.body) if is_token(message) else None
    except Undecodable:
        return {}
    return cast(dict[str, Any], body) if isinstance(body, dict) else {}


def decode(message: Message, namespace: str) -> Token:
    """The token of a message.

    Raises:
        Undecodable: it is not a token of this format and namespace; the message says why.
    """
    if not is_token(message):
        raise Undecodable(f"It is no token: its type is {message.type!r}, not {TOKEN_TYPE!r}.")
    wire = parsed(_Wire, message.body, "token")
    if wire.namespace != namespace:
        raise Undecodable(
            f"The message belongs to namespace {wire.namespace!r}, this is {namespace!r}."
        )
    try:
        return Token(
            loop=LoopId(wire.task, wire.key),
            schedule=from_wire(wire.schedule),
            epoch=wire.epoch,
            life=wire.life,
            first=wire.first,
            scheduled_at=moment_of(wire.scheduled_at_ms),
            due_at=moment_of(wire.due_at_ms),
            seq=wire.seq,
            attempt=wire.attempt,
            state=wire.state,
            args=wire.args,
            carry=wire.carry,
            reason=wire.reason,
            previous_at=optional_moment(wire.previous_at_ms),
            last=None if wire.last is None else wire.last.run,
            act=None if wire.act is None else wire.act.act,
            trace=trace_of(message.headers),
        )
    except (ScheduleError, ValueError, OverflowError) as error:
        raise Undecodable(f"The message cannot be understood: {error}") from None


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class _LastRun(_Strict):
    outcome: Ending = Field(strict=False)
    scheduled_at_ms: int = Field(ge=0, le=LATEST_MS)
    started_at_ms: int = Field(ge=0, le=LATEST_MS)
    duration_ms: int = Field(ge=0, le=LATEST_MS)
    error: str | None = None

    @property
    def run(self) -> LastRun:
        return LastRun(
            ending=self.outcome,
            scheduled_at=moment_of(self.scheduled_at_ms),
            started_at=moment_of(self.started_at_ms),
            duration=timedelta(milliseconds=self.duration_ms),
            error=self.error,
        )


class _Act(_Strict):
    verb: Verb = Field(strict=False)
    at_ms: int = Field(ge=0, le=LATEST_MS)
    by: str = ""

    @property
    def act(self) -> Act:
        return Act(self.verb, moment_of(self.at_ms), self.by)


class _Wire(_Strict):
    version: int = Field(ge=1, le=1)
    namespace: str
    task: str = Field(min_length=1)
    key: str = ""
    epoch: int = Field(ge=0, le=MOST_COUNTED)
    life: int = Field(ge=0, le=MOST_COUNTED)
    first: bool = False
    seq: int = Field(ge=0, le=MOST_COUNTED)
    attempt: int = Field(ge=0, le=MOST_COUNTED)
    state: State = Field(strict=False)
    scheduled_at_ms: int = Field(ge=0, le=LATEST_MS)
    due_at_ms: int = Field(ge=0, le=LATEST_MS)
    previous_at_ms: int | None = Field(default=None, ge=0, le=LATEST_MS)
    reason: str | None = None
    schedule: dict[str, Any]
    args: dict[str, Any] = {}
    carry: Any = None
    act: _Act | None = None
    last: _LastRun | None = None


def _wire_of(token: Token, namespace: str) -> dict[str, Any]:
    always = {
        "version": FORMAT_VERSION,
        "namespace": namespace,
        "task": token.loop.task,
        "key": token.loop.key,
        "epoch": token.epoch,
        "life": token.life,
        "seq": token.seq,
        "attempt": token.attempt,
        "state": token.state,
        "scheduled_at_ms": milliseconds_since_epoch(token.scheduled_at),
        "due_at_ms": milliseconds_since_epoch(token.due_at),
        "schedule": to_wire(token.schedule),
        "args": token.args,
        "carry": token.carry,
    }
    at_times = {
        "first": token.first or None,
        "previous_at_ms": optional_milliseconds(token.previous_at),
        "reason": token.reason,
        "act": _wire_of_act(token.act),
        "last": _wire_of_run(token.last),
    }
    return always | {name: value for name, value in at_times.items() if value is not None}


def _wire_of_act(act: Act | None) -> dict[str, Any] | None:
    if act is None:
        return None
    wire = {"verb": act.verb, "at_ms": milliseconds_since_epoch(act.at)}
    return wire | {"by": act.by} if act.by else wire


def _wire_of_run(last: LastRun | None) -> dict[str, Any] | None:
    if last is None:
        return None
    wire = {
        "outcome": last.ending,
        "scheduled_at_ms": milliseconds_since_epoch(last.scheduled_at),
        "started_at_ms": milliseconds_since_epoch(last.started_at),
        "duration_ms": last.duration // MILLISECOND,
    }
    return wire if last.error is None else wire | {"error": last.error}
