"""Parked ticks are told in the zone of their schedule."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.brokers.amqp.broker import AmqpBroker
from scheduler.protocol.topology import Names
from tests.acceptance.conftest import APPS, FINE, CommandLine
from tests.stage import an_app
from tests.sweep import clear

MISHAPS = f"{APPS}/mishaps.py:app"


@pytest.fixture
def mishaps(broker_url: str, namespace: str, tmp_path: Path) -> Iterator[CommandLine]:
    """The command line for the app in `apps/mishaps.py`, seeded."""
    command_line = CommandLine(
        tmp_path,
        SCHEDULER_BROKER_URL=broker_url,
        SCHEDULER_APP=MISHAPS,
        SHOP_NAMESPACE=namespace,
    )
    done = command_line("seed")
    assert done.code == FINE, done.output
    yield command_line
    asyncio.run(clear(broker_url, an_app(namespace, ["fail"]).topology()))


async def lose(url: str, queue: str) -> None:
    """Delete a queue, as an operator's mistake does, or a disk that is gone."""
    async with AmqpBroker(url) as broker:
        await broker.delete(queue)


def test_a_tick_that_was_parked_is_told_in_the_zone_of_its_schedule(
    mishaps: CommandLine, broker_url: str, namespace: str
):
    assert mishaps("trigger", "fail").code == FINE
    with mishaps.processor() as processor:
        processor.until("fail #0  failed for the last time")
        processor.signal()
        assert processor.end().code == FINE
    at = re.compile(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d\+05:30\b")
    listed = mishaps("failed", "list", TZ="America/Lima")
    ((identity, *_),) = listed.rows
    assert at.search(listed.out)
    shown = mishaps("failed", "show", identity, TZ="America/Lima")
    told = {line[:12].strip(): line[13:] for line in shown.out.splitlines()}
    assert at.match(told["parked at"])
    assert " s ago" in mishaps.in_terminal("failed", "list").out
    asyncio.run(lose(broker_url, Names(namespace).roster))
    assert mishaps("failed", "list", TZ="America/Lima").out == listed.out
