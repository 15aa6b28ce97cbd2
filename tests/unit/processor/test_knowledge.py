"""No token is run before all epochs are known that had begun: at the start, and after a cut."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta

import pytest

from scheduler.errors import BrokerUnavailable, NoSpace
from scheduler.events import (
    Connected,
    ConnectionLost,
    ConsumerInterrupted,
    ConsumerResumed,
    EpochHeard,
    Event,
)
from scheduler.processor.knowledge import Knowledge
from scheduler.processor.recognition import LoopTurns
from scheduler.protocol.epochs import Entry, LoopState
from scheduler.protocol.tokens import LoopId, Token
from scheduler.protocol.topology import Names
from scheduler.queues.entries import LONG, Checkpoint, RosterEntry, checkpoint_of
from scheduler.queues.listing import Listing
from scheduler.queues.loop_table import SETTINGS
from scheduler.queues.roll_call import RollCall
from scheduler.queues.roster import Roster
from scheduler.timing.moments import LoopClock
from scheduler.timing.schedules import Every
from tests.faulty import Call, Fault, FaultyBroker
from tests.stage import START, Stage, append_blindly, looping, roster_of, seconds_of

LOOP, NAMES = LoopId("task"), Names("test")
LOST = ConnectionLost("memory://", "cut"), Connected("memory://", "4.0", timedelta(seconds=1))


def interrupted(queue: str) -> tuple[Event, Event]:
    return ConsumerInterrupted(queue, "its node failed"), ConsumerResumed(queue)


@dataclass
class Reading:
    """The readings of the roster by one processor, which wait to be let through."""

    broker: FaultyBroker
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)

    def held(self) -> Fault:
        async def hold(call: Call) -> None:
            self.begun.set()
            await self.go_on.wait()

        return self.broker.on("read", ".roster").first(hold)


@dataclass
class Knowing:
    """What a processor knows, to be told of interruptions."""

    knowledge: Knowledge
    roster: Roster
    broker: FaultyBroker
    events: list[Event]

    @property
    def listing(self) -> Listing:
        return self.roster.listing

    def cut(self) -> None:
        """Its connection is lost, and is there again."""
        for event in LOST:
            self.knowledge.hear(event)

    async def is_current(self) -> bool:
        """Whether it knows all, or comes to within a second."""
        try:
            await asyncio.wait_for(self.knowledge.current.wait(), 1)
        except TimeoutError:
            return False
        return True


def about_to_know(stage: Stage, broker: FaultyBroker) -> Knowing:
    roster = roster_of(NAMES, broker, stage.clock)
    roll_call, events = RollCall(broker, NAMES, LoopTurns(roster.listing)), list[Event]()
    return Knowing(Knowledge(NAMES, roster, roll_call, events.append), roster, broker, events)


@asynccontextmanager
async def knowing(stage: Stage) -> AsyncGenerator[Knowing]:
    async with FaultyBroker(stage.server) as broker:
        its = about_to_know(stage, broker)
        async with its.knowledge:
            yield its


async def test_a_processor_stops_without_confirmation_of_its_end(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stage.seed(looping(every="10s"))
    alarm_is_over, leave = asyncio.Event(), RollCall.__aexit__

    async def hang(roll_call: RollCall, *exception: object) -> None:
        await alarm_is_over.wait()
        await leave(roll_call, *exception)

    monkeypatch.setattr(RollCall, "__aexit__", hang)
    async with knowing(stage):
        began = stage.clock.now()
    assert stage.clock.now() - began == timedelta(seconds=5)
    alarm_is_over.set()
    await asyncio.sleep(1)


async def test_a_processor_reports_its_lag_behind_the_roster(stage: Stage) -> None:
    await stage.seed(looping(every="10s"))
    slow_clock = LoopClock(START - timedelta(seconds=3))
    async with knowing(stage) as its:
        gone = LoopId("task", "gone")
        entry = Entry(7, LoopState.GONE, 1)
        listed = RosterEntry(gone, Every("1m"), {}, entry, at=slow_clock.now())
        (appended,) = await roster_of(NAMES, stage.broker, slow_clock).append([listed])
        assert isinstance(appended, RosterEntry)
        await append_blindly(stage.broker, NAMES, [appended])
        await asyncio.sleep(3)
        assert its.events == [EpochHeard(gone, 7, timedelta(seconds=3))]


async def test_no_token_runs_before_the_roster_was_read_at_the_start_and_after_a_cut(
    stage: Stage,
) -> None:
    await stage.seed(looping(every="10s"))
    await asyncio.sleep(11)
    reading = Reading(stage.faulty)
    reading.held()
    lost, back = LOST
    async with stage.processor(over=stage.faulty):
        await reading.begun.wait()
        await asyncio.sleep(5)
        assert (await stage.ready_for("task"), await stage.consumers_of("task")) == (1, 0)
        reading.go_on.set()
        await asyncio.sleep(5)
        assert stage.starts() == [16.0]
        reading.begun.clear()
        reading.go_on.clear()
        stage.app.events.emit(lost)
        await asyncio.sleep(10)
        stage.app.events.emit(back)
        await reading.begun.wait()
        await asyncio.sleep(5)
        assert stage.starts() == [16.0]
        reading.go_on.set()
        await asyncio.sleep(1)
    assert stage.starts() == [16.0, 36.0]


async def test_a_reconnect_after_its_end_begins_nothing(stage: Stage) -> None:
    await stage.seed()
    async with knowing(stage) as it:
        pass
    before = asyncio.all_tasks()
    it.cut()
    assert asyncio.all_tasks() == before


async def test_it_reads_the_whole_roster_again_after_its_table_found_no_space(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await stage.seed(looping(every="10s"))
    settings = "scheduler.queues.loop_table.SETTINGS"
    entry, args = Entry(9, LoopState.PAUSED, 9), {"x": "x" * 1000}
    later = RosterEntry(LoopId("c"), Every("1h"), {}, entry)
    many = [replace(later, loop=LoopId("b", str(n)), args=args) for n in range(100)]
    with monkeypatch.context() as full:
        full.setattr(settings, "PRAGMA journal_mode = OFF; PRAGMA max_page_count = 12;")
        async with knowing(stage) as its:
            before = set(its.listing)
            await append_blindly(stage.broker, NAMES, many)
            await asyncio.sleep(1)
            assert not await its.is_current()
            full.setattr(settings, SETTINGS)
            await asyncio.wait_for(its.knowledge.current.wait(), 5)
            assert set(its.listing) == before | {listed.loop for listed in many}
            await roster_of(NAMES, stage.broker, stage.clock).append([later])
            await asyncio.sleep(1)
            assert its.listing[later.loop].entry == entry
    for said in "could not be read", "cannot be followed":
        assert f"The roster {said}: The temporary file" in caplog.text


@pytest.mark.parametrize("who", ["the follower", "a reader"])
async def test_a_follower_that_has_ended_is_replaced_without_an_interruption(
    stage: Stage, who: str
) -> None:
    await stage.seed()
    entries = [
        RosterEntry(LoopId(name), Every("1h"), {}, Entry(9, LoopState.PAUSED, 9)) for name in "abc"
    ]
    async with knowing(stage) as its:
        assert await its.is_current()
        await stage.broker.delete(NAMES.roster)
        await stage.broker.declare(stage.app.topology())
        if who == "a reader":
            await its.roster.read()
        for listed in entries:
            await append_blindly(stage.broker, NAMES, [listed])
            await asyncio.sleep(1)
            assert await its.is_current()
            assert its.listing.get(listed.loop) == listed


@pytest.mark.parametrize("paused", [True, False])
async def test_after_a_cut_a_call_waits_a_while_for_the_roster_which_may_pause_its_task(
    stage: Stage, paused: bool
) -> None:
    mail = stage.task("mail")
    await stage.seed()
    lost, back = LOST
    async with stage.processor(over=stage.faulty):
        await asyncio.sleep(5)
        (connection,) = [each for each in stage.server.connections if each.subscriptions]
        connection.detach()
        stage.app.events.emit(lost)
        if paused:
            await stage.app.pause("mail")
        await mail.send()
        reading = Reading(stage.faulty)
        reading.held()
        connection.attach()
        back_at = seconds_of([stage.clock.now()])[0]
        stage.app.events.emit(back)
        await asyncio.sleep(4)
        assert stage.starts() == []
        if paused:
            reading.go_on.set()
        await asyncio.sleep(4)
        reading.go_on.set()
    assert stage.starts() == ([] if paused else [pytest.approx(back_at + 5, abs=0.1)])


@pytest.mark.parametrize(
    "queue", [NAMES.roster, NAMES.roll_call, NAMES.presence, NAMES.processor_queue("task")]
)
async def test_a_processor_without_the_roster_is_not_current(stage: Stage, queue: str) -> None:
    await stage.seed(looping(every="10s"))
    matters = queue != NAMES.processor_queue("task")
    lost, back = interrupted(queue)
    async with knowing(stage) as known:
        assert await known.is_current()
        known.knowledge.hear(lost)
        assert await known.is_current() is not matters
        known.knowledge.hear(back)
        assert await known.is_current()


async def test_reading_starts_after_roll_calls_and_roster_are_followed(stage: Stage) -> None:
    await stage.seed(looping(every="10s"))
    async with knowing(stage) as known:
        (connection,) = [each for each in stage.server.connections if each.subscriptions]
        connection.detach()
        known.cut()
        known.broker.calls.clear()
        assert not await known.is_current()
        assert not known.broker.calls
        connection.attach()
        assert await known.is_current()


@pytest.mark.parametrize("error", [BrokerUnavailable("not yet"), NoSpace("The disk is full.")])
async def test_an_unreadable_roster_is_read_again_until_it_works(
    stage: Stage, error: Exception
) -> None:
    await stage.seed(looping(every="10s"))
    async with knowing(stage) as known:
        failing = known.broker.on("read", ".roster").fails(error)
        known.cut()
        assert not await known.is_current()
        assert len(failing.met) > 3
        await failing.cease()
        await asyncio.sleep(2)
        assert await known.is_current()


@pytest.mark.parametrize("is_first", [True, False])
async def test_a_cut_during_the_reading_restarts_it(stage: Stage, is_first: bool) -> None:
    await stage.seed(looping(every="10s"))
    lost, back = LOST
    async with AsyncExitStack() as opened:
        broker = await opened.enter_async_context(FaultyBroker(stage.server))
        known, reading = about_to_know(stage, broker), Reading(broker)
        if not is_first:
            await opened.enter_async_context(known.knowledge)
        holding = reading.held()
        async with asyncio.TaskGroup() as group:
            if is_first:
                group.create_task(opened.enter_async_context(known.knowledge))
            else:
                known.cut()
            await reading.begun.wait()
            known.knowledge.hear(lost)
            reading.go_on.set()
        assert not await known.is_current()
        known.knowledge.hear(back)
        assert await known.is_current()
        assert len(holding.met) > 1


# What was noted


def noted_in(epoch: int) -> RosterEntry:
    """The entry of an epoch that goes on from a token that was noted in the one before."""
    tick = START + timedelta(hours=1)
    token = Token(LOOP, Every("1h"), tick, tick, epoch=epoch - 1, life=1, seq=5)
    checkpoint = checkpoint_of(token, "test", tick)
    entry = Entry(epoch, LoopState.PAUSED, 1, base=epoch - 1)
    return RosterEntry(LOOP, Every("1h"), {}, entry, checkpoint=checkpoint)


def first_of(epoch: int) -> Token:
    return Token(LOOP, Every("1h"), START, START, epoch=epoch, life=1, first=True)


async def test_the_note_of_an_epoch_is_waited_for_and_no_other_one_counts(stage: Stage) -> None:
    await stage.seed()
    async with knowing(stage) as its:
        its.listing.enter(noted_in(6))
        asking = asyncio.create_task(its.knowledge.noted(first_of(7)))
        await asyncio.sleep(1)
        assert not asking.done()
        its.listing.enter(listed := noted_in(7))
        noted = await asking
        assert await its.knowledge.noted(first_of(6)) is None
        assert await its.knowledge.noted(first_of(8)) is None  # its entry does not come
        its.listing.enter(replace(noted_in(8), checkpoint=Checkpoint({}, "garbage", START)))
        assert await its.knowledge.noted(first_of(8)) is None
    assert listed.checkpoint is not None
    assert noted == (listed.checkpoint.token("test"), START + timedelta(hours=1))


@pytest.mark.parametrize("is_read", [True, False], ids=["later", "at once"])
async def test_a_skipped_note_is_read_if_the_journal_may_lack_it(
    stage: Stage, is_read: bool
) -> None:
    await stage.seed()
    async with knowing(stage) as its:
        listed = noted_in(7)
        assert listed.checkpoint is not None
        before = listed.checkpoint.token("test")
        await stage.program.roster.append([listed])
        ahead = checkpoint_of(replace(before, epoch=7, seq=9), "test", listed.checkpoint.until)
        await append_blindly(stage.broker, NAMES, [replace(listed, checkpoint=ahead)])
        await asyncio.sleep(LONG.total_seconds() + 1 if is_read else 1)
        found = await its.knowledge.noted(first_of(7))
    assert found is not None
    assert found[0].seq == (9 if is_read else 5)
