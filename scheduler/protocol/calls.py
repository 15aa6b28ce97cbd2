"""Calls: one-off messages that ask for one run of a task, and how they travel.

A call that we send is an AMQP message with a JSON body, ``{"args": {...}}``, and these headers:

===============================  ==========================================================
property or header               holds
===============================  ==========================================================
message_id                       unique; the same through every delay and retry
content_type, type               ``application/json``, ``scheduler.call``
scheduler-version                1, the version of this format
scheduler-namespace, -task       whose call it is
scheduler-sent-at-ms             when it was sent, milliseconds since the Unix epoch
scheduler-due-at-ms              when its delay ends
scheduler-lead-ms                how long before that it leaves the broker's timers
scheduler-not-before-ms          before which moment no processor runs it; none: of no other delay
                                 than the broker's
scheduler-expires-at-ms          after which moment it is too old to run; none: never
===============================  ==========================================================

A task that subscribes to the exchange of somebody else gets messages of any form. In both cases the
message comes back from a retry as it was, with these headers added. Those of them that only
processors and operators tell of a message are left out where somebody else has set them:

===============================  ==========================================================
scheduler-attempt                how many attempts have failed
scheduler-due-at-ms, -lead-ms    when the next one is due, as above
scheduler-first-failed-at-ms     when the first did
scheduler-exchange, -key         where the message was published first, and with which key
scheduler-user-id                the user who published it, which RabbitMQ accepts from no other
scheduler-replayed-at-ms         when an operator sent it back from its failed queue
===============================  ==========================================================
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field, TypeAdapter

from scheduler.errors import Undecodable
from scheduler.protocol.hatchery import LONGEST
from scheduler.protocol.messages import (
    FORMAT_VERSION,
    PREFIX,
    WIRE,
    Count,
    Message,
    Moment,
    compact_json,
    our_headers,
    own_headers,
    parsed,
    validated,
)
from scheduler.timing.moments import LATEST, LATEST_MS, milliseconds_since_epoch, moment_of

CALL_TYPE = "scheduler.call"
PARKED = f"{PREFIX}parked-"
LEFT_OUT = f"{PREFIX}left-out"
REPLAYED_AT = f"{PREFIX}replayed-at-ms"
ATTEMPT = f"{PREFIX}attempt"
EXCHANGE, KEY = f"{PREFIX}exchange", f"{PREFIX}key"
FIRST_FAILED_AT = f"{PREFIX}first-failed-at-ms"
USER_ID = f"{PREFIX}user-id"
Text = Annotated[str, Field(strict=True)]
CLAIMS = frozenset({ATTEMPT, FIRST_FAILED_AT, EXCHANGE, KEY, USER_ID, REPLAYED_AT, LEFT_OUT})


@dataclass(frozen=True, slots=True)
class Call:
    """A message that asks for one run of a task.

    Attributes:
        message: as it was published first: body, headers and properties.
        args: the arguments, by name; None for a message that is not of our making.
        exchange: where it was published first.
        routing_key: the key it was published with; of one that we delayed, that of its task.
        attempt: how many attempts have failed.
    """

    task: str
    message: Message
    exchange: str
    routing_key: str
    args: Mapping[str, Any] | None = None
    attempt: int = 0
    sent_at: datetime | None = None
    due_at: datetime | None = None
    not_before: datetime | None = None
    expires_at: datetime | None = None
    first_failed_at: datetime | None = None

    @property
    def id(self) -> str:
        return self.message.message_id or ""


def task_key(task: str) -> str:
    """The routing key of a task's calls, whatever stands before it."""
    return f"task.{task}"


RETRY_KEY = "retry."


def retry_key(task: str) -> str:
    """The routing key of what processors, and operators, send to a task: no sender may have it."""
    return f"{RETRY_KEY}{task}"


def new_call(
    namespace: str,
    task: str,
    args: Mapping[str, Any],
    *,
    message_id: str,
    sent_at: datetime,
    due_at: datetime,
    not_before: datetime | None = None,
    expires_at: datetime | None = None,
    priority: int | None = None,
    correlation_id: str | None = None,
    headers: Mapping[str, Any] | None = None,
) -> Message:
    """The message of a new call."""
    ours: dict[str, Any] = {
        "version": FORMAT_VERSION,
        "namespace": namespace,
        "task": task,
        "sent-at-ms": milliseconds_since_epoch(sent_at),
        "due-at-ms": milliseconds_since_epoch(due_at),
    }
    bounds = {"not-before-ms": not_before, "expires-at-ms": expires_at}
    ours |= {name: milliseconds_since_epoch(at) for name, at in bounds.items() if at is not None}
    return Message(
        body=compact_json({"args": args}),
        headers={**(headers or {}), **{PREFIX + name: value for name, value in ours.items()}},
        content_type="application/json",
        message_id=message_id,
        correlation_id=correlation_id,
        type=CALL_TYPE,
        priority=priority,
        timestamp=sent_at,
    )


