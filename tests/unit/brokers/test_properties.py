"""Properties and headers: what can travel, and what is read of what others have written."""

import struct
from collections import OrderedDict
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import IntEnum, StrEnum
from typing import Any

import pytest
from pamqp.commands import Basic
from pamqp.header import ContentHeader

from scheduler.brokers.properties import (
    MOST_DEEP,
    UNREADABLE,
    Opaque,
    check_size,
    decoded,
    encoded,
    read_table,
    table_of,
)
from scheduler.errors import TooLarge, Unencodable
from scheduler.protocol.calls import USER_ID, unclaimed
from scheduler.protocol.messages import Message
from tests.bad_input import nested
from tests.stage import FOREIGN, START

FULL = replace(FOREIGN, expiration=timedelta(seconds=1), type="t")


def of_another_driver(**properties: Any) -> bytes:
    return ContentHeader(properties=Basic.Properties(**properties)).marshal()[12:]


def test_other_drivers_read_what_is_written_and_are_read() -> None:
    header = ContentHeader()
    header.unmarshal(struct.pack(">HHQ", 60, 0, 0) + encoded(FULL))
    theirs = header.properties
    assert (theirs.headers, theirs.message_id, theirs.timestamp) == (FULL.headers, "m", START)
    assert (theirs.delivery_mode, theirs.priority, theirs.expiration) == (2, 3, "1000")
    assert (theirs.message_type, theirs.correlation_id, theirs.app_id) == ("t", "c", "orders")
    assert decoded(ContentHeader(properties=theirs).marshal()[12:], FULL.body) == FULL


def test_reserved_properties_are_kept_in_headers() -> None:
    message = decoded(of_another_driver(user_id="guest", headers={"a": 1, USER_ID: "claimed"}))
    kept = unclaimed(message)
    assert kept.headers == {"a": 1, "scheduler-user-id": "guest"}
    assert decoded(encoded(kept)) == kept
    assert unclaimed(replace(message, user_id=None)).headers == {"a": 1}


@pytest.mark.parametrize("seconds", [253_402_300_800, 2**64 - 1])
def test_a_timestamp_outside_the_calendar_is_kept(seconds: int) -> None:
    late = of_another_driver(timestamp=START).replace(
        struct.pack(">Q", int(START.timestamp())), struct.pack(">Q", seconds)
    )
    message = decoded(late)
    kept = Opaque(b"T" + struct.pack(">Q", seconds))
    assert (message.timestamp, message.headers) == (None, {"scheduler-timestamp": kept})
    assert decoded(encoded(message)) == message


@pytest.mark.parametrize("text", ["soon", "", "9" * 200])
def test_an_unreadable_expiration_is_ignored(text: str) -> None:
    flag, data = 0x0100, text.encode()
    assert decoded(flag.to_bytes(2) + bytes([len(data)]) + data) == Message()


@pytest.mark.parametrize("came", [b"\xff\xff", b"\x20\0\0\0\0\5", b"\x80\0\xffabc"], ids=repr)
def test_unreadable_properties_are_kept_whole(came: bytes) -> None:
    message = decoded(came, b"body")
    assert message == Message(b"body", {UNREADABLE: came})


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"message_id": "m" * 256}, "The property message_id is 256 bytes long"),
        ({"priority": -1}, "The priority -1 is invalid"),
        ({"timestamp": START.replace(tzinfo=None)}, "The property timestamp"),
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


# Headers


LAST = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


class Kind(StrEnum):
    A = "a"


class Count(IntEnum):
    ONE = 1


def there_and_back(value: Any) -> Any:
    table, end = read_table(data := table_of({"a": value}))
    assert end == len(data)
    assert table.keys() == {"a"}
    return table["a"]


@pytest.mark.parametrize(
    ("value", "back"),
    [
        *((same, same) for same in (2**31 - 1, 2**31, Decimal("1E+3"), LAST, Opaque(b"T" * 9))),
        ((1, 2), [1, 2]),
        (bytearray(b"x"), b"x"),
        (Kind.A, "a"),
        (Count.ONE, 1),
        (OrderedDict([("a", 1)]), {"a": 1}),
        (START + timedelta(microseconds=999_999), START),
        (START.astimezone(timezone(timedelta(hours=-5))), START),
    ],
    ids=repr,
)
def test_values_of_unusual_types_survive_a_round_trip(value: object, back: object) -> None:
    came = there_and_back(value)
    assert came == back
    assert type(came) is type(back)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({1, 2}, "holds a value of type set, which cannot travel"),
        (START.date(), "holds a value of type date"),
        (2**63, "holds a whole number of more than 64 bits"),
        (-(2**63) - 1, "holds a whole number of more than 64 bits"),
        (float("inf"), "holds the number inf"),
        (Decimal("NaN"), "holds the number NaN"),
        (Decimal(2**31), "holds a decimal of more than 32 bits"),
        (Decimal("1E-256"), "holds a decimal of more than 32 bits"),
        (Decimal("1E+999999"), "holds a decimal of more than 32 bits"),
        (START.replace(tzinfo=None), "expected a time with a zone"),
        (datetime(1969, 12, 31, tzinfo=UTC), "a zone, after 1970"),
        ("\ud800", "holds a character that cannot be encoded"),
    ],
    ids=repr,
)
def test_headers_that_cannot_travel_are_refused_with_their_path(value: Any, why: str) -> None:
    with pytest.raises(Unencodable) as refused:
        table_of({"a": {"b": [0, value]}})
    assert "'a.b.1'" in str(refused.value)
    assert why in str(refused.value)


def test_names_are_texts_of_at_most_255_bytes() -> None:
    longest = "\N{EURO SIGN}" * 85
    assert read_table(table_of({longest: 1}))[0] == {longest: 1}
    with pytest.raises(Unencodable, match="256 bytes long: at most 255"):
        table_of({longest + "e": 1})
    with pytest.raises(Unencodable, match="The name '1' of a header is of type int, not str"):
        table_of({"a": {1: 2}})


def test_deeply_nested_values_are_refused() -> None:
    assert there_and_back(nested(MOST_DEEP)) == nested(MOST_DEEP)
    circle: list[Any] = []
    circle.append(circle)
    for deep in nested(MOST_DEEP + 1), circle:
        with pytest.raises(Unencodable, match="nested more than 50 deep"):
            table_of({"a": deep})


def sized(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def test_deeply_nested_foreign_values_are_kept() -> None:
    data = b"V"
    for _ in range(1500):
        data = b"F" + sized(b"\1a" + data)
    whole = sized(b"\1a" + data + b"\1bt\1")
    table, _ = read_table(whole)
    assert table["b"] is True
    assert table_of(table) == whole


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"b\xff", -1),
        (b"B\xff", 255),
        (b"u\xff\xff", 65_535),
        (b"i\xff\xff\xff\xff", 2**32 - 1),
        (b"L" + b"\xff" * 8, -1),
        (b"f" + struct.pack(">f", 0.5), 0.5),
        (b"t\2", True),
        (b"S\0\0\0\1\xe9", "\udce9"),
        (b"T" + struct.pack(">Q", 10**15), Opaque(b"T" + struct.pack(">Q", 10**15))),
        (b"D\xff\0\0\0\1", Decimal("1E-255")),
    ],
    ids=repr,
)
def test_kinds_written_by_other_clients_are_read(data: bytes, value: Any) -> None:
    assert read_table(sized(b"\1a" + data))[0] == {"a": value}
