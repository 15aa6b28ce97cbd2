"""How the picture comes to know what was before, and outlives what happens to the broker."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from scheduler import Retry, Scheduler
from scheduler.brokers.memory.broker import MemoryBroker
from scheduler.dashboard import feed
from scheduler.dashboard.feed import Feed
from scheduler.dashboard.picture import Picture
from scheduler.errors import BrokerUnavailable, NoSpace
from scheduler.protocol.epochs import LoopState
from scheduler.protocol.messages import Message
from scheduler.protocol.tokens import LoopId
from scheduler.queues.loop_table import LoopTable
from tests.stage import START, Stage, looping, program_of

BEAT = LoopId("beat")


def beating() -> Scheduler:
    return looping("beat", every="10s", supervision_interval="1h")


def no_operation(_: Message) -> None: ...


@asynccontextmanager
async def followed(
    stage: Stage, *, shown: tuple[str, ...] = (), over: MemoryBroker | None = None
) -> AsyncGenerator[Picture]:
    picture = Picture("test")
    async with over or MemoryBroker(stage.server) as broker:
        program = program_of(beating(), broker, stage.clock)
        ours = Feed(program, picture, lambda: shown, no_operation)
        running = asyncio.create_task(ours.run())
        await asyncio.sleep(5)
        yield picture
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_the_journal_is_read_back_in_chunks_and_then_followed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stage.seed(beating())
    monkeypatch.setattr(feed, "CHUNK", 3)
    async with stage.processor():
        await asyncio.sleep(203)
        async with followed(stage) as picture:
            assert [run.seq for run in picture.loops[BEAT].runs] == list(range(20))
            assert not picture.is_reading_back
            assert picture.heard_back_to is not None
            assert picture.heard_back_to <= START
            await asyncio.sleep(30)
            assert [run.seq for run in picture.loops[BEAT].runs] == list(range(23))
            assert picture.loops[BEAT].listed is not None


async def test_a_loop_that_runs_once_a_day_is_found(stage: Stage) -> None:
    await stage.seed(beating())
    async with stage.processor():
        await asyncio.sleep(15)
    await asyncio.sleep(20 * 3600)
    async with followed(stage) as picture:
        assert [run.seq for run in picture.loops[BEAT].runs] == [0]


async def test_the_journal_is_read_back_up_to_a_limit(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stage.seed(beating())
    async with stage.processor():
        await asyncio.sleep(4000)
    monkeypatch.setattr(feed, "LOOK_BACK", timedelta(minutes=30))
    async with followed(stage) as picture:
        assert picture.heard_back_to is not None
        # A chunk is read whole.
        assert sum(minute.runs for _, minute in picture.minutes.last(600, stage.clock.now())) > 100


async def test_a_reading_that_the_broker_interrupts_counts_nothing_twice(stage: Stage) -> None:
    app = looping("beat", every="10s", raised=ValueError("no"), retry=Retry(0))
    await stage.seed(app)
    async with stage.processor():
        await asyncio.sleep(95)
    failing = stage.faulty.on("read", ".journal", where=lambda call: call.position == 8, times=1)
    failing.fails(BrokerUnavailable("It went."))
    async with followed(stage, over=stage.faulty) as picture:
        assert len(failing.met) == 1
        assert not picture.is_reading_back
        assert [group.count for group in picture.parked.values()] == [9]
        assert [run.seq for run in picture.loops[BEAT].runs] == list(range(9))


async def test_an_unseeded_app_is_reported_and_awaited(stage: Stage) -> None:
    async with followed(stage) as picture:
        assert (picture.seeded, picture.is_listed) == (False, False)
        await stage.seed(beating())
        await asyncio.sleep(15)
        assert (picture.seeded, picture.is_listed) == (True, True)
        assert picture.loops[BEAT].listed is not None


async def test_the_feed_writes_nothing(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    await stage.seed(beating())
    names = beating().names
    streams = [stage.server.stream(name) for name in (names.journal, names.roster)]
    before = [stream.end for stream in streams]

    async def never(*_: Any, **__: Any) -> None:
        pytest.fail("a slot was looked into, or something was published")

    with monkeypatch.context() as patched:
        for verb in ("get", "publish", "browse", "declare"):
            patched.setattr(MemoryBroker, verb, never)
        async with followed(stage, shown=(names.presence,)) as picture:
            assert picture.loops[BEAT].listed is not None
            assert picture.depths[names.presence] is not None
    assert [stream.end for stream in streams] == before


async def test_the_feed_continues_after_an_entry_found_no_space(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise NoSpace("The disk is full.")

    await stage.seed(beating())
    with monkeypatch.context() as full:
        full.setattr(LoopTable, "write", fail)
        async with followed(stage) as picture:
            assert not picture.is_listed
            full.undo()
            await asyncio.sleep(15)
            assert picture.is_listed
    async with followed(stage) as picture:
        with monkeypatch.context() as full:
            full.setattr(picture.listing.table, "write", fail)
            await stage.verbs.pause(stage.app.loop("beat"))
            await asyncio.sleep(5)
        await asyncio.sleep(5)
        assert picture.listing[BEAT].entry.state is LoopState.PAUSED
        await stage.verbs.resume(stage.app.loop("beat"))
        await asyncio.sleep(5)
        assert picture.listing[BEAT].is_active
        with monkeypatch.context() as full:
            full.setattr(picture.listing.table, "write", fail)
            await stage.removal.remove_all([stage.app.loop("beat")])
            await asyncio.sleep(5)
        await asyncio.sleep(5)
        shown = picture.loops[BEAT].listed
        assert shown is not None
        assert shown.is_gone


async def test_the_feed_continues_after_a_lost_connection(stage: Stage) -> None:
    await stage.seed(beating())
    async with followed(stage) as picture, stage.processor():
        stage.server.disconnect_all()
        await asyncio.sleep(30)
        assert picture.connected
        assert picture.loops[BEAT].runs
