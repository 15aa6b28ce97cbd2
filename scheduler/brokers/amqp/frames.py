"""Messages as what travels in frames, and back."""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, cast

from aiormq.abc import DeliveredMessage
from pamqp import encode
from pamqp.commands import Basic
from pamqp.header import ContentHeader

from scheduler.errors import TooLarge
from scheduler.protocol.messages import Message
from scheduler.timing.durations import milliseconds

FRAME_OVERHEAD = 8  # what frame_max counts besides the payload
AIORMQS_MESSAGE_ID = 33  # it gives one to every message that has none
LONGEST_NAME = 128  # bytes, of a header
PLAIN = {str, int, bool}  # most of what headers are
MAY_HOLD_FLOATS = float, dict, list


class Properties(Basic.Properties):
    """The properties of a message of ours.

    pamqp cuts the floats in headers down to 32 bits.
    """

    def encode_property(self, name: str, value: Any) -> bytes:
        if name == "headers" and any(isinstance(each, MAY_HOLD_FLOATS) for each in value.values()):
            return _exact_table(value)
        return super().encode_property(name, value)


def properties_of(message: Message) -> Properties:
    expiration = message.expiration
    return Properties(
        content_type=message.content_type,
        headers=dict(message.headers),
        delivery_mode=2,
        priority=message.priority,
        correlation_id=message.correlation_id,
        expiration=None if expiration is None else str(milliseconds(expiration)),
        message_id=message.message_id,
        timestamp=message.timestamp,
        message_type=message.type,
        content_encoding=message.content_encoding,
        reply_to=message.reply_to,
        app_id=message.app_id,
    )


def message_of(taken: DeliveredMessage) -> Message:
    properties = taken.header.properties
    return Message(
        body=taken.body,
        headers=_encodable_table(properties.headers or {}),
        content_type=properties.content_type,
        message_id=properties.message_id,
        correlation_id=properties.correlation_id,
        type=properties.message_type,
        priority=properties.priority,
        timestamp=properties.timestamp,
        expiration=_expiration(properties.expiration),
        content_encoding=properties.content_encoding,
        reply_to=properties.reply_to,
        app_id=properties.app_id,
    )


def check_size(properties: Properties, frame_max: int, address: str) -> None:
    """See that the properties fit in a frame; a `frame_max` of 0 is no limit.

    RabbitMQ closes the connection of who sends larger ones.

    Raises:
        TooLarge: they do not.
    """
    size = len(ContentHeader(properties=properties).marshal())
    size += 0 if properties.message_id else AIORMQS_MESSAGE_ID
    excess = size + FRAME_OVERHEAD - frame_max
    if frame_max and excess > 0:
        raise TooLarge(
            f"The headers and properties of the message are {size} bytes, {excess} more than "
            f"fit in a frame of {address}. It was not sent: put less into its headers, or "
            "raise frame_max in rabbitmq.conf.",
            excess=excess,
        )


def _exact_table(table: dict[str, Any]) -> bytes:
    return _sized(_name(name) + _exact_value(value) for name, value in sorted(table.items()))


def _exact_value(value: Any) -> bytes:
    match value:
        case float():
            return b"d" + encode.double(value)
        case dict():
            return b"F" + _exact_table(cast(Any, value))
        case list():
            return b"A" + _sized(map(_exact_value, cast(Any, value)))
        case _:
            return encode.encode_table_value(value)


def _name(name: str) -> bytes:
    return encode.short_string(name.encode()[:LONGEST_NAME].decode(errors="ignore"))


def _sized(parts: Iterable[bytes]) -> bytes:
    whole = b"".join(parts)
    return encode.long_uint(len(whole)) + whole


def _encodable(value: Any) -> Any:
    """What pamqp decoded, so that it can encode it again: text that is not UTF-8 comes as bytes."""
    match value:
        case bytes():
            return bytearray(value)
        case dict():
            return _encodable_table(cast(Any, value))
        case list():
            return [_encodable(each) for each in cast(Any, value)]
        case _:
            return value


def _encodable_table(table: Mapping[str, Any]) -> dict[str, Any]:
    return {name: each if type(each) in PLAIN else _encodable(each) for name, each in table.items()}


def _expiration(text: str | None) -> timedelta | None:
    # A foreign publisher may have written anything here; the broker has honoured it already.
    return timedelta(milliseconds=int(text)) if text and text.isdecimal() else None
