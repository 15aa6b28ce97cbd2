"""Bytes that anybody may put into a message: header tables, and the other properties."""

import struct
from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

from tests.foreign import short, sized

LARGEST_PROPERTIES = 131_072 - 8 - 12  # of a frame of RabbitMQ, unless configured
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
WHOLE = {"b": "b", "B": "B", "s": "h", "u": "H", "I": "i", "i": "I", "l": "q", "L": "q"}
ODD_BYTES = (
    b"",
    b"\0",
    b"\xff",
    b"caf\xe9",
    b"caf\xc3\xa9",
    b"\xed\xa0\x80",
    b"\x1b[31mred\n\r\t",
    b"\xe2\x80\xae\xe2\x80\xa8",
    b"\xf0\x9f\x92\xa5",
    b"%s{}$HOME;--",
)
WRONG = object()


class Value(NamedTuple):
    """A value of a header: its kind and bytes, and what it tells (WRONG: no number, no text)."""

    data: bytes
    told: object = WRONG


class Refusable(NamedTuple):
    """What RabbitMQ closes the publisher's channel or connection for."""

    data: bytes


def some_bytes(rng: Random, longest: int = 255) -> bytes:
    """Bytes of a short string: odd ones, random ones, many."""
    roll = rng.random()
    if roll < 0.3:
        return rng.choice(ODD_BYTES)[:longest]
    if roll < 0.35:
        return rng.choice((b"x", b"\xc3\xa9", b"\xff", b"\n")) * (longest // 2) + b"x"
    if roll < 0.7:
        return rng.choice((b"some.text", b"order", b"7", b"null", b"true", b"-1", b"1e999"))
    return rng.randbytes(rng.randrange(min(longest, 24) + 1))


def text(data: bytes) -> Value:
    """A long string, of any bytes."""
    return Value(b"S" + sized(data), data.decode("utf-8", "surrogateescape"))


def whole(number: int, kind: str) -> Value:
    """A whole number, of a kind that has room for it."""
    return Value(kind.encode() + struct.pack(f">{WHOLE[kind]}", number), number)


def some_whole(rng: Random) -> Value:
    kind = rng.choice(list(WHOLE))
    bits, signed = struct.calcsize(f">{WHOLE[kind]}") * 8, WHOLE[kind].islower()
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return whole(rng.choice((low, -1 if signed else 0, 0, 1, high, rng.randint(low, high))), kind)


def _float(rng: Random) -> Value:
    number = rng.choice((0.0, -0.0, 1.5, 1e300, 5e-324, rng.uniform(-1e9, 1e9)))
    if rng.random() < 0.5:
        return Value(b"d" + struct.pack(">d", number))
    return Value(b"f" + struct.pack(">f", rng.choice((0.0, -1.5, 3.4e38))))


def _decimal(rng: Random) -> Value:
    return Value(b"D" + struct.pack(">Bi", rng.randrange(256), rng.randint(-(2**31), 2**31 - 1)))


def _time(rng: Random) -> Value:
    seconds = rng.choice((0, 1, 2**31, 253_402_300_800, 2**63, 2**64 - 1, rng.getrandbits(64)))
    return Value(b"T" + seconds.to_bytes(8))


def _nest(rng: Random) -> Value:
    """Tables and arrays, one in the other, as deep as a frame holds, or nearly."""
    data, levels = b"V", rng.choice((3, 49, 50, 51, 52, 200, 1500))
    for _ in range(levels):
        data = b"A" + sized(data) if rng.random() < 0.3 else b"F" + sized(short(b"a") + data)
    return Value(data)


def _array(rng: Random) -> Value:
    return Value(b"A" + sized(b"".join(some_value(rng).data for _ in range(rng.randrange(4)))))


def _table(rng: Random) -> Value:
    names = [rng.choice(ODD_BYTES)[:255] for _ in range(rng.randrange(4))]
    return Value(b"F" + sized(b"".join(short(name) + some_value(rng).data for name in names)))


VALUES: Sequence[tuple[Callable[[Random], Value], int]] = (
    (some_whole, 8),
    (lambda rng: text(some_bytes(rng)), 5),
    (lambda rng: Value(b"t" + rng.choice((b"\0", b"\1"))), 1),
    (_float, 1),
    (_decimal, 1),
    (_time, 1),
    (lambda rng: Value(b"V", None), 1),
    (lambda rng: Value(b"x" + sized(some_bytes(rng))), 1),
    (_array, 1),
    (_table, 1),
)


def some_value(rng: Random) -> Value:
    """A value of any kind."""
    if rng.random() < 0.01:
        return _nest(rng)
    (make,) = rng.choices([make for make, _ in VALUES], [weight for _, weight in VALUES])
    return make(rng)


def some_headers(rng: Random) -> list[tuple[bytes, Value]]:
    """Headers of somebody else: none, some, one that is huge, or very many."""
    roll = rng.random()
    if roll < 0.01:
        return [(b"huge", Value(b"x" + sized(rng.randbytes(rng.randint(60_000, 125_000)))))]
    if roll < 0.02:
        return [(b"many-%d" % n, some_whole(rng)) for n in range(rng.randint(500, 4000))]
    return [(_name(rng), some_value(rng)) for _ in range(rng.randrange(6))]


def kills_3_10(name: bytes, value: Value) -> bool:
    """Whether a dead letter with this header ends the dead-lettering of a whole RabbitMQ 3.10."""
    return name == b"x-death" and value.data.startswith(b"A")


def _name(rng: Random) -> bytes:
    theirs = (b"x-death", b"x-first-death-reason", b"x-delivery-count", b"x-acquired-count")
    if rng.random() < 0.2:
        return rng.choice((*theirs, b"traceparent", b"x-opt", b"fuzz", b"x" * 255))
    return some_bytes(rng)


def table(entries: Sequence[tuple[bytes, Value]]) -> bytes:
    return sized(b"".join(short(name) + value.data for name, value in entries))


def some_properties(rng: Random) -> dict[str, bytes | Refusable]:
    """Any of the properties besides the headers, each as it travels."""
    found = dict[str, bytes | Refusable]()
    for name in NAMES:
        if name not in ("headers", "expiration", "user_id") and rng.random() < 0.15:
            found[name] = _property(rng, name)
    if rng.random() < 0.03:
        found["expiration"] = _expiration(rng)
    if rng.random() < 0.02:
        found["user_id"] = short(b"guest") if rng.random() < 0.8 else Refusable(short(b"root"))
    return found


def _property(rng: Random, name: str) -> bytes:
    match name:
        case "delivery_mode":
            return bytes([rng.choice((0, 1, 1, 2, 2, 3, 255))])
        case "priority":
            return bytes([rng.choice((0, 1, 4, 5, 9, 10, 127, 255))])
        case "timestamp":
            return rng.choice((b"\0" * 8, b"\xff" * 8, rng.randbytes(8), b"\0\0\0\0" + b"j" * 4))
        case "type":
            return short(rng.choice((b"scheduler.call", b"scheduler.token", some_bytes(rng))))
        case "content_type":
            return short(rng.choice((b"application/json", b"text/plain", some_bytes(rng))))
        case _:
            return short(some_bytes(rng))


def _expiration(rng: Random) -> bytes | Refusable:
    if rng.random() < 0.1:
        return Refusable(short(rng.choice((b"", b"-1", b"soon", b"1.5", b"9" * 30))))
    return short(rng.choice((b"0", b"1", b"20", b"00100", b"3600000")))


def encoded(properties: dict[str, bytes | Refusable]) -> bytes:
    """Flags and properties, as a frame has them."""
    flags, parts = 0, list[bytes]()
    for position, name in enumerate(NAMES):
        if name in properties:
            flags |= 0x8000 >> position
            part = properties[name]
            parts.append(part.data if isinstance(part, Refusable) else part)
    return flags.to_bytes(2) + b"".join(parts)
