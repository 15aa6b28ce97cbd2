"""Encode and decode calls: one-off messages that ask for one run of a task.

A call sent by the package is an AMQP message with a JSON body, ``{"args": {...}}``, and these
headers:

===============================  ==========================================================
property or header               holds
===============================  ==========================================================
message_id                       unique; the same through every delay and retry
content_type, type               ``application/json``, ``scheduler.call``
scheduler-version                1, the version of this format
scheduler-namespace, -task       the namespace and the task of the call
scheduler-sent-at-ms             when it was sent, milliseconds since the Unix epoch
scheduler-due-at-ms              when its delay ends
scheduler-lead-ms                how long before that it leaves the broker's timers
scheduler-not-before-ms          earliest start time; absent if the delay is enforced by the
                                 broker alone
scheduler-expires-at-ms          the time after which it is not run; absent: never
===============================  ==========================================================

A task that subscribes to an exchange of another application gets messages of any form. A retry
leaves the message as it was and adds these headers. Headers that only processors and operators may
set are dropped from messages of other senders:

===============================  ==========================================================
scheduler-attempt                how many attempts have failed
scheduler-due-at-ms, -lead-ms    when the next one is due, as above
scheduler-first-failed-at-ms     when the first attempt failed
scheduler-exchange, -key         where the message was published first, and with which key
scheduler-user-id                its publisher; RabbitMQ accepts this from no other user
scheduler-replayed-at-ms         when an operator replayed it from its failed queue
===============================  ==========================================================
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field, SkipValidation, TypeAdapter

from scheduler.errors import Undecodable
from scheduler.protocol.hatchery import LONGEST
from scheduler.protocol.messages import (
    FORMAT_VERSION,
    PREFIX,
    REPLAYED_AT,
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
from scheduler.timing.moments import LATEST, milliseconds_since_epoch

CALL_TYPE = "scheduler.call"
PARKED = f"{PREFIX}parked-"
LEFT_OUT = f"{PREFIX}left-out"
DUE_AT = f"{PREFIX}due-at-ms"
ATTEMPT = f"{PREFIX}attempt"
EXCHANGE, KEY = f"{PREFIX}exchange", f"{PREFIX}key"
FIRST_FAILED_AT = f"{PREFIX}first-failed-at-ms"
USER_ID = f"{PREFIX}user-id"
Text = Annotated[str, Field(strict=True)]
CLAIMS = frozenset({ATTEMPT, FIRST_FAILED_AT, EXCHANGE, KEY, USER_ID, REPLAYED_AT, LEFT_OUT})


@dataclass(frozen=True, slots=True)
class Call:
    """Describe a message that asks for one run of a task; most of it are its headers.

    Attributes:
        message: as it was published first: body, headers and properties.
        routing_key: for a delayed call, that of its task.
        args: the arguments, by name; None for a message of another application.
    """

    __pydantic_config__: ClassVar[ConfigDict] = WIRE

    task: Text
    message: SkipValidation[Message]
    exchange: Text
    routing_key: Annotated[Text, Field(alias="key")]
    args: SkipValidation[Mapping[str, Any] | None] = None
    attempt: Count = 0
    sent_at: Moment | None = None
    due_at: Moment | None = None
    not_before: Moment | None = None
    expires_at: Moment | None = None
    first_failed_at: Moment | None = None
    replayed_at: Moment | None = None
    namespace: Text = ""
    version: Annotated[int, Field(strict=True, ge=1, le=FORMAT_VERSION)] = FORMAT_VERSION

    @property
    def id(self) -> str:
        return self.message.message_id or ""


def task_key(task: str) -> str:
    """Return the routing key of a task's calls, with any prefix."""
    return f"task.{task}"


RETRY_KEY = "retry."


