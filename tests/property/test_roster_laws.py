"""All readers of a roster judge its entries alike, wherever they begin and however often."""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from unittest.mock import patch

from hypothesis import example, given, settings
from hypothesis import strategies as st

from scheduler import Every
from scheduler.brokers.memory.broker import MemoryBroker
from scheduler.brokers.memory.server import MemoryServer
from scheduler.errors import Undecodable
from scheduler.protocol.epochs import Entry, LoopState
from scheduler.protocol.messages import compact_json
from scheduler.protocol.tokens import WHOLE, LoopId, Token
from scheduler.protocol.topology import Names, topology
from scheduler.queues.entries import RosterEntry, checkpoint_of, members_of, rank_of
from scheduler.queues.listing import Listing, RosterNote
from scheduler.queues.roster import Following, Roster, Shares
from scheduler.queues.snapshots import Share, Snapshots
from scheduler.testing import run_virtually
from scheduler.timing.moments import LoopClock
from tests.stage import append_blindly

NAMES = Names("test")
START = datetime(2026, 6, 1, tzinfo=UTC)
LOOPS = [LoopId("loop", key) for key in ("a", "b", WHOLE)]
FEW = st.integers(0, 4)


def noted(listed: RosterEntry, seq: int) -> RosterEntry:
    token = Token(listed.loop, Every("1h"), START, START, epoch=listed.epoch, life=1, seq=seq)
    return replace(listed, checkpoint=checkpoint_of(token, "test", START))


def note_with(listed: RosterEntry) -> RosterNote:
    members = members_of(listed)
    checkpoint, entry = members.pop("checkpoint"), compact_json(members).decode()
    identity = compact_json([listed.epoch, listed.entry.life, listed.by]).decode()
    encoded, rank = compact_json(checkpoint).decode(), rank_of(checkpoint["body"])
    return RosterNote(listed.loop, entry, identity, encoded, rank, checkpoint["until_ms"])


@st.composite
def entries(draw: st.DrawFn) -> RosterEntry:
    entry = Entry(
        draw(st.integers(1, 5)),
        draw(st.sampled_from(LoopState)),
        draw(st.integers(1, 2)),
        draw(FEW),
    )
    listed = RosterEntry(
        draw(st.sampled_from(LOOPS)),
        Every("1h"),
        {},
        entry,
        by=draw(st.sampled_from(["me", "you"])),
        at=START,
    )
    return noted(listed, draw(FEW)) if draw(st.booleans()) else listed


batches = st.lists(entries(), min_size=1, max_size=3)
streams = st.lists(batches, min_size=1, max_size=8)


@dataclass
class Comparison:
    """A roster that grows, and those that have begun to read it at each of its lengths."""

    broker: MemoryBroker
    cut_off: MemoryBroker
    clock: LoopClock

    def __post_init__(self) -> None:
        self.followed: list[tuple[Roster, Following]] = []
        self.without_notes: list[tuple[Roster, Following]] = []
        self.cut_off_at_times: list[Roster] = []
        self.taken: list[tuple[list[Share], Iterator[Share]]] = []
        self.told: list[tuple[LoopId, RosterEntry | None]] = []

    def roster(self, broker: MemoryBroker | None = None) -> Roster:
        return Roster(broker or self.broker, NAMES, self.clock)

    async def begin(self) -> None:
        """Have one follow from here, one that is cut off at times; take a share of snapshots."""
        for broker in self.broker, self.cut_off:
            reader = self.roster(broker)
            listing = await reader.read()
            following = await reader.follow()
            if broker is self.broker:
                self.followed.append((reader, following))
            else:
                self.cut_off_at_times.append(reader)
        reader = self.roster()
        await reader.read()
        if len(self.without_notes) % 2:
            reader.listing.forgotten = 3  # of another loop
        reader.skip_notes()
        self.without_notes.append((reader, await reader.follow()))
        self.take(1)
        if listing.reached is not None:
            self.taken.append((shares := list[Share](), coming := iter(Shares(listing, 1))))
            shares += islice(coming, 1)

    def take(self, most: int | None) -> None:
        """Take so many more shares of each snapshot that has begun; all, if None."""
        begun, self.taken = self.taken, []
        for shares, coming in begun:
            with suppress(Undecodable):  # the roster was recreated
                shares += islice(coming, most)
                self.taken.append((shares, coming))

    async def write(self, batch: list[RosterEntry]) -> None:
        """Write entries, and then the notes among them by one that follows, as supervision does."""
        notes = [note_with(listed) for listed in batch if listed.checkpoint is not None]
        entries = [listed for listed in batch if listed.checkpoint is None]
        for listed in entries[:1]:  # a roll call, or a token, may come before the entry
            for reader, _ in self.without_notes[::2]:
                reader.listing.learn(listed.loop, listed.epoch)
        await append_blindly(self.broker, NAMES, entries)
        follower, _ = (self.followed, self.without_notes)[len(entries) % 2][0]
        await follower.note(notes)

    async def fail(self) -> None:
        """Have a table fail: all is read again, and followed from there."""
        if self.without_notes:
            reader, before = self.without_notes.pop(0)
            reader.listing.table.has_failed = True
            await reader.read()
            assert not before.is_on
            self.without_notes.append((reader, await reader.follow()))

    async def write_unheard(self, batch: list[RosterEntry]) -> None:
        """Write what those that are cut off read when they come back, before they hear it."""
        self.cut_off.detach()
        await self.write(batch)
        for reader in self.cut_off_at_times:
            await reader.read()
        self.cut_off.attach()

    async def all(self) -> list[Listing]:
        """Return what each reader says in the end, and one that begins with each snapshot."""
        await asyncio.sleep(1)
        found = [await self.roster().read(), await self.roster().look()]
        found += [reader.listing for reader, following in self.followed if following.is_on]
        found += [await reader.read() for reader, _ in self.followed]
        found += [await reader.read() for reader in self.cut_off_at_times]
        self.take(None)
        for shares, _ in self.taken:
            await Snapshots(self.broker, NAMES).append(shares)
            found += [await self.roster().read(), await self.roster().look()]
            found.append(await self.of_some_first())
        return found

    async def of_some_first(self) -> Listing:
        """Read the roster for one loop, then for another, then for all; note what each is told."""
        reader = self.roster()
        for loop in LOOPS[:2]:
            listing = await reader.read([loop])
            self.told.append((loop, None if listing.is_inherited(loop) else listing.get(loop)))
        return await reader.read()


