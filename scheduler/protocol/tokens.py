"""Encode, decode and address tokens: the one message that travels round a loop.

A token on the wire is an AMQP message with a JSON object as its body. A program in any language can
read it, make one, and take part.

====================================  =====================================================
property or header                    holds
====================================  =====================================================
message_id                            ``{namespace}/{loop}/{seq}/{attempt}``
content_type                          ``application/json``
type                                  ``scheduler.token``
scheduler-lead-ms                     how long before its time it leaves its timer; none: not
scheduler-moved                       true: it was moved from another queue, as if redelivered
traceparent, tracestate               of the run before, if it was traced
====================================  =====================================================

The rest is in the body, for the receiver alone: brokers parse headers at each hop.

====================================  =====================================================
member of the body                    holds
====================================  =====================================================
version                               1, the version of this format
namespace, task, key                  its loop; the key is empty for the task's own loop
epoch, life                           its epoch, and that of its loop's last start
first                                 whether it is the first of its epoch, made by no run
former                                of a first one: the former tasks of its loop, if it was
                                      renamed
seq                                   how many ticks of the loop have been settled before this one
attempt                               how many attempts of this tick have failed
returns                               how often it came too early, and returned; none: never
state                                 armed, paused or done; replay: a parked tick that runs once
                                      more, apart from its loop
scheduled_at_ms                       nominal time of the tick, milliseconds since the Unix epoch
due_at_ms                             when it is due: the tick with its jitter, or a retry
previous_at_ms                        nominal time of the tick before; none: this is the first
reason                                why it is paused
schedule                              see `scheduler.timing.schedules`
args                                  the arguments of the task
carry                                 the value carried by the run before
act                                   the operation that made it, if not a run: the ``verb``,
                                      when (``at_ms``), and ``by`` whom
last                                  the run before, which the journal records: its ``outcome``,
                                      nominal time (``scheduled_at_ms``), ``started_at_ms``,
                                      ``duration_ms``, ``attempt``, counted from 1, and its
                                      ``error``, in a line
====================================  =====================================================
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any, ClassVar, NamedTuple, cast
from zlib import crc32

from pydantic import ConfigDict, Field, TypeAdapter
from pydantic_core import core_schema

from scheduler.errors import ScheduleError, Undecodable
from scheduler.protocol.epochs import Position, Verb
from scheduler.protocol.hatchery import UNITS
from scheduler.protocol.messages import (
    FORMAT_VERSION,
    LEAD,
    PREFIX,
    WIRE,
    Count,
    Flag,
    Flattened,
    Message,
    Moment,
    Span,
    compact_json,
    parsed_json,
    trace_of,
    travelling,
    validated,
)
from scheduler.timing.durations import shown
from scheduler.timing.moments import milliseconds
from scheduler.timing.schedules import Schedule, from_wire, to_wire

TOKEN_TYPE = "scheduler.token"
MOVED = f"{PREFIX}moved"
Planned = Annotated[Schedule, travelling(from_wire, core_schema.dict_schema(), to_wire)]
"""A schedule on the wire."""

WHOLE = "*"
"""The key that stands for all messages of a task, calls included. No loop has this key."""
NO_KEYS = "", WHOLE


class LoopId(NamedTuple):
    """Name a loop: a task, and a key if the task has many loops."""

    task: Annotated[str, Field(min_length=1)]
    key: Annotated[str, Field(max_length=255)] = ""

    def __str__(self) -> str:
        return self.task if self.key in NO_KEYS else f"{self.task}.{self.key}"

    @property
    def is_whole(self) -> bool:
        """Return whether it stands for a whole task rather than a loop."""
        return self.key == WHOLE


LOOP_KEY, REST_KEY = "loop.", "rest."
"""The beginnings of the routing keys of tokens: of those that travel, and of those at rest."""
SLICES = 16
"""The parts that the loops of a task are in: a shard of its queue serves some of them."""


def loop_named_by(key: str) -> LoopId | None:
    """Return the loop whose tokens have this routing key, whatever their wait; None: no loop."""
    prefix, *parts = key.split(".", len(UNITS) + 3)
    if f"{prefix}." != LOOP_KEY or len(parts) <= len(UNITS) + 1:
        return None
    return LoopId(parts[0], ".".join(parts[len(UNITS) + 2 :]))


def slice_of(loop: LoopId) -> int:
    """Return the slice of a loop, by its key alone: a renamed task has the same slices."""
    return crc32(loop.key.encode()) % SLICES


def token_key(loop: LoopId, digits: str) -> str:
    """Build the routing key of a token that waits for the time of these digits."""
    key = f"{LOOP_KEY}{loop.task}.{digits}.{slice_of(loop)}"
    return f"{key}.{loop.key}" if loop.key else key


def rest_key(loop: LoopId) -> str:
    """Build the routing key of a token that only goes to the journal."""
    return f"{REST_KEY}{loop}"


class State(StrEnum):
    """Name the purposes of a token.

    An armed one travels and is due at its time. The other two only go to the journal: paused, when
    a run has stopped its loop, and done, after the run of a named one-off.
    """

    ARMED = "armed"
    PAUSED = "paused"
    DONE = "done"


REPLAY = "replay"
"""The state of a `Replay` on the wire."""


@dataclass(frozen=True, slots=True)
class Act:
    """Record an operation of an operator or of supervision.

    Attributes:
        by: who did it; empty: unknown.
    """

    __pydantic_config__: ClassVar[ConfigDict] = WIRE

    verb: Verb
    at: Moment
    by: str = ""


class Ending(StrEnum):
    """Name how a run ended."""

    SUCCEEDED = "succeeded"
    RETRIED = "retried"
    ESCALATED = "escalated"
    STOPPED = "stopped"
    SKIPPED = "skipped"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class LastRun:
    """Record the run that was settled when this token was made."""

    __pydantic_config__: ClassVar[ConfigDict] = WIRE

    ending: Ending
    scheduled_at: Moment
    started_at: Moment
    duration: Span
    error: str | None = None
    attempt: Count = 1

    @property
    def late(self) -> timedelta:
        """Return how long after its nominal time it started."""
        return self.started_at - self.scheduled_at


@dataclass(frozen=True, slots=True)
class Token:
    """Hold the one message that travels round a loop.

    Its fields are the members of its body, and `trace`, the headers by which the run before can be
    found in a trace (https://www.w3.org/TR/trace-context/).
    """

    __pydantic_config__: ClassVar[ConfigDict] = WIRE

    loop: Annotated[LoopId, Flattened()]
    schedule: Planned
    scheduled_at: Moment
    due_at: Moment
    epoch: Count = 0
    life: Count = 0
    first: Flag = False
    former: tuple[str, ...] | None = None
    seq: Count = 0
    attempt: Count = 0
    returns: Count | None = None
    state: State = State.ARMED
    args: Mapping[str, Any] = field(default_factory=dict[str, Any])
    carry: Any = None
    reason: str | None = None
    previous_at: Moment | None = None
    last: LastRun | None = None
    act: Act | None = None
    trace: Annotated[Mapping[str, str], Field(exclude=True)] = field(default_factory=dict[str, str])

    @property
    def rests(self) -> bool:
        """Return whether it only goes to the journal."""
        return self.state in (State.PAUSED, State.DONE)

    @property
    def names(self) -> list[LoopId]:
        """Return the current and former names of its loop, the current one first."""
        return [self.loop, *(LoopId(task, self.loop.key) for task in self.former or ())]

    @property
    def triggered(self) -> bool:
        """Return whether an operator had it run before its time."""
        return self.due_at < self.scheduled_at

    @property
    def position(self) -> Position:
        """Return its position among its loop's tokens."""
        return Position(self.epoch, self.seq, self.attempt, not self.first, self.returns or 0)


@dataclass(frozen=True, slots=True)
class Replay(Token):
    """Hold a parked tick that an operator runs once more, apart from its loop.

    It has no successor, and its epoch means nothing.
    """

    @classmethod
    def of(cls, token: Token) -> "Replay":
        """Return the replay of a token's tick."""
        return cls(**{each.name: getattr(token, each.name) for each in fields(token)})


_TOKEN: TypeAdapter[Token] = TypeAdapter(Token)
_REPLAY: TypeAdapter[Token] = TypeAdapter(Replay)
_REQUIRED = dict.fromkeys(("version", "namespace", "epoch", "life", "seq", "attempt", "state"))
"""The fields that have a default in a token, and none on the wire."""


def encode(token: Token, namespace: str, *, lead: timedelta = timedelta(0)) -> Message:
    """Return the message of a token.

    Args:
        lead: how long before its time it leaves the timers.
    """
    headers: dict[str, Any] = dict(token.trace)
    if lead:
        headers[LEAD] = milliseconds(lead)
    members = _TOKEN.dump_python(token, by_alias=True, exclude_none=True)
    body = {"version": FORMAT_VERSION, "namespace": namespace, **members.pop("loop"), **members}
    if isinstance(token, Replay):
        body["state"] = REPLAY
    return Message(
        body=compact_json(body),
        headers=headers,
        content_type="application/json",
        message_id=f"{namespace}/{token.loop}/{token.seq}/{token.attempt}",
        type=TOKEN_TYPE,
    )


def is_token(message: Message) -> bool:
    """Return whether a message claims to be a token."""
    return message.type == TOKEN_TYPE


def claims_of(message: Message) -> Mapping[str, Any]:
    """Return the unchecked claims of a message that claims to be a token; empty if it has none."""
    try:
        body = parsed_json(message.body) if is_token(message) else None
    except Undecodable:
        return {}
    return cast(dict[str, Any], body) if isinstance(body, dict) else {}


def decode(message: Message, namespace: str) -> Token:
    """Decode the token of a message.

    Raises:
        Undecodable: it is not a token of this format and namespace; the message says why.
    """
    if not is_token(message):
        raise Undecodable(f"Not a token: its type is {message.type!r}, not {TOKEN_TYPE!r}.")
    body, kind = parsed_json(message.body), _TOKEN
    if isinstance(body, dict):
        claims = cast(dict[str, Any], body)
        if not claims.keys() >= _REQUIRED.keys():
            missing = next(name for name in _REQUIRED if name not in claims)
            raise Undecodable(f"The token cannot be understood: {missing}: Field required.")
        if (version := claims["version"]) != FORMAT_VERSION or type(version) is not int:
            raise Undecodable(f"The token cannot be understood: version: got {shown(version)}.")
        if (other := claims["namespace"]) != namespace:
            raise Undecodable(
                f"The message belongs to namespace {shown(other)}, this is {namespace!r}."
            )
        body = {**claims, "loop": claims, "trace": trace_of(message.headers)}
        if claims["state"] == REPLAY:
            kind, body["state"] = _REPLAY, State.ARMED
    try:
        return validated(kind, body, "token")
    except ScheduleError as error:
        raise Undecodable(f"The message cannot be understood: {error}") from None