def retry_key(task: str) -> str:
    """Return the routing key for retries and replays; senders may not use it."""
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
    """Return a message to an old name of a task, and its key, as sent to the new name."""
    keys = {task_key(old): task_key(new), retry_key(old): retry_key(new)}
    if message.headers.get(f"{PREFIX}task") == old:
        message = replace(message, headers={**message.headers, f"{PREFIX}task": new})
    return message, keys.get(routing_key, routing_key)


def is_call(message: Message) -> bool:
    """Return whether a message claims to be a call of this package."""
    return f"{PREFIX}sent-at-ms" in message.headers


def placed(message: Message, exchange: str, routing_key: str) -> Message:
    """Add where the message was published first, unless it says so already."""
    first = {EXCHANGE: exchange, KEY: routing_key}
    return replace(message, headers={**first, **message.headers})


def unclaimed(message: Message) -> Message:
    """Remove the headers that only processors and operators may set.

    The user is verified by RabbitMQ.
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


def retried(call: Call, *, due_at: datetime, failed_at: datetime) -> Message:
    """Return the message of the call's next attempt, with its headers updated."""
    message = spent(call, failed_at=failed_at)
    due_at_ms = milliseconds_since_epoch(due_at)
    due = {DUE_AT: due_at_ms}
    if call.not_before is not None or due_at - failed_at > LONGEST:
        due[f"{PREFIX}not-before-ms"] = due_at_ms
    return replace(message, headers={**message.headers, **due})


def spent(call: Call, *, failed_at: datetime) -> Message:
    """Return the message of the call, with the failed attempt counted."""
    first = call.first_failed_at or failed_at
    added: dict[str, Any] = {
        ATTEMPT: call.attempt + 1,
        FIRST_FAILED_AT: milliseconds_since_epoch(first),
        EXCHANGE: call.exchange,
        KEY: call.routing_key,
    }
    return replace(call.message, headers={**call.message.headers, **added})


@dataclass(frozen=True, slots=True)
class _Body:
    __pydantic_config__: ClassVar[ConfigDict] = WIRE

    args: dict[str, Any]


_CALL, _BODY = TypeAdapter(Call), TypeAdapter(_Body)
_REQUIRED = "version", "namespace", "task", "sent_at_ms"
_OF_RETRIES = frozenset(
    {"attempt", "due_at_ms", "not_before_ms", "first_failed_at_ms", "replayed_at_ms"}
    | {"exchange", "key"}
)
"""The headers that count in a message of another application, too."""


def decode_call(
    message: Message,
    namespace: str,
    task: str,
    *,
    exchange: str,
    routing_key: str,
    expires: timedelta | None = None,
) -> Call:
    """Return the call of a message in a task's queue.

    Args:
        expires: how long after its timestamp a message of another application may run; one without
            a timestamp, or replayed by an operator, always may.

    Raises:
        Undecodable: it claims to be a call of this package but is not, or its retry headers are
        broken.
    """
    key = task_key(task) if routing_key == retry_key(task) else routing_key
    headers, args = our_headers(message), None
    if is_call(message):
        if missing := [name for name in _REQUIRED if headers.get(name) is None]:
            raise Undecodable(f"The headers cannot be understood: {missing[0]}: Field required.")
        args = parsed(_BODY, message.body, "body").args
    else:
        headers = {name: headers[name] for name in _OF_RETRIES & headers.keys()}
        headers |= {"namespace": namespace, "task": task}
        sent = None if "replayed_at_ms" in headers else message.timestamp
        if expires is not None and sent is not None and LATEST - sent >= expires:
            headers["expires_at_ms"] = milliseconds_since_epoch(sent + expires)
    original = replace(message, headers=own_headers(message.headers), expiration=None)
    given = {"exchange": exchange, "key": key, **headers, "message": original, "args": args}
    call = validated(_CALL, given, "headers")
    if (call.namespace, call.task) != (namespace, task):
        raise Undecodable(
            f"The message is a call of {call.task!r} in namespace {call.namespace!r}; "
            f"this is {task!r} in {namespace!r}."
        )
    return call