def renamed(message: Message, routing_key: str, old: str, new: str) -> tuple[Message, str]:
    """Return what was sent to an old name of a task, and its key, as sent to the new one."""
    keys = {task_key(old): task_key(new), retry_key(old): retry_key(new)}
    if message.headers.get(f"{PREFIX}task") == old:
        message = replace(message, headers={**message.headers, f"{PREFIX}task": new})
    return message, keys.get(routing_key, routing_key)


def is_call(message: Message) -> bool:
    """Whether a message is, or claims to be, a call of our making."""
    return f"{PREFIX}sent-at-ms" in message.headers


def placed(message: Message, exchange: str, routing_key: str) -> Message:
    """The message with where it was published first, unless it says so already."""
    first = {EXCHANGE: exchange, KEY: routing_key}
    return replace(message, headers={**first, **message.headers})


def unclaimed(message: Message) -> Message:
    """Return the message without what only processors and operators tell of one.

    Its user is what RabbitMQ has checked.
    """
    kept = {
        name: value
        for name, value in message.headers.items()
        if name not in CLAIMS and not name.startswith(PARKED)
    }
    if message.user_id is not None:
        kept[USER_ID] = message.user_id
    elif len(kept) == len(message.headers):
        return message
    return replace(message, headers=kept, user_id=None)


def due_at_of_call(message: Message) -> datetime | None:
    """Return when the delay of a call ends, as its message claims; None: it does not tell."""
    due_at_ms = message.headers.get(f"{PREFIX}due-at-ms")
    if not isinstance(due_at_ms, int) or not 0 <= due_at_ms <= LATEST_MS:
        return None
    return moment_of(due_at_ms)


def retried(call: Call, *, due_at: datetime, failed_at: datetime) -> Message:
    """The message of the call's next attempt: as it was, but for the headers that count."""
    message = spent(call, failed_at=failed_at)
    due_at_ms = milliseconds_since_epoch(due_at)
    due = {f"{PREFIX}due-at-ms": due_at_ms}
    if due_at - failed_at > LONGEST:
        due[f"{PREFIX}not-before-ms"] = due_at_ms
    return replace(message, headers={**message.headers, **due})


def spent(call: Call, *, failed_at: datetime) -> Message:
    """The message of the call, with the attempt that failed counted."""
    first = call.first_failed_at or failed_at
    added: dict[str, Any] = {
        ATTEMPT: call.attempt + 1,
        FIRST_FAILED_AT: milliseconds_since_epoch(first),
        EXCHANGE: call.exchange,
        KEY: call.routing_key,
    }
    return replace(call.message, headers={**call.message.headers, **added})


@dataclass(frozen=True, slots=True)
class _Retried:
    """What is told of a message of whatever form."""

    __pydantic_config__: ClassVar[ConfigDict] = WIRE

    due_at: Moment | None = None
    not_before: Moment | None = None
    replayed_at: Moment | None = None
    attempt: Count = 0
    first_failed_at: Moment | None = None
    exchange: Text | None = None
    key: Text | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sent(_Retried):
    """What is told of one that we sent, besides."""

    version: Annotated[int, Field(strict=True, ge=1, le=1)]
    namespace: Text
    task: Text
    sent_at: Moment
    expires_at: Moment | None = None


@dataclass(frozen=True, slots=True)
class _Body:
    args: dict[str, Any]


_RETRIED, _SENT, _BODY = TypeAdapter(_Retried), TypeAdapter(_Sent), TypeAdapter(_Body)


def decode_call(
    message: Message,
    namespace: str,
    task: str,
    *,
    exchange: str,
    routing_key: str,
    expires: timedelta | None = None,
) -> Call:
    """Return the call of a message that came to a task's queue.

    Args:
        expires: how long after its timestamp a message of somebody else is worth a run; one without
            a timestamp always is, and one that an operator sent back.

    Raises:
        Undecodable: it claims to be of our making, and is not; or its retry headers are broken.
    """
    record: TypeAdapter[Any] = _SENT if is_call(message) else _RETRIED
    wire: _Sent | _Retried = validated(record, our_headers(message), "headers")
    key = task_key(task) if routing_key == retry_key(task) else routing_key
    args, sent_at, expires_at = None, None, None
    if isinstance(wire, _Sent):
        if (wire.namespace, wire.task) != (namespace, task):
            raise Undecodable(
                f"The message is a call of {wire.task!r} in namespace {wire.namespace!r}; "
                f"this is {task!r} in {namespace!r}."
            )
        args, sent_at, expires_at = (
            parsed(_BODY, message.body, "body").args,
            wire.sent_at,
            wire.expires_at,
        )
    elif (sent := message.timestamp) and expires is not None and not wire.replayed_at:
        expires_at = sent + expires if LATEST - sent >= expires else None
    return Call(
        task=task,
        message=replace(message, headers=own_headers(message.headers), expiration=None),
        exchange=exchange if wire.exchange is None else wire.exchange,
        routing_key=key if wire.key is None else wire.key,
        args=args,
        attempt=wire.attempt,
        sent_at=sent_at,
        due_at=wire.due_at,
        not_before=wire.not_before,
        expires_at=expires_at,
        first_failed_at=wire.first_failed_at,
    )
