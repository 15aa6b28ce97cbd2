"""What can travel in headers, and what is made of what others have sent."""

import struct
from collections import OrderedDict
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import IntEnum, StrEnum
from typing import Any

import pytest

from scheduler.brokers.properties import MOST_DEEP, Opaque, read_table, table_of
from scheduler.errors import Unencodable

SENT = datetime(2026, 11, 22, 11, 30, tzinfo=UTC)
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
        *((same, same) for same in (True, 2**31 - 1, 2**31, -(2**31), 2**63 - 1, -(2**63), 5e-324)),
        *((same, same) for same in (Decimal(2**31 - 1), Decimal("1E+3"), LAST, Opaque(b"T" * 9))),
        ((1, {"two": [b""]}), [1, {"two": [b""]}]),
        (bytearray(b"x"), b"x"),
        (Kind.A, "a"),
        (Count.ONE, 1),
        (OrderedDict([("a", 1)]), {"a": 1}),
        (SENT + timedelta(microseconds=999_999), SENT),
        (SENT.astimezone(timezone(timedelta(hours=-5))), SENT),
    ],
    ids=repr,
)
def test_values_survive_a_round_trip(value: object, back: object) -> None:
    came = there_and_back(value)
    assert came == back
    assert type(came) is type(back)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({1, 2}, "holds a value of type set, which cannot travel"),
        (SENT.date(), "holds a value of type date"),
        (2**63, "holds a whole number of more than 64 bits"),
        (-(2**63) - 1, "holds a whole number of more than 64 bits"),
        (float("inf"), "holds the number inf"),
        (Decimal("NaN"), "holds the number NaN"),
        (Decimal(2**31), "holds a decimal of more than 32 bits"),
        (Decimal("1E-256"), "holds a decimal of more than 32 bits"),
        (Decimal("1E+999999"), "holds a decimal of more than 32 bits"),
        (SENT.replace(tzinfo=None), "expected a time with a zone"),
        (datetime(1969, 12, 31, tzinfo=UTC), "a zone, after 1970"),
        ("\ud800", "holds a character that cannot be encoded"),
    ],
    ids=repr,
)
def test_values_that_cannot_travel_are_refused_with_their_path(value: Any, why: str) -> None:
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


def nested(depth: int) -> Any:
    value: Any = 1
    for level in range(depth):
        value = {"a": value} if level % 2 else [value]
    return value


def test_deeply_nested_values_are_refused() -> None:
    assert there_and_back(nested(MOST_DEEP)) == nested(MOST_DEEP)
    with pytest.raises(Unencodable, match="nested more than 50 deep"):
        table_of({"a": nested(MOST_DEEP + 1)})
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(Unencodable, match="nested more than 50 deep"):
        table_of({"a": circle})


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
        (b"s\xff\xff", -1),
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
