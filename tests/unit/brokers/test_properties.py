"""Properties of messages: what is written, and what is read of whatever others have written."""

import struct
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pamqp.commands import Basic
from pamqp.header import ContentHeader

from scheduler.brokers.properties import UNREADABLE, Opaque, check_size, decoded, encoded
from scheduler.errors import TooLarge, Unencodable
from scheduler.protocol.calls import USER_ID, unclaimed
from scheduler.protocol.messages import Message

SENT = datetime(2026, 11, 22, 11, 30, tzinfo=UTC)
FULL = Message(
    b"body",
    {"a": "b", "n": 5},
    content_type="text/plain",
    message_id="m",
    correlation_id="c",
    type="t",
    priority=3,
    timestamp=SENT,
    expiration=timedelta(seconds=1),
    content_encoding="gzip",
    reply_to="r",
    app_id="a",
)


def of_another_driver(**properties: Any) -> bytes:
    return ContentHeader(properties=Basic.Properties(**properties)).marshal()[12:]


def test_other_drivers_read_what_is_written() -> None:
    header = ContentHeader()
    header.unmarshal(struct.pack(">HHQ", 60, 0, 0) + encoded(FULL))
    read = header.properties
    assert (read.headers, read.message_id, read.timestamp) == ({"a": "b", "n": 5}, "m", SENT)
    assert (read.delivery_mode, read.priority, read.expiration) == (2, 3, "1000")


def test_properties_of_other_drivers_are_read() -> None:
    written = of_another_driver(
        content_type="text/plain",
        content_encoding="gzip",
        headers={"a": "b", "n": 5},
        delivery_mode=1,
        priority=3,
        correlation_id="c",
        reply_to="r",
        expiration="1000",
        message_id="m",
        timestamp=SENT,
        message_type="t",
        app_id="a",
    )
    assert decoded(written, b"body") == FULL


def test_reserved_properties_are_kept_in_headers() -> None:
    message = decoded(of_another_driver(user_id="guest", headers={"a": 1, USER_ID: "claimed"}))
    kept = unclaimed(message)
    assert kept.headers == {"a": 1, "scheduler-user-id": "guest"}
    assert decoded(encoded(kept)) == kept
    assert unclaimed(replace(message, user_id=None)).headers == {"a": 1}


@pytest.mark.parametrize("seconds", [253_402_300_800, 2**64 - 1])
def test_a_timestamp_outside_the_calendar_is_kept(seconds: int) -> None:
    late = of_another_driver(timestamp=SENT).replace(
        struct.pack(">Q", int(SENT.timestamp())), struct.pack(">Q", seconds)
    )
    message = decoded(late)
    kept = Opaque(b"T" + struct.pack(">Q", seconds))
    assert (message.timestamp, message.headers) == (None, {"scheduler-timestamp": kept})
    assert decoded(encoded(message)) == message


@pytest.mark.parametrize("text", ["soon", "", "9" * 200])
def test_an_unreadable_expiration_is_ignored(text: str) -> None:
    flag, data = 0x0100, text.encode()
    assert decoded(flag.to_bytes(2) + bytes([len(data)]) + data) == Message()


def test_texts_that_are_not_utf_8_are_kept_byte_by_byte() -> None:
    flag = 0x0080
    came = flag.to_bytes(2) + b"\4caf\xe9"
    message = decoded(came)
    assert message.message_id == "caf\udce9"
    assert encoded(replace(message, headers={})).endswith(b"\4caf\xe9")


@pytest.mark.parametrize("came", [b"\xff\xff", b"\x20\0\0\0\0\5", b"\x80\0\xffabc"], ids=repr)
def test_unreadable_properties_are_kept_whole(came: bytes) -> None:
    message = decoded(came, b"body")
    assert message == Message(b"body", {UNREADABLE: came})


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"message_id": "m" * 256}, "The property message_id is 256 bytes long"),
        ({"priority": -1}, "The priority -1 is invalid"),
        ({"timestamp": SENT.replace(tzinfo=None)}, "The property timestamp"),
        ({"headers": {"a": {1}}}, "The header 'a' holds a value of type set"),
    ],
    ids=str,
)
def test_values_that_cannot_travel_are_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(Unencodable, match=why):
        encoded(replace(FULL, **changes))


def test_properties_may_fill_a_frame_to_the_last_byte() -> None:
    properties = encoded(Message(headers={"a": "x" * 1000}))
    size = len(ContentHeader().marshal()) - 2 + len(properties) + 8
    check_size(properties, size, "here")
    check_size(properties, 0, "here")
    with pytest.raises(TooLarge, match="1 more than fit in a frame of here") as refused:
        check_size(properties, size - 1, "here")
    assert refused.value.excess == 1
