"""Tokens: the one message that travels round a loop, and how it looks on the wire.

A token on the wire is an AMQP message with flat headers, all of them strings or integers, and a
JSON body. A program in any language can read it, make one, and take part.

====================================  =====================================================
property or header                    holds
====================================  =====================================================
message_id                            ``{namespace}/{loop}/{seq}/{attempt}``
content_type                          ``application/json``
type                                  ``scheduler.token``
expiration                            the wait, in milliseconds; none: until somebody acts
scheduler-version                     1, the version of this format
scheduler-namespace, -task, -key      whose token it is; the key is empty for the task's own loop
scheduler-epoch, -life                the epoch that it is of, and that of its loop's last start
scheduler-first                       1: it is the first of its epoch, made by no run; else none
scheduler-known-until-ms              of a first one: what the journal heard later is not in it
scheduler-seq                         how many ticks of the loop have been settled before this one
scheduler-attempt                     how many attempts of this tick have failed
scheduler-state                       armed, paused or replay
scheduler-scheduled-at-ms             nominal time of the tick, milliseconds since the Unix epoch
scheduler-due-at-ms                   when it is due: the tick with its jitter, or a retry
scheduler-lead-ms                     how long before that it leaves its slot; none: not before
scheduler-previous-at-ms              nominal time of the tick before; none: this is the first
scheduler-reason                      why it is paused
scheduler-act, -acted-at-ms           what was done to it by somebody else than a run, and when
scheduler-last-outcome                how the run before ended: the journal's record
scheduler-last-scheduled-at-ms        its nominal time
scheduler-last-started-at-ms          when it started
scheduler-last-duration-ms            how long it took
scheduler-last-error                  its error, in a line
====================================  =====================================================

The body is an object: ``schedule`` (see `scheduler.timing.schedules`), ``args`` (the arguments of
the task) and ``carry`` (what the run before handed on).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from scheduler.errors import ScheduleError, Undecodable
from scheduler.protocol.epochs import Position, Verb
from scheduler.protocol.messages import (
    FORMAT_VERSION,
    MOST_COUNTED,
    PREFIX,
    Message,
    our_headers,
    parsed_json,
    trace_of,
    validated,
)
from scheduler.timing.durations import milliseconds
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
    """What a waiting token is: due at its time, or held by an operator.

    A replay is a parked tick that an operator runs once more, beside its loop: it has no
    successor, and its epoch means nothing.
    """

    ARMED = "armed"
    PAUSED = "paused"
    REPLAY = "replay"


@dataclass(frozen=True, slots=True)
class Act:
    """An operator's, or supervision's, doing."""

    verb: Verb
    at: datetime


class Ending(StrEnum):
    """How a run ended."""

    SUCCEEDED = "succeeded"
    RETRIED = "retried"
    ESCALATED = "escalated"
    STOPPED = "stopped"
    SKIPPED = "skipped"


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
        epoch: the epoch that it is of; 0 for what was made before there were epochs.
        life: the epoch of its loop's last start.
        first: whether it is the first of its epoch, made by no run (`scheduler.protocol.epochs`).
        known: of a first one, whether its creator knew what became of its loop (`is_last`).
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
    known: bool = False
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
    def triggered(self) -> bool:
        """Whether an operator had it run before its time."""
        return self.due_at < self.scheduled_at

    @property
    def position(self) -> Position:
        """Where it stands among its loop's tokens."""
        return Position(self.epoch, self.seq, self.attempt, joined=not self.first)


def encode(
    token: Token,
    namespace: str,
    *,
    expiration: timedelta | None,
    lead: timedelta = timedelta(0),
) -> Message:
    """The message of a token, to wait this long in a queue (None: until somebody acts).

    Args:
        lead: how long before its time that ends.
    """
    headers = {"version": FORMAT_VERSION, "namespace": namespace, **_headers_of(token)}
    if lead:
        headers["lead-ms"] = milliseconds(lead)
    body = {"schedule": to_wire(token.schedule), "args": token.args, "carry": token.carry}
    return Message(
        body=json.dumps(body, separators=(",", ":")).encode(),
        headers={**token.trace, **{PREFIX + name: value for name, value in headers.items()}},
        content_type="application/json",
        message_id=f"{namespace}/{token.loop}/{token.seq}/{token.attempt}",
        type=TOKEN_TYPE,
        expiration=expiration,
    )


def is_token(message: Message) -> bool:
    """Whether a message is, or claims to be, a token."""
    return f"{PREFIX}scheduled-at-ms" in message.headers


