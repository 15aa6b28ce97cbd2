"""Which loops there are, and which of their epochs have begun, as all processors hear of it."""

import asyncio
import gzip
import json
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from scheduler import Cron, Every
from scheduler.brokers.memory.broker import LARGEST_BODY
from scheduler.errors import BrokerUnavailable, NoSpace, TooLarge, Undecodable
from scheduler.protocol.epochs import Entry, LoopState
from scheduler.protocol.messages import Message, parsed_json
from scheduler.protocol.tokens import WHOLE, LoopId, Token, encode
from scheduler.protocol.topology import Names, topology
from scheduler.queues.entries import (
    DONE,
    ENTRY_TYPE,
    LONG,
    Checkpoint,
    RosterEntry,
    checkpoint_of,
    entry_of,
    members_of,
    messages_of,
    parts_of,
)
from scheduler.queues.journal import put_in
from scheduler.queues.listing import Listing, OutOfScope, RosterNote
from scheduler.queues.loop_table import STEPS, LoopTable, Row
from scheduler.queues.roster import REMEMBERED, Roster, Shares
from scheduler.queues.snapshots import Snapshots
from scheduler.tasks.context import CARRY_LIMIT
from scheduler.timing.moments import LATEST_MS, LoopClock, milliseconds_since_epoch, moment_of
from scheduler.timing.schedules import Once, Schedule
from tests.faulty import Call, FaultyBroker
from tests.stage import START, append_blindly, roster_of

NAMES = Names("test")
FEW = 10
ACTIVE, PAUSED, GONE = LoopState.ACTIVE, LoopState.PAUSED, LoopState.GONE
A = RosterEntry(LoopId("a"), Every("1m"), {}, Entry(7, ACTIVE, 7), by="me", at=START)
A_PAUSED = replace(A, entry=Entry(8, PAUSED, 7, base=7), reason="stocktaking")
A_GONE = replace(A, entry=Entry(9, GONE, 7, base=7))
A_AGAIN = replace(A, entry=Entry(10, ACTIVE, 10))
B = RosterEntry(
    LoopId("b", "bonn"),
    Cron("0 9 * * MON-FRI", tz="Europe/Berlin"),
    {"city": "Bonn", "n": 1},
    Entry(8, ACTIVE, 8),
    at=START,
)


@dataclass
class Desk:
    """A broker with a roster, and those who read it."""

    broker: FaultyBroker
    clock: LoopClock

    def roster(self) -> Roster:
        """That of a program which has read nothing yet."""
        return roster_of(NAMES, self.broker, self.clock)

    async def append_blindly(self, *entries: RosterEntry) -> None:
        await append_blindly(self.broker, NAMES, entries)


@pytest.fixture
def desk(broker: FaultyBroker, clock: LoopClock) -> Desk:
    return Desk(broker, clock)


@pytest.fixture
def roster(desk: Desk) -> Roster:
    return desk.roster()


async def test_an_entry_is_accepted_though_another_follows_it(desk: Desk, roster: Roster) -> None:
    async def follow_up(call: Call) -> None:
        await desk.roster().append([replace(A_AGAIN, entry=Entry(8, PAUSED, 7, 7))])

    desk.broker.on("publish", key=NAMES.roster, times=1).then(follow_up)
    assert await roster.append([A]) == [A]
    assert (await roster.read())[A.loop].epoch == 8


async def test_a_new_epoch_is_later_than_forgotten_ones(roster: Roster, clock: LoopClock) -> None:
    ahead = milliseconds_since_epoch(clock.now() + 10 * REMEMBERED)
    await roster.append([replace(A_GONE, entry=Entry(ahead, GONE, 7))])
    await asyncio.sleep(REMEMBERED.total_seconds() + 1)
    assert A.loop not in await roster.read()
    assert roster.next_epoch_ms() == ahead + 1


async def test_followers_forget_loops_that_are_long_gone(
    desk: Desk, roster: Roster, clock: LoopClock
) -> None:
    await desk.roster().append([A])
    await roster.read()
    following = await roster.follow()
    await desk.roster().append([A_GONE])
    await asyncio.sleep(REMEMBERED.total_seconds() + 1)
    assert A.loop in roster.listing
    await desk.roster().append([replace(B, at=clock.now())])
    await asyncio.sleep(1)
    assert [*roster.listing] == [B.loop]
    assert roster.listing.known(A.loop) == A_GONE.epoch
    await following.cancel()


