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
"""

from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import lru_cache, partial
from operator import attrgetter
from typing import Any, cast

from scheduler.brokers.tables import (
    Malformed,
    Opaque,
    read_short,
    read_table,
    read_time,
    short_string,
    table_of,
    time_of,
)
from scheduler.errors import TooLarge, Unencodable
from scheduler.protocol.messages import PREFIX, Message
from scheduler.timing.moments import milliseconds

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


def encoded(message: Message) -> bytes:
    """Encode the properties of a message: flags and values."""
    flags, parts = 0, list[bytes]()
    for flag, of, write in _WRITERS:
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
def _readers_of(flags: bytes) -> list[tuple[str, "Reader"]]:
    set_flags = int.from_bytes(flags)
    return [(name, _READERS[name]) for name, flag in FLAGS.items() if set_flags & flag]


def _header_of(name: str) -> str:
    return PREFIX + name.replace("_", "-")


def _read_expiration(data: bytes, at: int) -> tuple[timedelta | None, int]:
    # A foreign publisher may have written anything here; the broker has honoured it already.
    text, at = read_short(data, at)
    try:
        return timedelta(milliseconds=int(text)), at
    except (ValueError, OverflowError):
        return None, at


Reader = Callable[[bytes, int], tuple[Any, int]]
_READERS: dict[str, Reader] = {
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
_WRITERS = [
    (
        FLAGS[name],
        _GIVEN.get(name, attrgetter(name)),
        _OTHERS.get(name) or partial(short_string, what=f"The property {name}"),
    )
    for name in NAMES
    if name not in NOT_OURS_TO_GIVE
]
"""The flag, the value and the encoder of each property, in wire order."""
