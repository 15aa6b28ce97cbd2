"""The roster: which loops there are, as a stream of the epochs that began.

It is what makes keyed loops known to all processors, what shows the loops that the code no longer
has, and what tells who reads it to its end which tokens are void. An entry is a JSON object:

====================  ============================================================
``task``, ``key``     whose entry it is
``epoch``, ``life``   the epoch that begins, and that of the loop's last start
``state``             active, paused or gone
``schedule, args``    with which it goes on
``reason``            why it is paused, or gone
``by``, ``at_ms``     who began the epoch, and when
``checkpoint``        how far the loop had come, where that is known (`checkpoints`)
``override``          who has set the schedule in place of the code's (``by``), and when (``at_ms``)
====================  ============================================================

Entries may be read in any order, and twice: of each loop, the one of the latest epoch holds. So a
snapshot is nothing but the last entry of each loop, again.
"""

import json
import logging
from collections.abc import Callable, Generator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from scheduler.brokers.contract import Broker, Consumer
from scheduler.errors import MessageError, ScheduleError
from scheduler.protocol.epochs import Entry, LoopState, learned
from scheduler.protocol.messages import Message, parsed_json, validated
from scheduler.protocol.tokens import LoopId
from scheduler.protocol.topology import Names
from scheduler.queues.checkpoints import Checkpoint, WireCheckpoint, wire_of
from scheduler.queues.snapshots import Bookmark, Snapshot, Snapshots
from scheduler.tasks.loops import Override
from scheduler.timing.clock import Clock
from scheduler.timing.moments import LATEST_MS, UNIX_EPOCH, milliseconds_since_epoch, moment_of
from scheduler.timing.schedules import Schedule, from_wire, to_wire

ENTRY_TYPE = "scheduler.roster"
READING_TIMEOUT = timedelta(minutes=2)
FEW = 1_000  # are read without a snapshot
REMEMBERED = timedelta(days=1)  # what is gone: no clocks disagree by so much


@dataclass(frozen=True, slots=True)
class Listed:
    """A loop, as its latest epoch began.

    Attributes:
        reason: why it is paused, or gone.
        by: who began the epoch.
        at: when.
        checkpoint: how far it had come; None: that is for the journal to say.
        override: who has set the schedule in place of the code's; None: nobody has.
    """

    loop: LoopId
    schedule: Schedule
    args: Mapping[str, Any]
    entry: Entry = Entry(0, LoopState.ACTIVE, 0)
    reason: str = ""
    by: str = ""
    at: datetime = UNIX_EPOCH
    checkpoint: Checkpoint | None = None
    override: Override | None = None

    @property
    def epoch(self) -> int:
        return self.entry.epoch

    @property
    def is_gone(self) -> bool:
        return self.entry.state is LoopState.GONE


class Listing(dict[LoopId, Listed]):
    """What the roster says of each loop, also of those that are gone; and which epochs began.

    Args:
        forgotten: the greatest epoch of the loops that it has forgotten.
    """

    def __init__(self, forgotten: int = 0) -> None:
        super().__init__()
        self.forgotten = forgotten
        self._learned: dict[LoopId, int] = {}

    def known(self, loop: LoopId) -> int:
        """The greatest epoch of a loop that was seen: in an entry, a roll call, or a token.

        A loop that it does not have may be one that it has forgotten.
        """
        listed, heard = self.get(loop), self._learned.get(loop, 0)
        return learned(heard, self.forgotten if listed is None else listed.epoch)

    def forget(self, before: datetime) -> None:
        """Leave out the loops that were gone before a moment. Their tokens stay void.

        Epochs are numbered by the time, so that whoever starts one of them begins a later one.
        """
        for listed in [each for each in self.values() if each.is_gone and each.at < before]:
            del self[listed.loop]
            self._learned.pop(listed.loop, None)
            self.forgotten = learned(self.forgotten, listed.epoch)

    def learn(self, loop: LoopId, epoch: int) -> None:
        """Take note that this epoch of a loop has begun."""
        if epoch > self.known(loop):
            self._learned[loop] = epoch

    def enter(self, listed: Listed) -> bool:
        """Take note of an entry, unless one of a later epoch is known; says whether its is new."""
        known = self.get(listed.loop)
        if known is None or known.epoch < listed.epoch:
            self[listed.loop] = listed
            return True
        # The same again may be from before a checkpoint.
        if known.epoch == listed.epoch and (listed.checkpoint or known.checkpoint is None):
            self[listed.loop] = listed
        return False

    def entry(self, loop: LoopId) -> Entry | None:
        """The latest entry of a loop, if it has one."""
        listed = self.get(loop)
        return None if listed is None else listed.entry

    def copied(self) -> "Listing":
        """The same, to go on with."""
        copy = Listing(self.forgotten)
        copy.update(self)
        copy._learned |= self._learned
        return copy

    @property
    def there(self) -> list[Listed]:
        """The loops that are not gone, in the order in which they were started."""
        there = [listed for listed in self.values() if not listed.is_gone]
        return sorted(there, key=lambda listed: listed.entry.life)


