"""Snapshots in parts: no message holds all loops, and only a complete snapshot counts."""

import asyncio
from dataclasses import replace
from random import Random

import pytest

from scheduler.errors import BrokerUnavailable, TooLarge
from scheduler.protocol.messages import Message
from scheduler.protocol.topology import Names, topology
from scheduler.queues.snapshots import SLICE, SLICE_BYTES, Bookmark, Share, Snapshots
from tests.faulty import FaultyBroker

NAMES = Names("test")
MANY = 10 * SLICE


@pytest.fixture
def snapshots(broker: FaultyBroker, monkeypatch: pytest.MonkeyPatch) -> Snapshots:
    monkeypatch.setattr("scheduler.queues.snapshots.MOST_BYTES", 10_000)
    return Snapshots(broker, NAMES)


def share(number: int, entries: int = MANY, *, at: int = 0) -> Share:
    """A share that cannot be compressed by much."""
    random = Random(number)
    lines = [b'"%s"' % random.randbytes(200).hex().encode() for _ in range(entries)]
    return Share(at, Bookmark(number, f"digest {number}"), lines, number)


def snapshot(number: int, entries: int = MANY) -> list[Share]:
    return [share(3 * number + at, entries, at=at) for at in range(2)]


async def latest(snapshots: Snapshots, only: int | None = None) -> list[Share] | None:
    """Return the latest snapshot, put together; or one share of it."""
    if (found := await snapshots.latest()) is None:
        return None
    whole, wanted = dict[int, Share](), (0, found.shares - 1) if only is None else (only, only)
    async for piece in snapshots.shares(found, *wanted):
        before = whole.get(piece.number, replace(piece, lines=[]))
        whole[piece.number] = replace(before, lines=[*before.lines, *piece.lines])
    assert only or found.up_to == whole[0].up_to
    return list(whole.values())


async def published(broker: FaultyBroker) -> list[Message]:
    return [message async for message in broker.read(NAMES.snapshots)]


async def again(broker: FaultyBroker, *parts: Message) -> None:
    await broker.delete(NAMES.snapshots)
    await broker.declare(topology("test", []))
    for part in parts:
        await broker.publish(part, exchange=NAMES.control, routing_key=NAMES.snapshots)


@pytest.mark.parametrize("entries", [0, SLICE, MANY + 1])
async def test_a_snapshot_is_read_as_it_was_written(snapshots: Snapshots, entries: int) -> None:
    assert await latest(snapshots) is None
    for number in 1, 2:
        await snapshots.append(snapshot(number, entries))
    assert await latest(snapshots) == snapshot(2, entries)
    for number, share in enumerate(snapshot(2, entries)):
        assert await latest(snapshots, number) == [share]


@pytest.mark.parametrize("longer", [1, 100])
async def test_parts_are_limited_in_size(
    snapshots: Snapshots, broker: FaultyBroker, longer: int
) -> None:
    lines = share(1).lines
    lines = [b"".join(lines[at : at + longer]) for at in range(0, MANY, longer)]
    await snapshots.append([Share(0, Bookmark(1, ""), lines)])
    sizes = [len(part.body) for part in await published(broker)]
    assert len(sizes) > 3
    assert max(sizes) < 150_000


async def test_a_broker_that_accepts_little_gets_smaller_parts(
    snapshots: Snapshots, broker: FaultyBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.brokers.memory.broker.LARGEST_BODY", 4_000)
    await snapshots.append(snapshot(1))
    assert max(len(part.body) for part in await published(broker)) <= 2_000
    assert await latest(snapshots) == snapshot(1)


async def test_an_incomplete_snapshot_is_ignored(
    snapshots: Snapshots, broker: FaultyBroker
) -> None:
    for number in 1, 2:
        await snapshots.append(snapshot(number, SLICE))
    parts = await published(broker)
    first, second = parts[: len(parts) // 2], parts[len(parts) // 2 :]
    for left_out in range(len(second)):
        await again(broker, *first, *(part for part in second if part is not second[left_out]))
        assert await latest(snapshots) == snapshot(1, SLICE)
    await again(broker, *first[1:], *second[1:])
    assert await latest(snapshots) is None


@pytest.mark.parametrize("error", [BrokerUnavailable("It went."), TooLarge("Too big.")])
async def test_a_snapshot_that_cannot_be_written_is_logged(
    snapshots: Snapshots,
    broker: FaultyBroker,
    error: Exception,
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker.on("publish", key=NAMES.snapshots).fails(error)
    await snapshots.append(snapshot(1))
    assert "The snapshot of the roster cannot be written" in caplog.text
    assert await latest(snapshots) is None


async def test_other_tasks_have_turns_during_a_snapshot(snapshots: Snapshots) -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    for act in snapshots.append(snapshot(1)), latest(snapshots):
        turns = 0
        await act
        assert turns > MANY * 400 / SLICE_BYTES
    counting.cancel()
