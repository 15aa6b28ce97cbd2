"""What our connections change of their driver: nothing, for anybody else in the program."""

import asyncio
import logging
import struct
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import aiormq
import pytest
from pamqp.commands import Basic
from pamqp.header import ContentHeader
from yarl import URL

from scheduler.brokers.amqp import driver
from scheduler.brokers.amqp.frames import Properties
from scheduler.brokers.amqp.reader import FrameReader, without_impossible_timestamps

SEEN_BY_OTHERS = """
import logging
import aiormq, aiormq.base, aiormq.channel, aiormq.connection
import pamqp.base, pamqp.commands, pamqp.decode, pamqp.encode, pamqp.frame, pamqp.header

MODULES = (
    aiormq, aiormq.base, aiormq.channel, aiormq.connection,
    pamqp.base, pamqp.commands, pamqp.decode, pamqp.encode, pamqp.frame, pamqp.header,
)
LOGGERS = ("aiormq", "aiormq.connection", "aiormq.channel")


def contents(owner):
    found = {}
    for name, value in vars(owner).items():
        found[name] = dict(value) if isinstance(value, dict) else value
        if isinstance(value, type) and value.__module__.startswith(("aiormq", "pamqp")):
            found[name] = value, dict(vars(value))
    return found


def seen():
    settings = [
        (each.level, each.disabled, each.propagate, each.handlers[:])
        for each in map(logging.getLogger, LOGGERS)
    ]
    return [contents(module) for module in MODULES], settings


before = seen()
import scheduler.brokers.amqp.broker
scheduler.brokers.amqp.broker.AmqpBroker("amqp://localhost/")
assert seen() == before
"""


def test_others_find_the_driver_as_it_was() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SEEN_BY_OTHERS], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.fail(done.stderr)


# Timestamps

PLAIN = ContentHeader(properties=Basic.Properties(headers={"a": "b"}, message_id="m")).marshal()
SENT = datetime(2026, 11, 22, 11, 30, tzinfo=UTC)
FIRST = datetime.fromtimestamp(0, UTC)
EVERY_KIND: Any = {
    "array": [1, [SENT, {"deep": SENT}], SENT],
    "boolean": True,
    "bytes": bytearray(b"T"),
    "decimal": Decimal("1.5"),
    "double": 0.1,
    "empty": [],
    "long": 2**40,
    "none": None,
    "octet": -1,
    "sent": SENT,
    "short": 300,
    "table": {"deep": {"deeper": SENT}, "none": {}},
    "text": "T" * 300,
    "word": 70_000,
}
ALL: Any = {
    "content_type": "text/plain",
    "content_encoding": "gzip",
    "headers": EVERY_KIND,
    "delivery_mode": 2,
    "priority": 3,
    "correlation_id": "c",
    "reply_to": "r",
    "expiration": "1000",
    "message_id": "m",
    "timestamp": SENT,
    "message_type": "t",
    "user_id": "guest",
    "app_id": "a",
}


def header_of(**properties: Any) -> bytes:
    return ContentHeader(properties=Properties(**properties)).marshal()


def read(header: bytes) -> Basic.Properties:
    content = ContentHeader()
    content.unmarshal(header)
    return content.properties


def with_seconds(header: bytes, seconds: int) -> bytes:
    """The header with another moment in the place of SENT."""
    sent = struct.pack(">Q", int(SENT.timestamp()))
    return header.replace(sent, struct.pack(">Q", seconds))


@pytest.mark.parametrize("seconds", [2**63, 2**64 - 1, 10**15])
def test_a_moment_that_no_calendar_has_is_the_first_one(seconds: int) -> None:
    mended = without_impossible_timestamps(with_seconds(header_of(**ALL), seconds))
    assert mended == with_seconds(header_of(**ALL), 0)
    assert read(mended).timestamp == FIRST


@pytest.mark.parametrize("seconds", [0, 1, 2**32 - 1, 2**32, 253_402_300_799_000])
def test_every_other_moment_is_what_it_is(seconds: int) -> None:
    header = with_seconds(header_of(**ALL), seconds)
    assert without_impossible_timestamps(header) is header
    read(header)


@pytest.mark.parametrize("name", ALL)
def test_moments_are_found_beside_any_property(name: str) -> None:
    some = {name: ALL[name], "timestamp": SENT}
    mended = without_impossible_timestamps(with_seconds(header_of(**some), 2**63))
    assert mended == with_seconds(header_of(**some), 0)


def test_what_is_no_header_is_left_to_the_driver() -> None:
    whole = with_seconds(header_of(**ALL), 2**63)
    for length in range(whole.rindex(struct.pack(">Q", 2**63))):
        assert without_impossible_timestamps(whole[:length]) == whole[:length]
    unknown = header_of(headers={"a": None}).replace(b"V", b"?")
    assert without_impossible_timestamps(unknown) == unknown


async def test_only_headers_are_looked_into() -> None:
    header = with_seconds(header_of(**ALL), 2**63)
    reader = FrameReader()
    for kind in 3, 8, 2, 2:
        reader.feed_data(struct.pack(">BHI", kind, 1, len(header)) + header + b"\xce")
    reader.feed_eof()
    payloads: list[bytes] = []
    while not reader.at_eof():
        await reader.readexactly(1)
        await reader.readexactly(6)
        payloads.append((await reader.readexactly(len(header) + 1))[:-1])
    mended = without_impossible_timestamps(header)
    assert payloads == [header, header, mended, mended]


# Floats


def test_floats_keep_all_their_digits_wherever_they_stand() -> None:
    headers: Any = {"a": 0.1, "b": [0.1, [0.1], {"c": 0.1}], "d": {"e": {"f": [0.1]}}}
    assert read(header_of(headers=headers)).headers == headers


def test_all_but_floats_is_written_as_the_driver_writes_it() -> None:
    headers = {**EVERY_KIND, "double": 0, "\N{EURO SIGN}" * 50: "cut"}
    plain = ContentHeader(properties=Basic.Properties(headers=headers)).marshal()
    assert header_of(headers=headers) == plain


# Log lines


@asynccontextmanager
async def hanging_up() -> AsyncGenerator[URL]:
    """A server that nobody can speak to."""

    async def hang_up(_: object, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        yield URL(f"amqp://127.0.0.1:{server.sockets[0].getsockname()[1]}/")


async def test_who_cannot_connect_is_told_so_by_an_error_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with hanging_up() as url:
        pass
    with pytest.raises(aiormq.AMQPConnectionError):
        await driver.connect(url, None)
    assert not caplog.records
    with pytest.raises(aiormq.AMQPConnectionError):
        await aiormq.connect(url)
    assert [record.name for record in caplog.records] == ["aiormq.connection"]


async def test_who_gives_the_logger_of_the_driver_a_level_hears_of_ours(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "aiormq")
    async with hanging_up() as url:
        pass
    with pytest.raises(aiormq.AMQPConnectionError):
        await driver.connect(url, None)
    assert [record.name for record in caplog.records] == ["aiormq.connection"]