def decode(message: Message, namespace: str) -> Token:
    """The token of a message.

    Raises:
        Undecodable: it is not a token of this format and namespace; the message says why.
    """
    wire = validated(_Headers, our_headers(message), "headers")
    if wire.namespace != namespace:
        raise Undecodable(
            f"The message belongs to namespace {wire.namespace!r}, this is {namespace!r}."
        )
    body = validated(_Body, parsed_json(message.body), "body")
    try:
        return Token(
            loop=LoopId(wire.task, wire.key),
            schedule=from_wire(body.schedule),
            epoch=wire.epoch,
            life=wire.life,
            first=wire.first > 0,
            known=wire.known > 0,
            scheduled_at=moment_of(wire.scheduled_at_ms),
            due_at=moment_of(wire.due_at_ms),
            seq=wire.seq,
            attempt=wire.attempt,
            state=wire.state,
            args=body.args,
            carry=body.carry,
            reason=wire.reason,
            previous_at=optional_moment(wire.previous_at_ms),
            last=_last_run(wire),
            act=None if wire.act is None else Act(wire.act, moment_of(wire.acted_at_ms)),
            trace=trace_of(message.headers),
        )
    except (ScheduleError, ValueError, OverflowError) as error:
        raise Undecodable(f"The message cannot be understood: {error}") from None


Milliseconds = Field(ge=0, le=LATEST_MS)


class _Headers(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    version: int = Field(ge=1, le=1)
    namespace: str
    task: str = Field(min_length=1)
    key: str = ""
    epoch: int = Field(default=0, ge=0, le=MOST_COUNTED)
    life: int = Field(default=0, ge=0, le=MOST_COUNTED)
    first: int = Field(default=0, ge=0, le=1)
    known: int = Field(default=0, ge=0, le=1)
    seq: int = Field(ge=0, le=MOST_COUNTED)
    attempt: int = Field(ge=0, le=MOST_COUNTED)
    state: State = Field(strict=False)
    scheduled_at_ms: int = Milliseconds
    due_at_ms: int = Milliseconds
    reason: str | None = None
    previous_at_ms: int | None = Field(default=None, ge=0, le=LATEST_MS)
    act: Verb | None = Field(default=None, strict=False)
    acted_at_ms: int = Field(default=0, ge=0, le=LATEST_MS)
    last_outcome: Ending | None = Field(default=None, strict=False)
    last_scheduled_at_ms: int = Field(default=0, ge=0, le=LATEST_MS)
    last_started_at_ms: int = Field(default=0, ge=0, le=LATEST_MS)
    last_duration_ms: int = Field(default=0, ge=0, le=LATEST_MS)
    last_error: str | None = None


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    schedule: dict[str, Any]
    args: dict[str, Any] = {}
    carry: Any = None


def _headers_of(token: Token) -> dict[str, Any]:
    headers = {
        "task": token.loop.task,
        "key": token.loop.key,
        "epoch": token.epoch,
        "life": token.life,
        "first": 1 if token.first else None,
        "known": 1 if token.first and token.known else None,
        "seq": token.seq,
        "attempt": token.attempt,
        "state": token.state.value,
        "scheduled-at-ms": milliseconds_since_epoch(token.scheduled_at),
        "due-at-ms": milliseconds_since_epoch(token.due_at),
        "reason": token.reason,
        "previous-at-ms": optional_milliseconds(token.previous_at),
        **_act_headers(token.act),
        **_last_headers(token.last),
    }
    return {name: value for name, value in headers.items() if value is not None}


def _act_headers(act: Act | None) -> dict[str, Any]:
    if act is None:
        return {}
    return {"act": act.verb.value, "acted-at-ms": milliseconds_since_epoch(act.at)}


def _last_headers(last: LastRun | None) -> dict[str, Any]:
    if last is None:
        return {}
    return {
        "last-outcome": last.ending.value,
        "last-scheduled-at-ms": milliseconds_since_epoch(last.scheduled_at),
        "last-started-at-ms": milliseconds_since_epoch(last.started_at),
        "last-duration-ms": last.duration // timedelta(milliseconds=1),
        "last-error": last.error,
    }


def _last_run(wire: _Headers) -> LastRun | None:
    if wire.last_outcome is None:
        return None
    return LastRun(
        ending=wire.last_outcome,
        scheduled_at=moment_of(wire.last_scheduled_at_ms),
        started_at=moment_of(wire.last_started_at_ms),
        duration=timedelta(milliseconds=wire.last_duration_ms),
        error=wire.last_error,
    )
