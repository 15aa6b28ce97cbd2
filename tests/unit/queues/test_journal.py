"""What the journal tells of what happened, and that it tells it once."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from scheduler import Cron, Every, Reject, Retry, StopLoop
from scheduler.protocol.epochs import Verb
from scheduler.protocol.messages import Message
from scheduler.protocol.tokens import Act, Ending, LastRun, LoopId, Token, encode
from scheduler.queues import journal
from scheduler.queues.journal import (
    BREATHE_EVERY,
    MARGIN,
    JournalEntry,
    Put,
    look_backs,
    put_in,
    with_progress_of,
)
from scheduler.timing.moments import LATEST_MS, LoopClock, milliseconds_since_epoch
from scheduler.timing.schedules import Recurring
from tests.faulty import FaultyBroker
from tests.stage import START, Stage, heard_of, journal_of, looping, seconds_of, timers_of

TASK = LoopId("task")
EVERY_HOUR, EVERY_MINUTE = Every("1h"), Every("1m")
ONE_RETRY = Retry(1, delays=["1s"], jitter=0)


async def told(stage: Stage, loop: str | None = None, **since: Any) -> list[JournalEntry]:
    return [entry async for entry in stage.journal.entries(loop=loop, **since)]


@pytest.mark.parametrize(
    ("raised", "whats"),
    [
        (None, ["succeeded"]),
        (Reject("bad input"), ["parked", "escalated"]),
        (StopLoop("enough"), ["stopped"]),
    ],
)
async def test_each_ending_of_a_run_is_recorded_once(
    stage: Stage, raised: Exception | None, whats: list[str]
) -> None:
    app = looping(raised=raised, retry=ONE_RETRY)
    await stage.seed(app)
    async with stage.processor():
        await stage.verbs.trigger(app.loop("task"))
        await asyncio.sleep(10)
    assert await stage.history("task") == ["seeded", "triggered", *whats]


async def test_an_entry_has_the_moment_the_run_and_the_reason(stage: Stage) -> None:
    await stage.seed(looping(raised=ValueError("boom"), takes=2, retry=ONE_RETRY))
    await stage.work(3700)
    entries = await told(stage, "task")
    moments = [seconds_of([each.at])[0] for each in entries if each.at]
    due = [each.due_at and seconds_of([each.due_at])[0] for each in entries]
    assert [
        (each.what, each.seq, each.attempt, at, next_at, each.note)
        for each, at, next_at in zip(entries, moments, due, strict=True)
    ] == [
        ("seeded", 0, None, 0.0, 3600.0, ""),
        ("retried", 0, 1, 3602.0, 3603.0, "ValueError: boom"),
        ("parked", 0, 2, 3605.0, None, "exhausted: ValueError: boom"),
        ("escalated", 0, 2, 3605.0, 7205.0, "ValueError: boom"),
    ]
    assert [each.run and each.run.duration for each in entries] == [
        *(None, timedelta(seconds=2), None, timedelta(seconds=2))
    ]


DEEDS: dict[str, Callable[[Stage], Awaitable[object]]] = {
    "pause": lambda stage: stage.verbs.pause(stage.app.loop("task"), "stocktaking"),
    "resume": lambda stage: stage.verbs.resume(stage.app.loop("task")),
    "trigger": lambda stage: stage.verbs.trigger(stage.app.loop("task")),
    "seed": lambda stage: stage.seeding.seed(),
    "repair": lambda stage: stage.put_again(TASK),
}


@pytest.mark.parametrize(
    ("deeds", "whats"),
    [
        # The first may have died before all knew of it.
        ("pause pause seed trigger", "seeded paused paused"),
        ("pause resume resume", "seeded paused resumed"),
        ("repair seed", "seeded repaired"),
        # During the run that the first one began.
        ("trigger pause", "seeded triggered paused succeeded"),
        ("trigger trigger", "seeded triggered succeeded"),
    ],
)
async def test_each_change_and_run_is_recorded_once(stage: Stage, deeds: str, whats: str) -> None:
    await stage.seed(looping(takes=10))
    async with stage.processor():
        for deed in deeds.split():
            await DEEDS[deed](stage)
            await asyncio.sleep(1)
        await asyncio.sleep(10)
    assert await stage.history("task") == whats.split()


async def test_the_journal_can_be_read_from_a_moment_on_and_of_one_loop(stage: Stage) -> None:
    app = looping(every="1m")

    @app.periodic(every="90s")
    async def other() -> None: ...

    await stage.seed(app)
    await stage.work(200)
    since = START + timedelta(seconds=100)
    moments = [seconds_of([each.at])[0] for each in await told(stage, since=since) if each.at]
    assert moments == [120.0, 180.0, 180.0]
    assert [each.loop for each in await told(stage, since=since)] == ["task", "other", "task"]
    assert [each.what for each in await told(stage, "other")] == ["seeded", *["succeeded"] * 2]
    assert await told(stage, "tas") == []


async def test_a_reader_of_the_journal_remembers_a_few_entries(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "MOST_SEEN", 2)
    await stage.seed()
    for seq in 1, 1, 2, 1, 3, 4, 1:
        await write(stage, replace(token(seq=seq), act=TRIGGERED))
    assert [each.seq for each in await told(stage, "task")] == [1, 2, 3, 4, 1]


def token(epoch: int = 5, seq: int = 0, attempt: int = 0, *, first: bool = False) -> Token:
    """A token of the life that began with epoch 3, whose carry tells which it is."""
    made = Token(TASK, EVERY_HOUR, START, START, epoch=epoch, life=3, seq=seq, attempt=attempt)
    return replace(made, first=first, carry=list(made.position))


@pytest.mark.parametrize(
    ("noted", "furthest", "has_line"),
    [
        ([token(seq=3), token(seq=3, attempt=1)], [token(seq=3, attempt=1)], True),
        ([token(first=True), token()], [token()], True),
        ([token(6), token(seq=9)], [token(seq=9), token(6)], True),
        (
            [token(first=True), token(6, first=True)],
            [token(first=True), token(6, first=True)],
            False,
        ),
        ([token(2, seq=9)], [token(2, seq=9)], False),  # of the life before
    ],
)
def test_the_furthest_token_of_each_epoch_is_kept(
    noted: list[Token], furthest: list[Token], has_line: bool
) -> None:
    record = heard_of(*noted)
    assert record.furthest == {each.epoch: each for each in furthest}
    assert record.has_line(life=3) is has_line  # creators alone make none


def message_of(token: Token, **members: Any) -> Message:
    """The message of a token, with other members in its body."""
    message = encode(token, "test")
    return replace(message, body=json.dumps({**json.loads(message.body), **members}).encode())


async def write(stage: Stage, *tokens: Token, **members: Any) -> None:
    for each in tokens:
        message = message_of(each, **members)
        await stage.broker.publish(message, exchange="", routing_key=stage.app.names.journal)


START_MS = milliseconds_since_epoch(START)
RAN = LastRun(Ending.SUCCEEDED, START, START + timedelta(seconds=1), timedelta(seconds=2))
TRIGGERED = Act(Verb.TRIGGER, START - timedelta(seconds=5))


@pytest.mark.parametrize(
    ("put", "told"),
    [
        (token(seq=3, attempt=1), Put(5, 3, 3, 1, False, "armed", START_MS)),
        (
            replace(token(), last=RAN),
            Put(
                *(5, 3, 0, 0, False, "armed", START_MS),
                *(START_MS + 1000, 2000, START_MS),
                by_run=True,
            ),
        ),
        # A first token is exchanged as soon as it was put, and what it becomes has its time.
        (
            replace(token(first=True), act=TRIGGERED),
            Put(5, 3, 0, 0, True, "armed", START_MS - 5000, verb="triggered"),
        ),
        (
            replace(token(), act=TRIGGERED),
            Put(5, 3, 0, 0, False, "armed", START_MS, verb="triggered"),
        ),
    ],
    ids=["plain", "by a run", "first", "exchanged"],
)
def test_a_put_is_read_from_the_message_of_a_token(put: Token, told: Put) -> None:
    assert put_in(message_of(put)) == (TASK, told)
    assert put_in(message_of(replace(put, loop=LoopId("task", "k")))) == (LoopId("task", "k"), told)
    assert told.position == put.position


COUNTS = ("epoch", "life", "seq", "attempt")


@pytest.mark.parametrize(
    "members",
    [
        *[{name: wrong} for name in COUNTS for wrong in (2**62 + 1, -1)],
        {"seq": "3"},
        {"due_at_ms": LATEST_MS + 1},  # no calendar has it
        {"last": {"started_at_ms": 0, "duration_ms": 0}},
        {"last": {"started_at_ms": LATEST_MS + 1, "duration_ms": 0, "scheduled_at_ms": 0}},
        {"act": {"verb": "triggered"}, "first": True},
        {"act": "triggered"},
        {"state": "replay"},  # it is no part of its loop's line
    ],
)
def test_a_message_with_impossible_members_is_no_put(members: dict[str, Any]) -> None:
    assert put_in(message_of(token())) is not None
    assert put_in(message_of(token(), **members)) is None


@pytest.mark.parametrize(
    ("furthest", "is_ahead"),
    [
        (token(5, seq=3), True),
        (token(3, seq=2, attempt=2), True),
        (token(7, seq=2, attempt=1), False),
        (token(5, seq=1, attempt=4), False),
        (token(2, seq=9), False),  # of the life before
    ],
)
def test_a_token_gets_the_progress_of_its_life(furthest: Token, is_ahead: bool) -> None:
    first = replace(token(6, seq=2, attempt=1), reason="stocktaking")
    ran = replace(furthest, last=RAN)
    found = with_progress_of(first, ran)
    assert found == (
        replace(first, seq=ran.seq, attempt=ran.attempt, last=RAN) if is_ahead else first
    )


async def test_reading_on_reads_each_put_once(stage: Stage) -> None:
    await stage.seed(looping(every="30s"))
    puts = list[tuple[LoopId, int]]()

    def hear(loop: LoopId, put: Put, message: Message) -> None:
        assert put_in(message) == (loop, put)
        if loop == TASK:
            puts.append((loop, put.seq))

    async def read_on(since: datetime | int | None) -> int | None:
        return await stage.journal.read_on(hear, since=since)

    first = await read_on(START)
    await write(stage, token(seq=3), replace(token(seq=4), loop=LoopId("other")))
    await write(stage, token(seq=9), state="replay")
    second = await read_on(first)
    await write(stage, token(seq=5))
    third = await read_on(second)
    assert await read_on(third) is not None
    assert puts == [(TASK, seq) for seq in (0, 3, 5)]


async def test_other_tasks_have_turns_while_a_long_journal_is_read(stage: Stage) -> None:
    await stage.seed(looping())
    await write(stage, *(token(seq=number) for number in range(100)))
    turns = 0

    def hear(loop: LoopId, put: Put, message: Message) -> None: ...

    reading = asyncio.create_task(stage.journal.read_on(hear, since=START, is_exact=False))
    while not reading.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > 100 / BREATHE_EVERY


@pytest.mark.parametrize(
    ("written", "seq"),
    [
        ([{"seq": 3, "attempt": 1}, {"seq": 3}], 3),
        ([{"seq": 3, "first": True}], 3),
        ([{"seq": 3, "namespace": "bank"}], None),
        # It was paused, triggered or repaired after it had come so far.
        ([{"seq": 3}, {"seq": 2, "epoch": 6, "first": True}], 3),
        ([{"seq": 3}, {"seq": 4, "epoch": 6}, {"seq": 5}], 5),
        # It was started anew since.
        ([{"seq": 9}, {"seq": 4, "epoch": 6, "life": 6}, {"seq": 2, "epoch": 7, "life": 6}], 4),
    ],
)
async def test_the_last_put_of_a_loop_tells_how_far_it_has_come(
    stage: Stage, written: list[dict[str, Any]], seq: int | None
) -> None:
    await stage.seed(looping())
    one, other = LoopId("one"), LoopId("other")
    await write(stage, replace(token(seq=9), loop=other))
    for members in written:
        await write(stage, replace(token(), loop=one), **members)
    found = await stage.journal.last_put([one], since=None)
    assert {loop: each.seq for loop, each in found.items()} == ({one: seq} if seq else {})
    latest = max(each.get("epoch", 5) for each in written)
    assert [each.epoch for each in found.values()] in ([], [latest])


@pytest.mark.parametrize(
    ("schedule", "near", "far"),
    [
        (EVERY_MINUTE, 2, 30),
        (Cron("0 * * * *"), 120, 1800),
        (Every("36525d"), 3650 * 1440, 3650 * 1440),
    ],
)
async def test_the_last_token_of_a_loop_is_first_looked_for_in_recent_messages(
    clock: LoopClock, schedule: Recurring, near: int, far: int
) -> None:
    now, minute = START - MARGIN, timedelta(minutes=1)
    assert look_backs(schedule, clock) == (now - near * minute, now - far * minute)


async def test_those_who_ask_at_once_share_one_reading_of_a_long_journal(stage: Stage) -> None:
    await stage.seed()
    loops = [LoopId("task", f"k{number}") for number in range(20)]
    timers = timers_of(stage.app.names, stage.broker, stage.clock)
    for number, loop in enumerate(loops):
        await timers.record(replace(token(seq=number), loop=loop))
    broker, told = FaultyBroker(stage.server), list[str]()
    broker.on("read", ".journal", where=lambda call: call.position == 2, times=1).fails(EOFError())
    reads = broker.on("read", ".journal").first(lambda call: asyncio.sleep(20))
    async with broker:
        journal = journal_of(stage.app.names, broker)
        asking = (
            journal.heard_of(loop, since=None, is_near=False, on_delay=told.append)
            for loop in loops
        )
        heard = await asyncio.gather(*asking)
    assert [each.furthest[5].seq for each in heard] == list(range(20))
    assert len(reads.met) < 2 * len(loops)  # on its own, each would read all of them
    assert len(told) > len(loops)  # each is told, more than once
    assert all(each.endswith("Reading continues.") for each in told)
