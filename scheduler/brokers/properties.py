"""Encode and decode the properties of messages: any can be read, and is written unchanged.

They are those of AMQP 0-9-1 (https://www.rabbitmq.com/amqp-0-9-1-reference#class.basic).

Properties of foreign messages that the package may not set are kept in a header:

=========================  ==============================================================
scheduler-cluster-id       a property without a meaning
scheduler-timestamp        a moment that no calendar has
=========================  ==============================================================

So is its user, once verified (`protocol.calls.unclaimed`).

The headers CC and BCC route a message to further keys
(https://www.rabbitmq.com/docs/sender-selected). A retry must reach one task alone, so they travel
under other names, and are renamed again when they are read.

Headers are field tables:

======================  ==================================================================
kind                    Python type
======================  ==================================================================
S                       `str`; bytes that are not UTF-8 are lone surrogates, as in PEP 383
b B s u I i l L         `int`
f d                     `float`
D                       `Decimal`
T                       `datetime`, aware, to the second
t, x, V                 `bool`, `bytes`, `None`
A, F                    `list`, `dict`
======================  ==================================================================

Values without a Python type are `Opaque`: a time that no calendar has, or too deep nesting. The
kinds are those of RabbitMQ, which differ from the AMQP 0-9-1 specification
(https://www.rabbitmq.com/amqp-0-9-1-errata#section_3).
"""

import math
import struct
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache, partial
from operator import attrgetter
from typing import Any, cast

from scheduler.errors import TooLarge, Unencodable
from scheduler.protocol.messages import PREFIX, Message
from scheduler.timing.durations import SECOND
from scheduler.timing.moments import UNIX_EPOCH, milliseconds

NAMES = (
    "content_type",
    "content_encoding",
    "headers",
    "delivery_mode",
    "priority",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "timestamp",
    "type",
    "user_id",
    "app_id",
    "cluster_id",
)
FLAGS = {name: 0x8000 >> position for position, name in enumerate(NAMES)}
NOT_OURS_TO_GIVE = "user_id", "cluster_id"
PERSISTENT = b"\2"
DISGUISED = {"CC": f"{PREFIX}cc", "BCC": f"{PREFIX}bcc"}
UNREADABLE = f"{PREFIX}unreadable"
FRAME = 8 + 12  # bytes of a frame and its header besides the properties
MOST_DEEP = 50
LONGEST_SHORT = 255  # bytes, of a short string
LATEST = (datetime.max.replace(tzinfo=UTC) - UNIX_EPOCH) // SECOND  # as a float it is one more
TEXT = ord("S")
SIZE, SIZED = struct.Struct(">I"), struct.Struct(">cI")
INTEGER, LONG = struct.Struct(">ci"), struct.Struct(">cq")


class Opaque(bytes):
    """Hold a value as it travels: its kind, and its bytes."""


class Malformed(Exception):
    """The bytes are not a valid table."""


