"""Define a message as any broker carries it, and read untrusted ones."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Annotated, Any, TypeVar, cast, get_type_hints

from pydantic import (
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetPydanticSchema,
    TypeAdapter,
    ValidationError,
)
from pydantic_core import PydanticSerializationError, core_schema, from_json, to_json

from scheduler.errors import Undecodable
from scheduler.spelling import without_kind
from scheduler.timing.durations import MILLISECOND, shown
from scheduler.timing.moments import LATEST_MS, milliseconds_since_epoch, moment_of

FORMAT_VERSION = 1
PREFIX = "scheduler-"
LEAD = f"{PREFIX}lead-ms"
REPLAYED_AT = f"{PREFIX}replayed-at-ms"
LONGEST_LEAD_MS = 1500  # covers the rest of any delay, and the longest lead of the settings
LINE_LENGTH = 500
MOST_READ = 8 * LINE_LENGTH  # of a text that becomes a line
MOST_COUNTED = 2**62  # leaves room for later additions

# Headers that a broker adds to a message that it moves or returns. Sent again, some would count as
# the message's own history: 3.10 drops what seems to travel in a circle.
BROKER_HEADERS = ("x-death", "x-first-death-", "x-last-death-", "x-delivery-count", "x-acquired-")
DEATHS = frozenset({"expired", "maxlen", "rejected", "delivery_limit"})
"""RabbitMQ's reasons to dead-letter a message. A metric has them as a label."""
TRACE_HEADERS = ("traceparent", "tracestate")
_COMPACT = json.JSONEncoder(separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Message:
    """Describe a message as a broker sees it: a body, headers and properties.

    Attributes:
        expiration: how long it may wait in its queue; None: no limit.
        timestamp: when it was made, to the second (AMQP's resolution).
        user_id: the user who published it, as RabbitMQ has checked; only of a message received.
        offset: its position in the stream that it was read from.
    """

    body: bytes = b""
    headers: Mapping[str, Any] = field(default_factory=dict[str, Any])
    content_type: str | None = None
    message_id: str | None = None
    correlation_id: str | None = None
    type: str | None = None
    priority: int | None = None
    timestamp: datetime | None = None
    expiration: timedelta | None = None
    content_encoding: str | None = None
    reply_to: str | None = None
    app_id: str | None = None
    user_id: str | None = None
    offset: int | None = field(default=None, compare=False)


def flat(text: str) -> str:
    """Return a text on one line, of characters that any header and terminal takes."""
    return printable(" ".join(text.split()))


def one_line(text: str) -> str:
    """Return a text on one line, shortened; of a long text, only the beginning is read."""
    line = flat(text[:MOST_READ])
    is_whole = len(text) <= MOST_READ and len(line) <= LINE_LENGTH
    return line if is_whole else line[: LINE_LENGTH - 1] + "…"


def printable(text: str) -> str:
    """Escape the control characters and lone surrogates of a text."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in "\n\t" else char.encode("unicode_escape").decode()
        for char in text
    )


def summary_of(error: BaseException) -> str:
    """Return an exception in a line: its type and its message."""
    kind = type(error).__name__
    try:
        line = f"{kind}: {text}" if (text := str(error)[:MOST_READ]) else kind
    except BaseException as another:  # its class may raise anything, even SystemExit
        line = f"{kind}: (its message cannot be shown: {type(another).__name__})"
    return one_line(line)


def own_headers(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the headers that a message was sent with, without those that brokers add."""
    return {name: value for name, value in headers.items() if not name.startswith(BROKER_HEADERS)}


def unshared(value: Any) -> Any:
    """Copy headers, or the value of one, for a user who may change its dicts and lists."""
    if isinstance(value, dict):
        table = cast("dict[str, Any]", value)
        return {name: unshared(each) for name, each in table.items()}
    if isinstance(value, list):
        return [unshared(each) for each in cast("list[Any]", value)]
    return value


def failed_deliveries(message: Message) -> int:
    """Return how often a message was delivered and not acked, if its queue counts that (quorum)."""
    count = message.headers.get("x-delivery-count")
    return count if isinstance(count, int) else 0


def moment_in(claims: Mapping[str, Any], name: str) -> datetime | None:
    """Return the moment that a header or a member claims; None: it claims none."""
    at_ms = claims.get(name)
    return moment_of(at_ms) if isinstance(at_ms, int) and 0 <= at_ms <= LATEST_MS else None


def trace_of(headers: Mapping[str, Any]) -> dict[str, str]:
    """Return the trace headers of a message."""
    return {name: value for name in TRACE_HEADERS if isinstance(value := headers.get(name), str)}


def hatched_at(message: Message) -> datetime | None:
    """Return when the broker ended the message's last wait, to the second.

    None: it did not wait, or this broker does not say.
    """
    match message.headers.get("x-death"):
        case [{"reason": "expired", "time": datetime() as second}, *_]:  # the last one comes first
            return second
        case _:
            return None


def taken_out_by(message: Message) -> tuple[str, str]:
    """Return why a message left its last queue by dead-lettering, and which queue that was.

    The reason is one of `DEATHS`. Empty: it left none, or its sender has written the header.
    """
    match message.headers.get("x-death"):
        case [{"reason": str(reason), "queue": str(queue)}, *_] if reason in DEATHS:
            return reason, queue  # of the last one
        case _:
            return "", ""


def lead_of(headers: Mapping[str, Any]) -> timedelta:
    """Read how long before its time a message leaves the broker's timers.

    Raises:
        Undecodable: it is no number of milliseconds up to `LONGEST_LEAD_MS`. To ignore it would run
            the message too early.
    """
    lead_ms = headers.get(LEAD, 0)
    if type(lead_ms) is not int or not 0 <= lead_ms <= LONGEST_LEAD_MS:
        raise Undecodable(
            f"The header {LEAD} must be an integer from 0 to {LONGEST_LEAD_MS}, "
            f"got {shown(lead_ms)}."
        )
    return timedelta(milliseconds=lead_ms)


def our_headers(message: Message) -> dict[str, Any]:
    """Return the scheduler's headers, under their names in the wire models."""
    return {
        name.removeprefix(PREFIX).replace("-", "_"): value
        for name, value in message.headers.items()
        if name.startswith(PREFIX)
    }


def compact_json(value: Any) -> bytes:
    """Encode a value as JSON, without spaces."""
    try:
        return to_json(value, inf_nan_mode="constants")
    except PydanticSerializationError:  # lone surrogates: only escapes can hold them
        return _COMPACT.encode(value).encode()


def parsed_json(body: bytes | str) -> Any:
    """Parse a JSON body in UTF-8, as RFC 8259 has it, or raise `Undecodable`."""
    try:
        return from_json(body)  # twice as fast; rejects some valid JSON, such as lone surrogates
    except ValueError:
        pass
    try:
        return json.loads(body if isinstance(body, str) else body.decode())
    except (ValueError, RecursionError) as error:
        raise Undecodable(f"The body is not JSON: {error}.") from None


# Records are dataclasses whose fields say how they travel. A `TypeAdapter`, which finds its members
# by `WIRE`, reads, checks and writes them. It is built when it is first used: each takes some
# milliseconds, and a command uses few.

T = TypeVar("T")
WIRE = ConfigDict(
    extra="ignore", alias_generator=lambda name: MEMBERS.get(name, name), defer_build=True
)
"""The `__pydantic_config__` of a record."""
MEMBERS = {"ending": "outcome", "duration": "duration_ms", "until": "until_ms"} | {
    name: f"{name}_ms"
    for name in (
        *("at", "since", "scheduled_at", "due_at", "previous_at", "started_at", "deadline"),
        *("sent_at", "not_before", "replayed_at", "expires_at", "first_failed_at", "recorded_at"),
    )
}
"""The wire names of fields, where they differ."""

Count = Annotated[int, Field(strict=True, ge=0, le=MOST_COUNTED)]
Flag = Annotated[bool, Field(strict=True)]


def travelling(
    read: Callable[[Any], Any], wire: core_schema.CoreSchema, write: Callable[[Any], Any]
) -> GetPydanticSchema:
    """Annotate a type with its decoder and its encoder for the wire."""
    serialization = core_schema.plain_serializer_function_ser_schema(write)
    schema = core_schema.no_info_after_validator_function(read, wire, serialization=serialization)
    return GetPydanticSchema(lambda source, handler: schema)


_MILLISECONDS = core_schema.int_schema(strict=True, ge=0, le=LATEST_MS)
Moment = Annotated[datetime, travelling(moment_of, _MILLISECONDS, milliseconds_since_epoch)]
Span = Annotated[
    timedelta,
    travelling(lambda ms: ms * MILLISECOND, _MILLISECONDS, lambda span: span // MILLISECOND),
]


class Flattened:
    """Annotate a named tuple whose fields are members of the object that has it.

    To be read, it gets all of that object. Written, it is a dict.
    """

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        members = {
            name: core_schema.typed_dict_field(
                handler.generate_schema(hint), required=name not in source._field_defaults
            )
            for name, hint in get_type_hints(source, include_extras=True).items()
        }
        return core_schema.no_info_after_validator_function(
            lambda values: source(**values),
            core_schema.typed_dict_schema(members),
            serialization=core_schema.plain_serializer_function_ser_schema(source._asdict),
        )


def parsed(record: TypeAdapter[T], body: bytes, what: str) -> T:
    """Decode a body, or raise `Undecodable`, which names each field."""
    try:
        return record.validate_json(body)
    except (
        ValidationError
    ):  # pydantic's own reader rejects some valid JSON; ours has the error texts
        return validated(record, parsed_json(body), what)


def validated(record: TypeAdapter[T], data: Any, what: str) -> T:
    """Validate data, or raise `Undecodable`, which names each field."""
    try:
        return record.validate_python(data)
    except ValidationError as error:
        raise Undecodable(f"The {what} cannot be understood: {problems_of(error)}.") from None


def problems_of(error: ValidationError) -> str:
    """Format pydantic's findings in a line: field, expectation and actual value."""
    return one_line(
        "; ".join(
            f"{'.'.join(map(str, problem['loc'])) or 'value'}: {without_kind(problem['msg'])}, "
            f"got {shown(problem['input'])}"
            for problem in error.errors()
        )
    )
