"""The census: the last put of every loop, and what it tells of doubled and long ones."""

import asyncio
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from scheduler.brokers.contract import Depth
from scheduler.control.census import BREATHE_EVERY, LOOK_BACK, MOST_BEHIND, Census, count
from scheduler.control.keyed import loop_of
from scheduler.protocol.epochs import Entry, LoopState, Verb
from scheduler.protocol.tokens import Act, Ending, LastRun, LoopId, State, Token
from scheduler.queues.entries import LONG, RosterEntry, checkpoint_of
from scheduler.queues.loop_table import STEPS
from scheduler.timing.durations import SECOND, ZERO
from scheduler.timing.moments import LoopClock, milliseconds_since_epoch
from scheduler.timing.schedules import Every
from tests.faulty import FaultyBroker
from tests.stage import START, Stage, an_app, program_of, timers_of

EPOCH = 7
LOOPS = [LoopId("task", f"k{n}") for n in range(500)]
ONE = LOOPS[0]


def token(seq: int, loop: LoopId = ONE, *, late: timedelta = ZERO, **more: Any) -> Token:
    """Return what a run of a loop has put."""
    at = START + seq * SECOND
    last = LastRun(Ending.SUCCEEDED, scheduled_at=at, started_at=at + late, duration=ZERO)
    made = Token(loop, Every(SECOND), at + SECOND, at + SECOND, epoch=EPOCH, life=EPOCH, seq=seq)
    return replace(made, **{"last": last, **more})


class Desk:
    """A journal, and a census of it."""

    def __init__(self, stage: Stage, clock: LoopClock) -> None:
        self.app = an_app("test", ["task"])
        self.broker = FaultyBroker(stage.server)
        self.timers = timers_of(self.app.names, stage.broker, clock)
        self.program = program_of(self.app, self.broker, clock)
        self.listing = self.program.roster.listing
        self.enter()
        self.census = Census(self.program)

    def enter(self) -> None:
        for loop in LOOPS:
            entry = Entry(EPOCH, LoopState.ACTIVE, EPOCH)
            self.listing.enter(RosterEntry(loop, Every(SECOND), {}, entry, at=START))

    @property
    def heard(self) -> list[int]:
        """How far the loops have come that were heard of."""
        return [put.seq for loop in LOOPS if (put := self.census.put_of(loop)) is not None]

    def may_be_overdue(self, at: datetime) -> int:
        return len(self.listing.table.overdue(milliseconds_since_epoch(at), 1000))

    async def hear(self, *tokens: Token) -> Census:
        for each in tokens:
            await self.timers.record(each)
        async with self.broker:
            await self.census.read_on()
        return self.census


@pytest.fixture
async def desk(stage: Stage, clock: LoopClock) -> Desk:
    desk = Desk(stage, clock)
    await stage.broker.declare(desk.app.topology())
    return desk


async def test_a_census_that_begins_again_reads_from_near_on(desk: Desk) -> None:
    await desk.hear(token(1))
    for seq in 2, 3:
        await asyncio.sleep((LOOK_BACK + SECOND).total_seconds())
        await desk.timers.record(token(seq))
    desk.census.begin_again()
    desk.broker.calls.clear()
    await desk.hear()
    read = [call for call in desk.broker.calls if call.operation == "read" and call.message.type]
    assert len(read) == 1
    assert desk.heard == [3]


async def test_puts_heard_again_are_no_second_line(desk: Desk) -> None:
    await desk.hear(token(1), token(2), token(3))
    for _ in range(2):
        desk.census.begin_again()
    census = await desk.hear(token(4))
    assert (census.doubled, desk.heard) == ({}, [4])
    assert (await desk.hear(token(3, late=SECOND))).doubled == {ONE: EPOCH}