class _Unfit(Exception):
    """A value cannot travel in a message.

    Attributes:
        path: the names that lead to it, the innermost first.
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self.path = list[str]()


def read_short(data: bytes, at: int) -> tuple[str, int]:
    """Return the short string that begins there, and its end."""
    end = at + 1 + data[at]
    return data[at + 1 : end].decode("utf-8", "surrogateescape"), end


def read_table(data: bytes, at: int = 0, depth: int = 0) -> tuple[dict[str, Any], int]:
    """Return the table that begins there, and its end."""
    try:
        (size,), at = SIZE.unpack_from(data, at), at + 4
        end, table = at + size, dict[str, Any]()
        while at < end:
            value_at = at + 1 + data[at]
            name = data[at + 1 : value_at].decode("utf-8", "surrogateescape")
            if data[value_at] == TEXT:  # the usual case: a function call each would be slower
                (size,) = SIZE.unpack_from(data, value_at + 1)
                start, at = value_at + 5, value_at + 5 + size
                table[name] = data[start:at].decode("utf-8", "surrogateescape")
            else:
                table[name], at = READERS[data[value_at]](data, value_at + 1, depth)
    except (IndexError, struct.error) as error:
        raise Malformed(str(error)) from None
    except KeyError as error:
        raise Malformed(f"unknown type {chr(error.args[0])!r}") from None
    if at != end or end > len(data):
        raise Malformed("its length is wrong")
    return table, end


def _read_text(data: bytes, at: int, _: int) -> tuple[str, int]:
    start, end = _sized_part(data, at)
    return data[start:end].decode("utf-8", "surrogateescape"), end


def _read_bytes(data: bytes, at: int, _: int) -> tuple[bytes, int]:
    start, end = _sized_part(data, at)
    return data[start:end], end


def _read_number(layout: struct.Struct) -> "Read":
    return lambda data, at, _: (layout.unpack_from(data, at)[0], at + layout.size)


def _read_decimal(data: bytes, at: int, _: int) -> tuple[Decimal, int]:
    scale, digits = struct.unpack_from(">Bi", data, at)
    return Decimal(digits).scaleb(-scale), at + 5


def _read_nested(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    if depth >= MOST_DEEP:
        return _read_opaque(data, at)
    return read_table(data, at, depth + 1)


def _read_opaque(data: bytes, at: int) -> tuple[Opaque, int]:
    _, end = _sized_part(data, at)
    return Opaque(data[at - 1 : end]), end


def _sized_part(data: bytes, at: int) -> tuple[int, int]:
    (size,) = SIZE.unpack_from(data, at)
    return at + 4, at + 4 + size


def read_time(data: bytes, at: int, _: int = 0) -> tuple[datetime | Opaque, int]:
    """Return the moment that begins there, and its end."""
    seconds, end = int.from_bytes(data[at : at + 8]), at + 8
    if seconds > LATEST:
        return Opaque(b"T" + data[at:end]), end
    return UNIX_EPOCH + timedelta(seconds=seconds), end


def _read_array(data: bytes, at: int, depth: int) -> tuple[list[Any] | Opaque, int]:
    if depth >= MOST_DEEP:
        return _read_opaque(data, at)
    at, end = _sized_part(data, at)
    values = list[Any]()
    while at < end:
        value, at = READERS[data[at]](data, at + 1, depth + 1)
        values.append(value)
    if at != end:
        raise Malformed("an array has a wrong length")
    return values, end


def table_of(headers: Mapping[str, Any]) -> bytes:
    """Encode headers as a table."""
    try:
        return _table(headers)
    except _Unfit as error:
        header = f"The header {'.'.join(reversed(error.path))[:80]!r}"
        raise Unencodable(f"{header} holds {error.what}.") from None


def short_string(text: object, what: str) -> bytes:
    """Encode a text as a short string: up to 255 bytes."""
    if not isinstance(text, str):
        raise Unencodable(f"{what} is of type {type(text).__name__}, not str.")
    try:
        data = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise Unencodable(
            f"{what} holds a character that cannot be encoded: {error.reason}."
        ) from None
    if len(data) > LONGEST_SHORT:
        raise Unencodable(f"{what} is {len(data)} bytes long: at most {LONGEST_SHORT} are allowed.")
    return len(data).to_bytes() + data


def _sized(parts: Iterable[bytes]) -> bytes:
    whole = b"".join(parts)
    return SIZE.pack(len(whole)) + whole


def _table(table: Mapping[Any, Any], depth: int = 0) -> bytes:
    return _sized(_parts(table.items(), _name, depth))


def _array(values: list[Any] | tuple[Any, ...], depth: int) -> bytes:
    return b"A" + _sized(_parts(enumerate(values), lambda _: b"", depth))


def _parts(
    items: Iterable[tuple[Any, Any]], write_name: Callable[[Any], bytes], depth: int
) -> list[bytes]:
    parts = list[bytes]()
    for name, value in items:
        try:
            parts += write_name(name), _value(value, depth)
        except _Unfit as error:
            error.path.append(str(name))
            raise
    return parts


@lru_cache(maxsize=4096)
def _name(name: object) -> bytes:
    try:
        return short_string(name, "The name")
    except Unencodable:
        return short_string(name, f"The name {str(name)[:40]!r} of a header")


def _value(value: Any, depth: int) -> bytes:
    if (write := COMMON_WRITERS.get(value.__class__)) is not None:
        return write(value, depth)
    for kind, write in WRITERS.items():
        if isinstance(value, kind):
            return write(value, depth)
    raise _cannot(f"a value of type {type(value).__name__}")


def _cannot(what: str) -> _Unfit:
    return _Unfit(f"{what}, which cannot travel in a message")


def _text(value: str, _: int) -> bytes:
    try:
        data = value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise _cannot(f"a character that cannot be encoded ({error.reason})") from None
    return SIZED.pack(b"S", len(data)) + data


def _number(value: int, _: int) -> bytes:
    if -(2**31) <= value < 2**31:
        return INTEGER.pack(b"I", value)
    if -(2**63) <= value < 2**63:
        return LONG.pack(b"l", value)
    raise _cannot("a whole number of more than 64 bits")


def _float(value: float, _: int) -> bytes:
    if not math.isfinite(value):  # the broker would close the connection
        raise _cannot(f"the number {value}")
    return b"d" + struct.pack(">d", value)


def _decimal(value: Decimal, _: int) -> bytes:
    _, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise _cannot(f"the number {value}")
    scale = max(-exponent, 0)
    whole = int(value.scaleb(scale)) if len(digits) + abs(exponent) < 300 else 2**31
    if scale > 255 or not -(2**31) <= whole < 2**31:
        raise _cannot("a decimal of more than 32 bits")
    return b"D" + struct.pack(">Bi", scale, whole)


def time_of(value: datetime, what: str) -> bytes:
    try:
        return _seconds(value)
    except _Unfit as error:
        raise Unencodable(f"{what} holds {error.what}.") from None


def _seconds(value: datetime) -> bytes:
    if value.tzinfo is None or value < UNIX_EPOCH:
        raise _Unfit(f"{value}: expected a time with a zone, after 1970")
    return int((value - UNIX_EPOCH).total_seconds()).to_bytes(8)


def _deeper(write: "Write") -> "Write":
    def write_nested(value: Any, depth: int) -> bytes:
        if depth >= MOST_DEEP:
            raise _Unfit(f"values nested more than {MOST_DEEP} deep")
        return write(value, depth + 1)

    return write_nested


Read = Callable[[bytes, int, int], tuple[Any, int]]
READERS: Mapping[int, Read] = {
    ord("S"): _read_text,
    ord("x"): _read_bytes,
    ord("t"): lambda data, at, _: (data[at] != 0, at + 1),
    ord("V"): lambda _, at, __: (None, at),
    ord("T"): read_time,
    ord("D"): _read_decimal,
    ord("A"): _read_array,
    ord("F"): _read_nested,
    **{
        ord(kind): _read_number(struct.Struct(f">{code}"))
        for kind, code in zip("bBsuIilLfd", "bBhHiIqqfd", strict=True)
    },
}
Write = Callable[[Any, int], bytes]
"""Encodes a value, nested so deep."""

WRITERS: Mapping[Any, Write] = {
    str: _text,
    bool: lambda value, _: b"t\1" if value else b"t\0",
    int: _number,
    type(None): lambda _, __: b"V",
    float: _float,
    Opaque: lambda value, _: bytes(value),
    (bytes, bytearray): lambda value, _: b"x" + _sized([bytes(value)]),
    datetime: lambda value, _: b"T" + _seconds(value),
    Decimal: _decimal,
    (list, tuple): _deeper(_array),
    Mapping: _deeper(lambda table, depth: b"F" + _table(table, depth)),
}
COMMON_WRITERS: Mapping[type, Write] = {kind: WRITERS[kind] for kind in (str, int, bool)}


def encoded(message: Message) -> bytes:
    """Encode the properties of a message: flags and values."""
    flags, parts = 0, list[bytes]()
    for flag, of, write in _PROPERTY_WRITERS:
        if (value := of(message)) is not None:
            flags |= flag
            parts.append(write(value))
    return flags.to_bytes(2) + b"".join(parts)


def decoded(properties: bytes, body: bytes = b"", *, offset: str | None = None) -> Message:
    """Decode the properties of a message with a body.

    Args:
        offset: the header with its offset in its stream, which is not one of its own.
    """
    try:
        return _decoded(properties, body, offset)
    except (Malformed, IndexError):
        return Message(body, {UNREADABLE: properties})


def encoded_key(routing_key: str) -> bytes:
    """Encode the routing key of a published message."""
    try:
        routing_key.encode()
    except UnicodeEncodeError:
        raise Unencodable(f"The routing key {ascii(routing_key)} is not text.") from None
    return short_string(routing_key, "The routing key")


def check_size(properties: bytes, frame_max: int, address: str) -> None:
    """Check that properties fit in a frame; a `frame_max` of 0 is no limit.

    RabbitMQ closes the connection of a publisher of larger ones.
    """
    size = len(properties) + FRAME
    excess = size - frame_max
    if frame_max and excess > 0:
        raise TooLarge(
            f"The headers and properties of the message are {size} bytes, {excess} more than "
            f"fit in a frame of {address}. It was not sent: put less into its headers, or "
            "raise frame_max in rabbitmq.conf.",
            excess=excess,
        )


def check_body(body: bytes, largest: int | None, place: str, address: str) -> None:
    """Check that the broker accepts a body of this size; `largest` None: no limit is known.

    RabbitMQ closes the channel of a publisher of larger ones, with all other messages in flight.
    """
    if largest is not None and len(body) > largest:
        raise TooLarge(
            f"The message to {place} is {len(body) / 2**20:.2f} MiB, and {address} accepts "
            f"{largest / 2**20:.2f} MiB (its max_message_size). It was not sent: store the data "
            "elsewhere and send its location, or raise max_message_size in rabbitmq.conf.",
            limit=largest,
        )


def _decoded(properties: bytes, body: bytes, offset: str | None) -> Message:
    at, found = 2, dict[str, Any]()
    for name, read in _readers_of(properties[:2]):
        found[name], at = read(properties, at)
    if at > len(properties):
        raise Malformed("it ends too soon")
    found.pop("delivery_mode", None)
    headers = found.pop("headers", {})
    for name, disguise in DISGUISED.items():
        if disguise in headers:
            headers.setdefault(name, headers.pop(disguise))
    if "cluster_id" in found:
        headers[_header_of("cluster_id")] = found.pop("cluster_id")
    if isinstance(found.get("timestamp"), Opaque):
        headers[_header_of("timestamp")] = found.pop("timestamp")
    place = None if offset is None else headers.pop(offset)
    return Message(body, headers, **found, offset=place)


@lru_cache(maxsize=256)
def _readers_of(flags: bytes) -> list[tuple[str, "PropertyReader"]]:
    set_flags = int.from_bytes(flags)
    return [(name, _PROPERTY_READERS[name]) for name, flag in FLAGS.items() if set_flags & flag]


def _header_of(name: str) -> str:
    return PREFIX + name.replace("_", "-")


def _read_expiration(data: bytes, at: int) -> tuple[timedelta | None, int]:
    # A foreign publisher may have written anything here; the broker has honoured it already.
    text, at = read_short(data, at)
    try:
        return timedelta(milliseconds=int(text)), at
    except (ValueError, OverflowError):
        return None, at


PropertyReader = Callable[[bytes, int], tuple[Any, int]]
_PROPERTY_READERS: dict[str, PropertyReader] = {
    **dict.fromkeys(NAMES, read_short),
    "headers": read_table,
    "delivery_mode": lambda data, at: (data[at], at + 1),
    "priority": lambda data, at: (data[at], at + 1),
    "expiration": _read_expiration,
    "timestamp": read_time,
}


def _headers(headers: object) -> bytes:
    if headers.__class__ is not dict and not isinstance(headers, Mapping):
        raise Unencodable(f"The headers are of type {type(headers).__name__}, not a mapping.")
    headers = cast(Mapping[str, Any], headers)
    if not DISGUISED.keys().isdisjoint(headers):
        headers = {DISGUISED.get(name, name): value for name, value in headers.items()}
    return table_of(headers)


def _priority(priority: object) -> bytes:
    if not isinstance(priority, int) or not 0 <= priority <= 255:
        raise Unencodable(f"The priority {priority!r} is invalid: expected 0 to 255.")
    return bytes([priority])


_OTHERS: dict[str, Callable[[Any], bytes]] = {
    "headers": _headers,
    "delivery_mode": bytes,
    "priority": _priority,
    "expiration": lambda wait: short_string(str(milliseconds(wait)), "The expiration"),
    "timestamp": lambda moment: time_of(moment, "The property timestamp"),
}
_GIVEN: dict[str, Callable[[Message], Any]] = {"delivery_mode": lambda _: PERSISTENT}
_PROPERTY_WRITERS = [
    (
        FLAGS[name],
        _GIVEN.get(name, attrgetter(name)),
        _OTHERS.get(name) or partial(short_string, what=f"The property {name}"),
    )
    for name in NAMES
    if name not in NOT_OURS_TO_GIVE
]
"""The flag, the value and the encoder of each property, in wire order."""