class Roster:
    """The roster of a namespace; what was read of it is not read again over this connection."""

    def __init__(self, broker: Broker, names: Names, clock: Clock) -> None:
        self._broker = broker
        self._names = names
        self._clock = clock
        self._snapshots = Snapshots(broker, names)
        self._reached = _Read(Listing())

    async def append(self, listed: Listed) -> Listed:
        """Have it known that an epoch begins, confirmed; returns the entry with its time."""
        listed = replace(listed, at=self._clock.now())
        await self.note(listed)
        return listed

    async def note(self, listed: Listed) -> None:
        """Have an entry known, confirmed, with the time that it has."""
        body = json.dumps(_wire(listed)).encode()
        await self._broker.publish(
            Message(body, content_type="application/json", type=ENTRY_TYPE),
            exchange=self._names.control,
            routing_key=self._names.roster,
        )

    async def read(self) -> Listing:
        """What it says of each loop; no entry is left out that was confirmed before.

        Raises:
            QueueNotFound: there is no roster: nothing was seeded.
            BrokerUnavailable: it could not be read to its end.
        """
        return (await self._read()).listing.copied()

    async def glimpse(self) -> Listing:
        """The same without a mark in it, so that it takes no right but to read; of what was
        appended only just now, a part: who follows it hears of that.

        Raises:
            QueueNotFound: there is no roster: nothing was seeded.
            BrokerUnavailable: it could not be read.
        """
        snapshot = await self._read_snapshot()
        if snapshot.up_to is not None:
            first = await self._glance(snapshot.listing, snapshot.up_to.offset)
            if snapshot.up_to.is_at(first):
                return snapshot.listing
        listing = Listing()
        await self._glance(listing, None)
        return listing

    async def _glance(self, listing: Listing, since: int | None) -> Message | None:
        first: Message | None = None
        async with aclosing(self._broker.read(self._names.roster, since=since)) as messages:
            async for message in messages:
                first = first or message
                _enter_from(message, listing)
        return first

    async def compacted(self) -> Listing:
        """The same; where it took much, with a snapshot for whoever reads it next."""
        read = await self._read()
        if read.up_to is not None and read.since_snapshot > max(FEW, len(read.listing) // 4):
            entries = [_wire(listed) for listed in read.listing.values()]
            await self._snapshots.append(Snapshot(read.up_to, entries, read.listing.forgotten))
            self._reached = replace(read, since_snapshot=0)
        return read.listing.copied()

    async def _read(self) -> "_Read":
        """Read on from where this program has got to, or the last snapshot; or all of it."""
        if (read := await self._read_on(self._reached)) is None:
            snapshot = await self._read_snapshot()
            if (read := await self._read_on(snapshot)) is None:
                read, _ = await self._read_from(replace(snapshot, up_to=None))
        self._reached = read
        return read

    async def _read_snapshot(self) -> "_Read":
        snapshot = await self._snapshots.latest()
        if snapshot is None:
            return _Read(Listing())
        listing = Listing(snapshot.forgotten)
        for entry in snapshot.entries:
            _enter(entry, listing)
        return _Read(listing, snapshot.up_to)

    async def _read_on(self, before: "_Read") -> "_Read | None":
        """Read what came since; None: something else is there in place of what was read."""
        if before.up_to is None:
            return None
        read, first = await self._read_from(before)
        return read if before.up_to.is_at(first) else None

    async def _read_from(self, before: "_Read") -> "tuple[_Read, Message | None]":
        """Read on, beginning with the message that was read last; or from the first on."""
        names, listing = self._names, before.listing.copied()
        first = last = None
        count = 0
        reading = self._broker.read_to_end(
            names.roster,
            exchange=names.control,
            routing_key=names.roster,
            since=before.up_to and before.up_to.offset,
            timeout=READING_TIMEOUT,
        )
        async with aclosing(reading) as messages:
            async for last in messages:
                first = first or last
                count += 1
                _enter_from(last, listing)
        listing.forget(self._clock.now() - REMEMBERED)
        up_to = None if last is None else Bookmark.at(last)
        known = 0 if before.up_to is None else 1
        return _Read(listing, up_to, before.since_snapshot + count - known), first

    async def follow(
        self, listing: Listing, told: Callable[[Listed, timedelta], None] = lambda listed, lag: None
    ) -> Consumer:
        """Have entries that are appended from now on entered, until the consumer is cancelled.

        Args:
            told: of each that tells of a new epoch, and of the time since it was appended.
        """

        def hear(message: Message) -> None:
            listed = _enter_from(message, listing)
            if listed is not None:
                told(listed, self._clock.now() - listed.at)

        return await self._broker.follow(self._names.roster, hear, since="next")


@dataclass(frozen=True, slots=True)
class _Read:
    """What was read of the roster.

    Attributes:
        up_to: as far as to where; None: nothing is there.
        since_snapshot: how many entries it took, besides a snapshot.
    """

    listing: Listing
    up_to: Bookmark | None = None
    since_snapshot: int = 0


def _enter_from(message: Message, listing: Listing) -> Listed | None:
    with _left_out_if_bad():
        return _enter(parsed_json(message.body), listing)
    return None


def _enter(entry: Any, listing: Listing) -> Listed | None:
    with _left_out_if_bad():
        listed = _listed(validated(_Entry, entry, "roster entry"))
        return listed if listing.enter(listed) else None
    return None


@contextmanager
def _left_out_if_bad() -> Generator[None]:
    try:
        yield
    except (MessageError, ScheduleError) as error:
        logging.getLogger(__name__).warning("An entry of the roster is left out: %s", error)


def _wire(listed: Listed) -> dict[str, Any]:
    return {
        "task": listed.loop.task,
        "key": listed.loop.key,
        "epoch": listed.epoch,
        "life": listed.entry.life,
        "state": listed.entry.state.value,
        "schedule": to_wire(listed.schedule),
        "args": dict(listed.args),
        "reason": listed.reason,
        "by": listed.by,
        "at_ms": milliseconds_since_epoch(listed.at),
        **({"checkpoint": wire_of(listed.checkpoint)} if listed.checkpoint else {}),
        **({"override": _wire_of_override(listed.override)} if listed.override else {}),
    }


def _listed(wire: "_Entry") -> Listed:
    return Listed(
        LoopId(wire.task, wire.key),
        from_wire(wire.schedule),
        wire.args,
        Entry(wire.epoch, wire.state, wire.life),
        wire.reason,
        wire.by,
        moment_of(wire.at_ms),
        wire.checkpoint and wire.checkpoint.checkpoint,
        wire.override and Override(wire.override.by, moment_of(wire.override.at_ms)),
    )


def _wire_of_override(override: Override) -> dict[str, Any]:
    return {"by": override.by, "at_ms": milliseconds_since_epoch(override.at)}


class _Override(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    by: str
    at_ms: int = Field(ge=0, le=LATEST_MS)


class _Entry(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    task: str = Field(min_length=1)
    key: str = ""
    epoch: int = Field(ge=0)
    life: int = Field(ge=0)
    state: LoopState = Field(strict=False)
    schedule: dict[str, Any]
    args: dict[str, Any] = {}
    reason: str = ""
    by: str = ""
    at_ms: int = Field(ge=0, le=LATEST_MS)
    checkpoint: WireCheckpoint | None = None
    override: _Override | None = None
