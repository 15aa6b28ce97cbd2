"""Which loops there are, as all processors hear of it."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from scheduler import Cron, Every
from scheduler.brokers.memory.broker import MemoryBroker
from scheduler.brokers.memory.server import MemoryServer
from scheduler.errors import QueueNotFound
from scheduler.protocol.messages import Message
from scheduler.protocol.tokens import LoopId
from scheduler.protocol.topology import Names, topology
from scheduler.queues.roster import Listed, Roster
from scheduler.timing.clock import LoopClock
from tests.stage import START, roster_of

NAMES = Names("test")
A = Listed(LoopId("a"), Every("1m"), {})
B = Listed(
    LoopId("b", "bonn"), Cron("0 9 * * MON-FRI", tz="Europe/Berlin"), {"city": "Bonn", "n": 1}
)
B_LATER = Listed(B.loop, Every("1h"), {"city": "Köln"})


@pytest.fixture
async def broker(clock: LoopClock) -> AsyncIterator[MemoryBroker]:
    async with MemoryBroker(MemoryServer(clock)) as broker:
        await broker.declare(topology("test", [], []))
        yield broker


@pytest.fixture
def roster(broker: MemoryBroker, clock: LoopClock) -> Roster:
    return roster_of(NAMES, broker, clock)


async def test_what_was_added_and_not_removed_is_listed_as_it_was_added_last(
    roster: Roster,
) -> None:
    assert await roster.read() == {}
    await roster.add(A)
    await roster.add(B)
    assert await roster.read() == {A.loop: A, B.loop: B}
    await roster.add(B_LATER)
    await roster.remove(A.loop)
    await roster.remove(LoopId("never", "there"))
    assert await roster.read() == {B.loop: B_LATER}
    await roster.add(A)
    assert list(await roster.read()) == [B.loop, A.loop]


async def test_who_follows_knows_what_was_and_hears_what_comes(roster: Roster) -> None:
    await roster.add(A)
    listed: dict[LoopId, Listed] = {}
    following = await roster.follow(listed)
    await asyncio.sleep(0.1)
    assert listed == {A.loop: A}
    await roster.add(B)
    await roster.remove(A.loop)
    await asyncio.sleep(0.1)
    assert listed == {B.loop: B}
    await following.cancel()
    await roster.remove(B.loop)
    await asyncio.sleep(0.1)
    assert listed == {B.loop: B}


def entry(**changes: Any) -> bytes:
    whole: dict[str, Any] = {
        "did": "added",
        "task": "b",
        "key": "x",
        "at_ms": 1,
        "schedule": {},
        "args": {},
    }
    return json.dumps(whole | changes).encode()


@pytest.mark.parametrize(
    "body",
    [b"", b"\xff", b"[]", b"7", entry(did="lent"), entry(task=""), entry(at_ms=-1), entry()]
    + [entry(schedule={"kind": "moon"}), entry(schedule=None), entry(args=[])],
)
async def test_an_entry_that_cannot_be_read_is_left_out_and_told(
    broker: MemoryBroker, roster: Roster, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    await roster.add(A)
    message = Message(body)
    await broker.publish(message, exchange=NAMES.control, routing_key=NAMES.roster)
    await roster.add(B)
    assert await roster.read() == {A.loop: A, B.loop: B}
    assert "An entry of the roster is left out" in caplog.text


async def test_an_entry_tells_when_it_was_made(broker: MemoryBroker, roster: Roster) -> None:
    await asyncio.sleep(5)
    await roster.remove(A.loop)
    (message,) = [message async for message in broker.read(NAMES.roster)]
    assert json.loads(message.body) == {
        "did": "removed",
        "task": "a",
        "key": "",
        "at_ms": int(START.timestamp() + 5) * 1000,
    }


async def test_where_nothing_was_seeded_there_is_no_roster(
    broker: MemoryBroker, roster: Roster
) -> None:
    await broker.delete(NAMES.roster)
    with pytest.raises(QueueNotFound):
        await roster.read()