async def test_puts_that_a_full_table_has_lost_are_heard_again(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.control.census.MOST_PUTS", 10)
    await desk.hear(*(token(1, loop) for loop in LOOPS))
    desk.listing.begin_again()
    desk.enter()
    census = await desk.hear()
    assert (census.doubled, desk.heard) == ({}, [1] * len(LOOPS))


async def test_a_noted_put_counts_if_it_is_later(desk: Desk) -> None:
    census = await desk.hear(token(5))
    for seq, known in [(4, 5), (6, 6)]:
        noted = checkpoint_of(token(seq), "test", START)
        listed = replace(desk.listing[ONE], checkpoint=noted)
        assert (put := census.put_of_entry(listed)) is not None
        assert put.seq == known


@pytest.mark.parametrize("in_memory", [10, len(LOOPS)])
async def test_the_last_put_of_every_loop_is_remembered(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, in_memory: int
) -> None:
    monkeypatch.setattr("scheduler.control.census.MOST_PUTS", in_memory)
    await desk.hear(*(token(1, loop) for loop in LOOPS))
    census = await desk.hear(*(token(2, loop) for loop in LOOPS[:100]))
    assert desk.heard == [2] * 100 + [1] * 400
    assert census.doubled == {}
    if in_memory == 10:  # of those in the table, it is known when they are due
        assert desk.may_be_overdue(START + 2 * SECOND) < 20
        assert desk.may_be_overdue(START + 3 * SECOND) > 390
    assert await census.overdue(START + 2 * SECOND, ZERO, {}) == []
    assert desk.may_be_overdue(START + 2 * SECOND) == 0  # until then, they are not checked again
    census = await desk.hear(token(1, LOOPS[-1], late=SECOND))
    assert census.doubled == {LOOPS[-1]: EPOCH}


@pytest.mark.parametrize("wait", [SECOND, 2 * LONG])  # in memory, and in the table at once
async def test_two_lines_are_found_however_far_apart_they_are(desk: Desk, wait: timedelta) -> None:
    first, second, late = (
        token(seq, late=late, due_at=START + seq * SECOND + wait)
        for seq, late in [(1, ZERO), (2, ZERO), (2, SECOND)]
    )
    others = (token(1, loop) for loop in LOOPS[1:])
    census = await desk.hear(first, second, *others, late)
    assert census.doubled == {ONE: EPOCH}
    assert (desk.listing.table.put(ONE) is not None) is (wait > LONG)


@pytest.mark.parametrize(
    "tokens",
    [
        [token(1), token(1)],  # published again, as it is
        [token(1), token(1, attempt=1), token(2)],
        [token(2, epoch=EPOCH - 1), token(1)],  # a later epoch begins where it begins
        [token(2, epoch=EPOCH - 1), token(2, epoch=EPOCH - 1, late=SECOND)],  # both are void
        [token(2), token(2, first=True, last=None, act=Act(Verb.REPAIR, START))],
    ],
)
async def test_one_line_is_not_taken_for_two(desk: Desk, tokens: list[Token]) -> None:
    assert (await desk.hear(*tokens)).doubled == {}


@pytest.mark.parametrize(
    ("ready", "consumers", "found"),
    [(0, 1, [500, 500]), (400, 1, [0, MOST_BEHIND]), (400, 0, [MOST_BEHIND, MOST_BEHIND])],
)
async def test_behind_a_backlog_only_some_loops_are_checked_and_others_next(
    desk: Desk, clock: LoopClock, ready: int, consumers: int, found: list[int]
) -> None:
    retry = token(600, attempt=1)  # which tells nothing of when its tick was served
    census = await desk.hear(*(token(seq, loop) for seq, loop in enumerate(LOOPS)), retry)
    await asyncio.sleep(2 * len(LOOPS))
    depths = {"task": Depth(ready, consumers), "without a queue": None}
    first = await census.overdue(clock.now(), SECOND, depths)
    census.look_again(each.loop.id for each in first)
    second = await census.overdue(clock.now() + 10 * SECOND, SECOND, depths)
    assert [len(first), len(second)] == found
    assert second[0].served_until == START + (len(LOOPS) - 1) * SECOND  # passed over since
    if len(second) < len(LOOPS):
        assert {each.loop.id for each in first}.isdisjoint(each.loop.id for each in second)


LASTED = LastRun(Ending.SUCCEEDED, START + SECOND, START + SECOND, duration=2 * SECOND)


@pytest.mark.parametrize(
    ("put", "is_long"),
    [
        (token(1), False),
        (token(1, due_at=START + LONG), False),
        (token(1, due_at=START + SECOND + LONG), True),  # though it is soon due, as heard late
        (token(1, due_at=START + SECOND + LONG, last=LASTED), False),
        (token(1, due_at=START + LONG, first=True, act=Act(Verb.RESUME, START)), False),
        (token(0, due_at=START + 3 * LONG, last=None), False),  # the entry of a start says it
        (token(0, due_at=START + 3 * LONG, last=None, life=EPOCH - 1), True),
        (token(1, state=State.PAUSED), True),
        (token(1, state=State.DONE), True),
        (token(1, epoch=EPOCH - 1), True),  # the last run of a loop that was paused meanwhile
    ],
)
async def test_long_waits_are_kept_for_the_roster(desk: Desk, put: Token, is_long: bool) -> None:
    await asyncio.sleep(LONG.total_seconds())
    assert (ONE in (await desk.hear(put)).long) is is_long


async def test_a_loop_that_is_gone_is_forgotten(desk: Desk) -> None:
    await desk.hear(token(1), token(1, late=SECOND), token(2, state=State.DONE))
    assert desk.heard == [2]
    gone = token(0, state=State.PAUSED, first=True, last=None, act=Act(Verb.REMOVE, START))
    census = await desk.hear(gone)
    assert (desk.heard, dict(census.doubled), dict(census.long)) == ([], {}, {})


async def test_the_first_reading_begins_where_the_roster_ends(desk: Desk) -> None:
    await desk.timers.record(token(1))
    await asyncio.sleep(LOOK_BACK.total_seconds() + 1)
    await desk.hear(token(2, LOOPS[1]))
    assert desk.heard == [2]
    desk.census = Census(desk.program)
    async with desk.broker:
        await desk.census.read_on(START)  # until then, it was noted
    assert desk.heard == [1, 2]


async def test_other_tasks_have_their_turns_while_overdue_loops_are_indexed_and_checked(
    desk: Desk,
) -> None:
    async def turns_during(at: datetime) -> int:
        looking, turns = asyncio.create_task(desk.census.overdue(at, SECOND, {})), 0
        while not looking.done():
            await asyncio.sleep(0)
            turns += 1
        return turns

    assert await turns_during(START) > STEPS
    assert await turns_during(START + 60 * SECOND) > len(LOOPS) / BREATHE_EVERY


async def test_loops_are_counted_by_state_and_messages_by_timer(stage: Stage) -> None:
    @stage.app.task
    async def report() -> None: ...

    @stage.app.periodic(every="1h")
    async def hourly() -> None: ...

    await stage.seed()
    loops = [loop_of(report.spec, Every(SECOND), {}, f"r{n}") for n in range(5)]
    await stage.seeding.start_all(loops)
    await stage.verbs.pause(loops[0])
    await report.send_later("10m")
    async with FaultyBroker(stage.server) as broker:
        program = program_of(stage.app, broker, stage.clock)
        figures = await count(program)
        assert figures.tally.loops["report"] == {LoopState.ACTIVE: 4, LoopState.PAUSED: 1}
        assert figures.tally.loops["hourly"] == {LoopState.ACTIVE: 1}
        assert (sum(figures.timers.values()), figures.void) == (7, 1)  # one of the paused loop
        assert sum(figures.later.values()) == 1
        tally = figures.tally
        assert (tally.overdue, tally.doubled, tally.paused) == (0, 0, [])
        async with stage.processor():
            await asyncio.sleep(7)
        assert (await count(program)).tally.overdue == 0  # as the journal tells
        await asyncio.sleep(10)
        figures = await count(program)
        assert figures.at == stage.clock.now()
        assert set(figures.tally.overdue_names) == {f"report.r{n}" for n in range(1, 5)}
        assert (figures.tally.overdue, figures.ready) == (4, {"report": 4})
        assert figures.void == 0  # as far as the timers tell
        await stage.app.pause("report")
        tally = (await count(program)).tally
        assert (tally.overdue, tally.paused) == (0, ["report"])
        assert not [call for call in broker.calls if call.operation in ("publish", "declare")]