async def test_gone_loops_of_the_code_are_kept_after_a_follower_has_ended(desk: Desk) -> None:
    roster = Roster(desk.broker, NAMES, desk.clock, kept=[A.loop])
    await roster.append([A])
    following = await roster.follow()
    await desk.roster().append([A_GONE])
    await asyncio.sleep(REMEMBERED.total_seconds() + 1)
    roster.listing.table.has_failed = True
    assert (await roster.read())[A.loop].is_gone
    assert not following.is_on
    await following.cancel()


async def test_notes_skipped_while_others_are_entered_are_not_lost(
    desk: Desk, roster: Roster
) -> None:
    await desk.roster().append([A])
    await roster.read()
    roster.skip_notes()
    following = await roster.follow()
    token = Token(A.loop, A.schedule, START, START, epoch=7, life=7, seq=3)
    noted = replace(A, checkpoint=checkpoint_of(token, "test", START))
    await desk.append_blindly(noted)
    roster.listing.learn(B.loop, B.epoch)  # by a roll call, or its first token
    await desk.roster().append([B])
    await asyncio.sleep(1)
    assert roster.listing == {A.loop: A, B.loop: B}

    async def skip(call: Call) -> None:
        roster.skip_notes()
        raise BrokerUnavailable("It went.")

    desk.broker.on("read", NAMES.roster, times=1).then(skip)
    with pytest.raises(BrokerUnavailable):
        await roster.enter_notes()
    await roster.enter_notes()
    assert roster.listing == {A.loop: noted, B.loop: B}
    await following.cancel()


async def test_a_full_table_that_is_filled_again_lacks_no_loop(desk: Desk, roster: Roster) -> None:
    await desk.append_blindly(A, replace(B, entry=Entry(99, GONE, 8), at=START - 2 * REMEMBERED))
    await roster.read()
    roster.skip_notes()
    assert roster.listing.forgotten == 99
    roster.listing.table.has_failed = True
    assert await roster.read() == {A.loop: A}


async def test_a_skipped_note_is_read_while_skipped_notes_are_entered(
    desk: Desk, roster: Roster
) -> None:
    found = list[RosterEntry]()

    async def ask(call: Call) -> None:
        found.append(await roster.with_last_note(A))
        roster.skip_notes()
        found.append(await roster.with_last_note(A))

    await desk.append_blindly(A)
    await roster.read()
    roster.skip_notes()
    token = Token(A.loop, A.schedule, START, START, epoch=7, life=7, seq=3)
    noted = replace(A, checkpoint=checkpoint_of(token, "test", START))
    await desk.append_blindly(noted)
    await asyncio.sleep(LONG.total_seconds() + 1)
    desk.broker.on("read", NAMES.roster, times=1).then(ask)
    await roster.enter_notes()
    assert found == [noted, noted]
    assert await roster.with_last_note(A) == noted
    await roster.enter_notes()
    assert await roster.with_last_note(roster.listing[A.loop]) == noted


async def test_a_note_skipped_by_the_first_reading_is_read(desk: Desk, roster: Roster) -> None:
    async def skip(call: Call) -> None:
        roster.skip_notes()  # another processor supervises

    token = Token(A.loop, A.schedule, START, START, epoch=7, life=7, seq=3)
    noted = replace(A, checkpoint=checkpoint_of(token, "test", START))
    await desk.append_blindly(A)
    await desk.append_blindly(noted)
    await asyncio.sleep(LONG.total_seconds() + 1)
    desk.broker.on("read", NAMES.roster, times=1).then(skip)
    assert await roster.read() == {A.loop: A}
    assert await roster.with_last_note(A) == noted


async def test_a_loop_that_ended_before_the_stream_begins_is_not_kept(
    desk: Desk, roster: Roster, broker: FaultyBroker
) -> None:
    await desk.append_blindly(replace(A, args={"x": "x" * 1000}))
    await roster.read()
    roster.inherits = True
    await desk.append_blindly(A_GONE, B)
    await asyncio.sleep(REMEMBERED.total_seconds() + 1)
    await Snapshots(desk.broker, NAMES).append(Shares(await desk.roster().read()))
    stream = broker.server.stream(NAMES.roster)
    stream._max_size = stream._size  # pyright: ignore[reportPrivateUsage]
    again = replace(B, entry=Entry(9, PAUSED, 8, base=8))
    await desk.append_blindly(again)
    assert await roster.read() == {B.loop: again}
    assert roster.listing.known(A.loop) == A_GONE.epoch