def state_of(listing: Listing) -> dict[LoopId, RosterEntry]:
    """What it says that was not said by an earlier stream only."""
    return {loop: each for loop, each in listing.items() if not listing.is_inherited(loop)}


def without_notes(listing: Mapping[LoopId, RosterEntry]) -> dict[LoopId, RosterEntry]:
    return {loop: replace(each, checkpoint=None) for loop, each in listing.items()}


def states_of(listing: Listing) -> Counter[LoopState]:
    """How many loops are in each state, without entries of a whole task."""
    return Counter(each.entry.state for each in listing.values() if not each.is_of_task)


def at_its_time(number: int, batch: list[RosterEntry]) -> list[RosterEntry]:
    """The entries, those with notes last, so that no message of a recreated roster is like one of
    that before.
    """
    ordered = sorted(batch, key=lambda listed: listed.checkpoint is not None)
    return [replace(listed, at=START + timedelta(seconds=number)) for listed in ordered]


async def judged(stream: list[list[RosterEntry]], merging: set[int], recreated: int) -> None:
    stream = [at_its_time(number, batch) for number, batch in enumerate(stream)]
    clock = LoopClock(START)
    async with AsyncExitStack() as opened:
        server = MemoryServer(clock)
        cut_off = await opened.enter_async_context(MemoryBroker(server))
        broker = await opened.enter_async_context(MemoryBroker(server))
        await broker.declare(topology("test", []))
        comparison = Comparison(broker, cut_off, clock)
        await comparison.begin()
        for number, batch in enumerate(stream):
            if number == recreated:
                await asyncio.sleep(1)
                await broker.delete(NAMES.roster)
                await broker.declare(topology("test", []))
            if number in merging:
                await comparison.fail()
            unheard = number in merging and recreated < 0
            await (comparison.write_unheard if unheard else comparison.write)(batch)
            await asyncio.sleep(0.01)
            await comparison.begin()
        with patch("scheduler.queues.roster.FEW_SHARES", 1):  # of three, two are few
            found = await comparison.all()
        expected = Listing()
        for listed in [listed for batch in stream[max(recreated, 0) :] for listed in batch]:
            if not expected.enter_note(members_of(listed)):
                expected.enter(listed)
        assert all(expected.get(loop) == told for loop, told in comparison.told)
        for listing in found:
            assert state_of(listing) == expected
            assert +listing.counts[LOOPS[0].task] == states_of(listing)
        for reader, following in comparison.without_notes:
            if following.is_on:
                assert without_notes(state_of(reader.listing)) == without_notes(expected)
                await reader.enter_notes()
                assert state_of(reader.listing) == expected


def listed(epoch: int, state: LoopState, base: int) -> RosterEntry:
    return RosterEntry(LOOPS[0], Every("1h"), {}, Entry(epoch, state, 1, base))


# The entry of 9 came too early. Who hears it again, after that of 5 was read, must not accept it.
UNTIMELY = [
    [listed(1, LoopState.ACTIVE, 0)],
    [listed(9, LoopState.ACTIVE, 0), listed(5, LoopState.GONE, 1)],
]


@given(streams, st.sets(st.integers(0, 7)), st.just(-1) | st.integers(0, 7))
@example(UNTIMELY, {1}, -1)
@settings(max_examples=100)
def test_all_readers_judge_alike_also_a_recreated_roster(
    stream: list[list[RosterEntry]], merging: set[int], recreated: int
) -> None:
    run_virtually(judged(stream, merging, min(recreated, len(stream) - 1)))
