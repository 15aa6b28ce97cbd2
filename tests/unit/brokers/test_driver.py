"""What our connections change of their driver: nothing, for anybody else in the program."""

import asyncio
import logging
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import aiormq
import pytest
from yarl import URL

from scheduler.brokers.amqp import driver

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


def test_a_driver_that_lacks_what_is_overridden_is_refused_with_its_name() -> None:
    class Connection:
        def __init__(self) -> None: ...

    with pytest.raises(ImportError, match=r"_Connection__reader.*tested with aiormq>=") as refused:
        driver.check_private_names(aiormq.Channel, Connection)
    assert "_Channel__close_after_failure" not in str(refused.value)


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