async def test_entries_that_are_restored_are_no_notes(desk: Desk, roster: Roster) -> None:
    await desk.roster().append([A])
    await roster.read()
    roster.skip_notes()
    following = await roster.follow()
    await desk.broker.delete(NAMES.roster)
    await desk.broker.declare(topology("test", []))
    await desk.append_blindly(B)
    await desk.append_blindly(A)
    listing = await roster.read()
    assert (listing.get(A.loop), listing.is_inherited(A.loop)) == (A, False)
    await following.cancel()


async def test_a_snapshot_lacks_what_only_an_earlier_roster_had(desk: Desk, roster: Roster) -> None:
    await desk.roster().append([A])
    await roster.read()
    roster.inherits = True
    await desk.broker.delete(NAMES.roster)
    await desk.broker.declare(topology("test", []))
    await desk.append_blindly(B)
    assert set(await roster.read()) == {A.loop, B.loop}
    await Snapshots(desk.broker, NAMES).append(Shares(roster.listing))
    assert await desk.roster().read() == {B.loop: B}


async def test_entries_share_messages_of_bounded_size(roster: Roster, broker: FaultyBroker) -> None:
    big, huge = replace(B, args={"x": "x" * 400_000}), replace(A, args={"x": "x" * 2_000_000})
    many = [loop_number(number, 1) for number in range(250)]
    beyond = with_key(replace(B, args={"x": "x" * LARGEST_BODY}), 3)
    entries = [*many, *[with_key(big, n) for n in range(3)], beyond, huge]
    *_, before, refused, last = await roster.append(entries)
    assert [type(each) for each in (before, refused, last)] == [RosterEntry, TooLarge, RosterEntry]
    sizes = [entries_in(each) async for each in broker.read(NAMES.roster)]
    assert sorted(sizes) == [1, 1, 1, 1, 50, 100, 100]
    assert len(await roster.read()) == 254


async def test_concurrent_readers_share_one_reading(roster: Roster, broker: FaultyBroker) -> None:
    await roster.append([A])
    broker.calls.clear()
    listings = await asyncio.gather(*(roster.read() for _ in range(20)))
    assert all(each is listings[0] for each in listings)
    marks = [call for call in broker.calls if call.routing_key == NAMES.roster]
    assert len(marks) == 1


def entries_in(message: Message) -> int:
    return len(json.loads(message.body)["entries"])


def with_key(listed: RosterEntry, number: int) -> RosterEntry:
    return replace(listed, loop=LoopId("big", str(number)))


def token_at(seq: int, epoch: int = 7, **changes: Any) -> Token:
    tick = START + timedelta(days=1)
    token = Token(A.loop, A.schedule, tick, tick, epoch=epoch, life=7, seq=seq)
    return replace(token, **changes)


def checkpoint_at(seq: int, epoch: int = 7) -> Checkpoint:
    token = token_at(seq, epoch)
    checkpoint = checkpoint_of(token, "test", token.due_at)
    assert checkpoint is not None
    return checkpoint


async def test_a_checkpoint_is_read_as_it_was_noted(desk: Desk, roster: Roster) -> None:
    tick = START + timedelta(hours=1)
    waiting = token_at(3, carry=["so far"], due_at=tick)
    checkpoint = checkpoint_of(waiting, "test", tick)
    assert checkpoint is not None
    assert (checkpoint.until, checkpoint.token("test")) == (tick, waiting)
    with pytest.raises(Undecodable, match="belongs to namespace 'test'"):
        checkpoint.token("another")
    await desk.append_blindly(noted := replace(A, checkpoint=checkpoint))
    assert await roster.read() == {A.loop: noted}
    all_that_may_be_carried = token_at(1, carry="x" * (CARRY_LIMIT - 2))
    too_big, not_joined = token_at(1, args={"x": "x" * 100_000}), token_at(1, first=True)
    for token, is_covered in (
        (all_that_may_be_carried, True),
        (too_big, False),
        (not_joined, False),
    ):
        assert (checkpoint_of(token, "test", tick) is not None) is is_covered


