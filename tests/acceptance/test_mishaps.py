"""What the log of a processor says of what befalls its loops."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import aiormq
import pytest

from scheduler.brokers.amqp.broker import AmqpBroker
from scheduler.protocol.tokens import LoopId
from scheduler.protocol.topology import Names
from tests import tokens
from tests.acceptance.conftest import APPS, CommandLine
from tests.stage import an_app
from tests.sweep import clear

MISHAPS = f"{APPS}/mishaps.py:app"
FINE = 0


@pytest.fixture
def mishaps(broker_url: str, namespace: str, tmp_path: Path) -> Iterator[CommandLine]:
    """The command line for the app in `apps/mishaps.py`, seeded."""
    command_line = CommandLine(
        tmp_path,
        SCHEDULER_BROKER_URL=broker_url,
        SCHEDULER_APP=MISHAPS,
        SCHEDULER_SUPERVISION_INTERVAL="1s",
        SHOP_NAMESPACE=namespace,
    )
    done = command_line("seed")
    assert done.code == FINE, done.output
    yield command_line
    asyncio.run(clear(broker_url, an_app(namespace, ["beat", "block", "fail"]).topology()))


async def lose(url: str, *queues: str) -> None:
    """Delete queues, as an operator's mistake does, or a disk that is gone."""
    connection = await aiormq.connect(url)
    try:
        channel = await connection.channel()
        for queue in queues:
            await channel.queue_delete(queue)
    finally:
        await connection.close()


async def lose_token(url: str, names: Names, loop: LoopId) -> None:
    async with AmqpBroker(url) as broker:
        assert await tokens.lose(broker, names, loop) == 1


def test_a_run_that_is_paused_meanwhile_is_not_said_to_have_a_next(seeded: CommandLine):
    assert seeded("trigger", "wait_for_input").code == FINE
    with seeded.processor() as processor:
        processor.until("waiting for input")
        assert seeded("pause", "wait_for_input").code == FINE
        processor.say("go on")
        line = processor.until("wait_for_input #0  succeeded")
        processor.signal()
        assert processor.end().code == FINE
    assert line.endswith(", and was paused, changed or repaired meanwhile\n")


def test_a_tick_that_is_paused_before_its_run_is_said_not_to_run(seeded: CommandLine):
    assert seeded("trigger", "report").code == FINE
    while seeded("status", "report", "--json").json["where"] != "ready":
        pass  # on its way
    assert seeded("pause", "report").code == FINE
    with seeded.processor() as processor:
        processor.until("report #0  skipped: the loop was paused, rescheduled or repaired in")
        processor.signal()
        log = processor.end().output
    assert "reported Bonn" not in log


def test_a_loop_that_lost_its_token_and_the_journal_is_said_to_have_lost_its_place(
    mishaps: CommandLine, broker_url: str, namespace: str
):
    with mishaps.processor() as processor:
        processor.until("beat #2  succeeded")
        processor.signal()
        assert processor.end().code == FINE
    asyncio.run(lose_token(broker_url, names := Names(namespace), LoopId("beat")))
    asyncio.run(lose(broker_url, names.journal))
    with mishaps.processor() as processor:
        line = processor.until("has lost its place")
        again = processor.until(" beat #0  ")
        processor.signal()
        assert processor.end().code == FINE
    assert re.search(r" WARNING +beat has lost its place: .* goes on from now, at #0,", line), line
    assert again.endswith(" beat 1\n")  # what it had carried is gone, too


def test_a_task_that_blocks_the_event_loop_is_named_with_its_line(mishaps: CommandLine):
    path = APPS / "mishaps.py"
    lines = path.read_text().splitlines()
    (number,) = [n for n, line in enumerate(lines, 1) if "time.sleep" in line]
    assert mishaps("trigger", "block").code == FINE
    with mishaps.processor() as processor:
        line = processor.until("the event loop is blocked by")
        after = processor.until("the event loop was blocked for")
        processor.signal()
        assert processor.end().code == FINE
    by = f"by run block #0, at {path}:{number} (block)"
    assert (by in line, by in after) == (True, True), line + after


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