NOTED_A, NOTED_LATER = (replace(A, checkpoint=checkpoint_at(seq)) for seq in (1, 2))


def noted_by(listing: Listing, token: Token) -> RosterNote | None:
    """The note that supervision makes of a put."""
    message = encode(token, "test", lead=timedelta(seconds=1))
    found = put_in(message)
    assert found is not None
    return listing.note_of(*found, message)


RENAMED = replace(A, loop=LoopId("z"), entry=Entry(8, ACTIVE, 7, base=7), renames="a")


@pytest.mark.parametrize(
    ("entries", "token", "noted"),
    [
        ([NOTED_A], token_at(2), token_at(2)),
        ([NOTED_A], token_at(1), None),
        ([A], token_at(2, epoch=8), None),
        ([A, A_PAUSED], token_at(2), token_at(2)),
        ([A, A_GONE], token_at(2, epoch=9), None),
        ([A], token_at(2, first=True), None),
        ([A, RENAMED], token_at(2, epoch=8), token_at(2, epoch=8, loop=LoopId("z"))),
        ([], token_at(2), None),
    ],
)
def test_a_note_has_the_progress_of_a_loop_if_it_is_newer(
    entries: list[RosterEntry], token: Token, noted: Token | None
) -> None:
    listing = Listing()
    for listed in entries:
        listing.enter(listed)
    note = noted_by(listing, token)
    if noted is None:
        assert note is None
    else:
        assert note is not None
        latest = listing[noted.loop]
        until = moment_of(LATEST_MS) if latest.entry.state is PAUSED else token.due_at
        assert entry_of(parsed_json(note.encoded)) == replace(
            latest, checkpoint=checkpoint_of(noted, "test", until)
        )


def test_loops_that_replace_each_other_have_no_notes() -> None:
    listing, token = Listing(), token_at(2)
    for loop, renamed in ("a", "z"), ("z", "a"):
        listing.enter(replace(A_GONE, loop=LoopId(loop), renamed=renamed))
    assert noted_by(listing, token) is None
    assert listing.under_its_name(token) == token


@pytest.mark.parametrize("entry", ["{", "[]", '{"state": "active", "epoch": 7, "life": "7"}'])
def test_an_unreadable_entry_of_a_snapshot_has_no_notes(entry: str) -> None:
    listing, token = Listing(), token_at(2)
    listing.table.write([Row(A.loop, entry, 7, ACTIVE)])
    assert noted_by(listing, token) is None


@pytest.mark.parametrize(
    ("entries", "holds"),
    [
        ([A, NOTED_A], NOTED_A),
        ([NOTED_A, A], NOTED_A),
        ([NOTED_LATER, NOTED_A], NOTED_LATER),
        ([A, replace(NOTED_A, by="another")], A),
        ([A, replace(NOTED_A, reason="?")], NOTED_A),  # it tells nothing else
        ([A_PAUSED, NOTED_A], A_PAUSED),
    ],
)
def test_a_checkpoint_is_valid_for_its_epoch(entries: list[RosterEntry], holds: RosterEntry):
    listing = Listing()
    for listed in entries:
        if not listing.enter_note(members_of(listed)):
            listing.enter(listed)
    assert listing == {A.loop: holds}


T_PAUSED = replace(A_PAUSED, loop=LoopId("a", WHOLE), entry=Entry(8, PAUSED, 8))
T_RESUMED = replace(T_PAUSED, entry=Entry(9, GONE, 8, base=8))
PAUSED_BY_ITS_OLD_NAME = replace(T_PAUSED, loop=LoopId("old", WHOLE))


@pytest.mark.parametrize(
    ("entered", "heard", "is_held"),
    [
        ([T_PAUSED], 9, True),
        ([T_PAUSED, T_RESUMED], 9, False),
        ([T_PAUSED, T_RESUMED], 10, True),  # its entry, which may pause the task, is to come
        ([], 8, True),
        ([T_PAUSED, T_RESUMED, PAUSED_BY_ITS_OLD_NAME], 9, True),
    ],
)
async def test_a_task_is_held_while_it_is_paused_or_may_be(
    desk: Desk, entered: list[RosterEntry], heard: int, is_held: bool
) -> None:
    roster = Roster(desk.broker, NAMES, desk.clock, aliases={"old": "a"})
    await roster.append([A, *entered])
    listing = await roster.read()
    assert [each.loop for each in listing.there] == [A.loop]
    listing.learn(T_PAUSED.loop, heard)
    listing.table.has_failed = True  # that ends no wait for a pause
    assert [listing.is_held(name) for name in ("a", "old", "b")] == [is_held, is_held, False]
    last = entered[-1] if entered else None
    assert listing.of_task("a") == listing.of_task("old") == last
    assert listing.pause_of("old") == (None if last is None or last.is_gone else last)


NOTED: dict[str, Any] = {"headers": {}, "body": "{}", "until_ms": 1}


def entry(**changes: Any) -> bytes:
    whole: dict[str, Any] = {
        "task": "b",
        "key": "x",
        "epoch": 1,
        "life": 1,
        "state": "active",
        "schedule": {"every_ms": 60_000},
        "args": {},
        "at_ms": 1,
    }
    entry = {name: v for name, v in (whole | changes).items() if v != "none"}
    return json.dumps({"entries": [entry]}).encode()


def note_on_a(checkpoint: Any) -> bytes:
    """What no note may say."""
    (whole,) = parts_of(next(messages_of([A])))
    return json.dumps({"entries": [whole | {"args": 7, "checkpoint": checkpoint}]}).encode()


@pytest.mark.parametrize(
    "body",
    [b"", b"\xff", b"[]", b"7", b"{}", b'{"entries": 7}', b'{"entries": [7]}']
    + [entry(task=""), entry(at_ms=-1), entry(args=[]), entry(did="lent", epoch="none")]
    + [entry(schedule=wrong) for wrong in ({}, {"kind": "moon"}, "none")]
    + [entry(epoch=wrong) for wrong in (-1, 1.0, "1", "none")]
    + [entry(base=wrong) for wrong in (-1, 1.0)]
    + [entry(life=wrong) for wrong in (-1, 1.0, "none")]
    + [entry(state=wrong) for wrong in ("armed", 1, "none")]
    + [entry(checkpoint=NOTED | {"until_ms": wrong}) for wrong in (-1, "1", 1e20)]
    + [entry(checkpoint=NOTED | {name: 1}) for name in ("headers", "body")]
    + [entry(checkpoint={})]
    + [entry(key=wrong) for wrong in ("a\tb", "a\nb", 5)]
    + [entry(key=wrong, checkpoint=NOTED) for wrong in ("\ud800", 5, None, NOTED)]
    + [note_on_a(wrong) for wrong in (None, {}, NOTED | {"until_ms": -1}, NOTED | {"body": 1})]
    + [entry(epoch=2**70), entry(at_ms=2**70), entry(schedule={"every_ms": 2**70})]
    + [entry(state="paused", at_ms=1.5), entry(by=["x"])],
)
async def test_an_entry_that_cannot_be_read_is_ignored_and_logged(
    broker: FaultyBroker, roster: Roster, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    await roster.append([A])
    message = Message(body, type=ENTRY_TYPE)
    await broker.publish(message, exchange=NAMES.control, routing_key=NAMES.roster)
    await roster.append([B])
    assert await roster.read() == {A.loop: A, B.loop: B}
    assert "Ignoring an invalid roster entry" in caplog.text


async def test_the_members_of_an_entry(broker: FaultyBroker, roster: Roster) -> None:
    entry = A_PAUSED.entry._replace(asked=8)
    await roster.append([replace(A_PAUSED, entry=entry, args={"n": 1})])
    (message,) = [message async for message in broker.read(NAMES.roster)]
    assert message.type == ENTRY_TYPE
    (told,) = json.loads(message.body)["entries"]
    assert told == {
        "task": "a",
        "key": "",
        "epoch": 8,
        "life": 7,
        "base": 7,
        "asked": 8,
        "state": "paused",
        "schedule": {"every_ms": 60_000},
        "args": {"n": 1},
        "reason": "stocktaking",
        "by": "me",
        "at_ms": int(START.timestamp()) * 1000,
    }


@pytest.fixture
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler.queues.roster.FEW", FEW)


def loop_number(number: int, epoch: int) -> RosterEntry:
    entry = Entry(epoch, ACTIVE, 1, base=epoch - 1)
    return replace(A, loop=LoopId("loop", str(number)), entry=entry)


async def appended(desk: Desk, epochs: range, loops: int = 5) -> None:
    for epoch in epochs:
        for number in range(loops):
            await desk.append_blindly(loop_number(number, epoch))


async def compacted(roster: Roster) -> Listing:
    listing = await roster.read()
    await roster.compact()
    return listing


async def measured(desk: Desk, by: Roster | None = None) -> tuple[dict[LoopId, int], int]:
    """The latest epochs that it tells, and how many of its entries were read for that.

    Args:
        by: None: by somebody who reads it for the first time.
    """
    desk.broker.calls.clear()
    listing = await (by or desk.roster()).read()
    reads = [
        call
        for call in desk.broker.calls
        if (call.operation, call.target) == ("read", NAMES.roster) and call.message.type
    ]
    return {loop: listed.epoch for loop, listed in listing.items()}, len(reads)


def all_at(epoch: int, loops: int = 5) -> dict[LoopId, int]:
    return {loop_number(number, epoch).loop: epoch for number in range(loops)}


@pytest.mark.usefixtures("_short")
async def test_a_long_roster_is_read_from_its_last_snapshot_or_position(
    desk: Desk, roster: Roster
) -> None:
    await appended(desk, range(1, 99))
    half = "\ud800"  # of a character: JSON takes it, and some parsers do not
    await roster.append([replace(loop_number(n, 99), args={"text": half}) for n in range(5)])
    assert await measured(desk) == (all_at(99), FEW + 1 + 98 * 5 + 1)  # a snapshot was expected
    assert {each.args["text"] for each in (await roster.read()).values()} == {half}
    told = all_at(99)
    for epoch in range(100, 103):
        await appended(desk, range(epoch, epoch + 1), loops=1)
        told |= all_at(epoch, loops=1)
        assert await measured(desk, by=roster) == (told, 1 + 1)
    await compacted(roster)
    for reader in None, roster:
        assert await measured(desk, by=reader) == (told, 1)
    await roster.append([loop_number(1, 100)])
    told |= {loop_number(1, 100).loop: 100}
    assert await measured(desk) == (told, 1 + 1)


@pytest.mark.usefixtures("_short")
async def test_only_the_shares_of_the_wanted_loops_are_read(desk: Desk, roster: Roster) -> None:
    loops = [loop_number(number, 1) for number in range(60)]
    await desk.append_blindly(*loops)
    await Snapshots(desk.broker, NAMES).append(Shares(await roster.read(), most=1))
    loops = [loop_number(number, 2) for number in range(60)]
    await desk.append_blindly(*loops)
    reader = desk.roster()
    one, *others = (listed.loop for listed in loops)
    listing = await reader.read([one])
    assert listing[one] == loops[0]
    assert len(listing) < 5
    with pytest.raises(OutOfScope):
        [listing.get(loop) for loop in others]
    other = desk.roster()
    assert await other.consult([one], lambda listing: list(map(listing.get, others))) == loops[1:]
    (later,) = await reader.append([loop_number(0, 3)])
    assert isinstance(later, RosterEntry)
    await reader.compact()  # by one who has not read all
    assert (await desk.roster().read()).keys() == {one, *others}
    for loop in others:  # each time twice as much, and then all
        assert loop in await reader.read([loop])
        assert (await reader.read([loop])).is_for(loop)
    assert len(await reader.read([one])) == len(loops)
    assert (await reader.read([one]))[one] == later
    assert listing.get(one)  # of one who still looks at what was read first
    racing = desk.roster()

    async def ask(turns: int, loop: LoopId) -> RosterEntry | None:
        for _ in range(turns):
            await asyncio.sleep(0)
        return await racing.consult([loop], lambda listing: listing.get(loop))

    found = await asyncio.gather(*(ask(7 * n, loop) for n, loop in enumerate(others)))
    assert found == loops[1:]


@pytest.mark.usefixtures("_short")
async def test_all_is_read_if_a_share_cannot_be_read(desk: Desk, roster: Roster) -> None:
    await desk.append_blindly(*(loop_number(number, 1) for number in range(60)))
    await Snapshots(desk.broker, NAMES).append(Shares(await roster.read(), most=1))
    parts = [part async for part in desk.broker.read(NAMES.snapshots)]
    await desk.broker.delete(NAMES.snapshots)
    await desk.broker.declare(topology("test", []))
    for part in parts:
        cut_off = replace(part, body=part.body[:10])
        await desk.broker.publish(cut_off, exchange=NAMES.control, routing_key=NAMES.snapshots)
    reader, one = desk.roster(), loop_number(0, 1).loop
    assert (await reader.read([one])).keys() == (await roster.read()).keys()


@pytest.mark.usefixtures("_short")
@pytest.mark.parametrize(("entries", "read"), [(0, 0), (1, 2), (19, 0 + 19), (30, 1 + 30)])
async def test_a_recreated_roster_begins_with_what_the_snapshot_says(
    desk: Desk, roster: Roster, entries: int, read: int
) -> None:
    await appended(desk, range(1, 5))
    await compacted(roster)
    await desk.broker.delete(NAMES.roster)
    await desk.broker.declare(topology("test", []))
    await appended(desk, range(200, 200 + entries), loops=1)
    latest = all_at(199 + entries, loops=1) if entries else {}
    assert await measured(desk) == (all_at(4) | latest, read)


@pytest.mark.usefixtures("_short")
async def test_the_snapshot_of_a_long_roster_is_waited_for(
    desk: Desk, roster: Roster, monkeypatch: pytest.MonkeyPatch
) -> None:
    behind, show, hidden = desk.roster(), desk.broker.last, iter(list[int]())

    async def show_late(stream: str) -> Message | None:
        """As RabbitMQ does after a restart."""
        return await show(stream) if next(hidden, None) is None else None

    monkeypatch.setattr(desk.broker, "last", show_late)
    await behind.append([A])
    behind.skip_notes()
    for _ in range(FEW + 1):  # each leaves a mark
        await desk.roster().read()
    await desk.roster().append([B])
    hidden = iter(range(8))
    await desk.roster().read()
    assert [*hidden] == [*range(1, 8)]  # a short roster needs none
    await appended(desk, range(1, 99))
    await desk.append_blindly(noted := replace(A, checkpoint=checkpoint_at(3)))
    told = await compacted(roster)
    hidden = iter(range(8))
    listed, read = await measured(desk)
    assert (listed.keys(), read) == (told.keys(), FEW + 1 + 1)
    desk.broker.server.stream(NAMES.roster)._max_size = 600  # pyright: ignore[reportPrivateUsage]
    (later,) = await roster.append([loop_number(1, 99)])
    hidden = iter(range(8))
    assert await desk.roster().read() == {**told, loop_number(1, 99).loop: later}
    hidden = iter(range(8))
    await behind.enter_notes()
    assert behind.listing[A.loop] == noted


async def test_a_snapshot_that_is_not_there_is_waited_for_5_seconds(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def look(stream: str) -> Message | None:
        """As RabbitMQ does in a stream without entries."""
        await asyncio.sleep(2)
        return None

    monkeypatch.setattr(desk.broker, "last", look)
    began = asyncio.get_running_loop().time()
    assert await Snapshots(desk.broker, NAMES).expected() is None
    assert asyncio.get_running_loop().time() - began == pytest.approx(5)


ABOUT = {"snapshot": "x", "part": 0, "last": True, "share": 0, "offset": 99, "digest": ""}
NOTHING = gzip.compress(b"")
NONSENSE = {
    "not compressed": Message(b"{}", ABOUT),
    "damaged": Message(gzip.compress(b"{}")[:-9] + b"x" * 9, ABOUT),
    "no headers": Message(NOTHING),
    "a bad offset": Message(NOTHING, ABOUT | {"offset": -1}),
    "no columns": Message(gzip.compress(b"{}\n"), ABOUT),
    "a bad epoch": Message(gzip.compress(b"1\ttask\t\t{}\tx\tactive\t0\t\t\n"), ABOUT),
}


@pytest.mark.usefixtures("_short")
@pytest.mark.parametrize("message", NONSENSE.values(), ids=NONSENSE)
async def test_a_snapshot_that_cannot_be_read_is_ignored_and_logged(
    desk: Desk, roster: Roster, message: Message, caplog: pytest.LogCaptureFixture
) -> None:
    await appended(desk, range(1, 3))
    await desk.broker.publish(message, exchange=NAMES.control, routing_key=NAMES.snapshots)
    assert await measured(desk) == (all_at(2), 10)
    assert "The snapshot of the roster cannot be read" in caplog.text
    await appended(desk, range(3, 5))
    await compacted(roster)
    assert await measured(desk) == (all_at(4), 1)


KEPT = Once(START, timedelta(hours=1))


@pytest.mark.parametrize(
    ("gone", "kept_until"),
    [
        (A_GONE, START),
        # The name of a one-off that has run.
        (replace(A_GONE, schedule=KEPT, reason=DONE), KEPT.kept_until),
    ],
)
def test_the_tokens_of_a_forgotten_loop_are_void(gone: RosterEntry, kept_until: datetime) -> None:
    listing = Listing()
    for listed in gone, B:
        listing.enter(listed)
    listing.learn(A.loop, 20)
    assert listing.known(A.loop) == 20
    listing.forget(kept_until)
    assert A.loop in listing
    listing.forget(kept_until + timedelta(milliseconds=1))
    assert list(listing) == [B.loop]
    assert (listing.known(A.loop), listing.known(B.loop)) == (A_GONE.epoch, B.epoch)
    assert listing.known(LoopId("never", "there")) == A_GONE.epoch


async def test_a_snapshot_has_the_latest_epoch_of_forgotten_loops(
    desk: Desk, roster: Roster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.queues.roster.FEW", 1)
    for listed in A_GONE, B:
        await roster.append([listed])
    await asyncio.sleep(REMEMBERED.total_seconds() + 1)
    assert set(await compacted(roster)) == {B.loop}
    listing = await desk.roster().read()
    assert (set(listing), listing.known(A.loop)) == ({B.loop}, A_GONE.epoch)
    assert [call.target for call in desk.broker.calls if call.operation == "last"][-1:] == [
        NAMES.snapshots
    ]


@pytest.mark.parametrize(
    "schedule",
    [
        Every("1h"),
        Every("1h", mode="fixed_rate", offset="7m"),
        Once(START + timedelta(days=1)),
    ],
)
def test_a_loop_is_not_overdue_before_its_first_tick(schedule: Schedule) -> None:
    listing, at = Listing(), START + timedelta(minutes=10)
    listing.enter(replace(A, schedule=schedule, at=at))
    due_ms = milliseconds_since_epoch(schedule.next_after(at))
    assert listing.table.overdue(due_ms, 1) == []
    assert listing.table.overdue(due_ms + 1, 1) == [A.loop]


def test_rows_that_change_while_the_overdue_are_indexed_are_in_order() -> None:
    table = LoopTable()
    loops = [LoopId("task", str(n)) for n in range(60)]
    rows = [Row(loop, "{}", 7, ACTIVE, due_ms=n) for n, loop in enumerate(loops)]
    table.write(rows[:50])
    steps = table.index_due()
    for _ in range(STEPS // 2):  # some of these are indexed, others not
        next(steps)
    for loop in loops[:10]:
        table.delete(loop)
    table.write([*rows[50:], *(row._replace(due_ms=row.due_ms or 0) for row in rows[10:20])])
    for loop in loops[20:30]:
        table.keep(loop, "[]", 7, None)
    for loop in loops[30:40]:
        table.expect(loop, 99 - int(loop.key))
    for _ in steps:
        pass
    later = {str(n): 99 - n for n in range(30, 40)}
    due = {key: later.get(key, int(key)) for _, key in loops[10:20] + loops[30:]}
    expected = sorted(due, key=lambda key: due[key])
    assert [loop.key for loop in table.overdue(100, 60)] == expected
    assert [loop.key for loop in table.overdue(100, 3)] == expected[:3]


def test_the_greatest_epoch_of_a_loop_is_known_until_it_is_deleted() -> None:
    table, row = LoopTable(), Row(A.loop, "{}", 7, ACTIVE)
    for epoch, known in (7, 7), (9, 9), (8, 9):
        table.write([row._replace(epoch=epoch)])
        assert table.known(A.loop) == known
    table.delete(A.loop)
    assert table.known(A.loop) is None
    table.write([row])
    lines = table.share(0, 1)
    table.clear()
    assert table.known(A.loop) is None
    table.load(lines)
    assert table.known(A.loop) == 7


def test_a_full_disk_is_reported_with_the_directory_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler.queues.loop_table.SETTINGS", "PRAGMA max_page_count = 9;")
    lines = [f"{n}\ttask\t{n}\t{n:0500}\t1\tactive\t0\t\t\t\t\t".encode() for n in range(1000)]
    with pytest.raises(NoSpace, match="set TMPDIR to a directory that has the room"):
        Listing().table.load(lines)
