"""Keep the roster: the loops, as a stream of the epochs that began.

It makes keyed loops known to all processors, shows the loops that the code no longer has, and tells
a reader of all of it which tokens are void.

Entries are compared and appended: each names the epoch that it follows, and counts only if that is
the loop's latest at its place in the stream. All readers judge it in stream order, and so alike: no
lock is needed.
"""

import asyncio
from collections.abc import (
    AsyncGenerator,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from itertools import chain, islice
from types import MappingProxyType
from typing import TypeVar

from scheduler.brokers.contract import Broker, Consumer
from scheduler.errors import NoSpace, QueueNotFound, TooLarge, Undecodable
from scheduler.protocol.epochs import learned
from scheduler.protocol.messages import Message
from scheduler.protocol.tokens import LoopId
from scheduler.protocol.topology import Names
from scheduler.queues.concurrency import Gathering, side_by_side
from scheduler.queues.entries import (
    LONG,
    RosterEntry,
    batched,
    entries_of,
    entry_of,
    message_with,
    messages_of,
    parts_of,
)
from scheduler.queues.listing import Listing, OutOfScope, Recent, RosterNote
from scheduler.queues.loop_table import Scope
from scheduler.queues.snapshots import Bookmark, Latest, Share, Snapshots
from scheduler.timing.moments import UNIX_EPOCH, Clock, milliseconds_since_epoch
from scheduler.user_code import log_of

READING_TIMEOUT = timedelta(minutes=2)
FEW = 1_000  # entries are read without a snapshot
REMEMBERED = timedelta(days=1)  # more than the clocks of machines differ
FORGOTTEN_AT_ONCE = 100  # loops
AT_ONCE = 16  # messages that are on their way
IN_A_SHARE = 500  # loops, read at one time for a snapshot: other tasks wait for some milliseconds
MOST_OWN = 20  # messages with notes that did not come back yet
FEW_SHARES = 5
"""For some loops, at most one in this many shares is read; for more, all shares."""


T = TypeVar("T")
Identity = tuple[LoopId, int, str]
Refused = dict[Identity, TooLarge]
ReadFrom = Callable[[Bookmark | None], AsyncGenerator[Message]]
"""Reads from a message on, or from the first."""

Question = tuple[ReadFrom, Collection[LoopId] | None]
"""The way of reading, and the loops to look up; None: all."""


class Roster:
    """Read and append to the roster of a namespace; each entry is read once over this connection.

    Args:
        listing: receives the entries of all loops; None: a new one, perhaps for some loops only.
        kept: the loops of the code. They end while an older program follows the roster, which
            would start them again if it forgot that.
        aliases: the task that has each alias.

    Attributes:
        listing: the entries so far.
        enters_notes: whether it enters notes; see `skip_notes`.
        inherits: whether the listing keeps entries of a stream that was recreated: for those who
            follow the roster, or restore it.
        lacks_some: whether the stream may lack entries that were read of an earlier one.
    """

    def __init__(
        self,
        broker: Broker,
        names: Names,
        clock: Clock,
        listing: Listing | None = None,
        kept: Collection[LoopId] = (),
        aliases: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._kept, self._aliases = kept, aliases
        self._broker = broker
        self._names = names
        self._clock = clock
        self._snapshots = Snapshots(broker, names)
        self.listing = Listing(aliases) if listing is None else listing
        self._is_given = listing is not None
        self._followed: list[Following] = []
        self.enters_notes = True
        self._noted: Bookmark | None = None
        self._noted_at: datetime | None = None
        self._read_at = UNIX_EPOCH
        self.inherits = False
        self.lacks_some = False
        self._since_snapshot = 0
        self._looked_up = set[LoopId]()
        self._times_read = 0
        self._reading = Gathering(self._read)
        self._awaited: dict[Identity, bool] = {}
        self._with_notes: Roster | None = None
        self._own_notes = Recent[bytes, Sequence[RosterNote]](MOST_OWN)
        self._last_ms = 0
        self._appending = Gathering(self._append)  # 1,000 starts at once are a few messages

    def next_epoch_ms(self) -> int:
        """Return the time in milliseconds, later than at each call before.

        A creator that numbers its epochs by it never appends two entries of one identity, if it
        reads the roster before each. It is also later than all forgotten epochs: the clock of their
        creator, or of the program that forgot them, may have been ahead.
        """
        now_ms = milliseconds_since_epoch(self._clock.now())
        self._last_ms = max(self._last_ms + 1, self.listing.forgotten + 1, now_ms)
        return self._last_ms

    async def append(self, entries: Sequence[RosterEntry]) -> list[RosterEntry | TooLarge | None]:
        """Append entries, confirmed, and read the roster to see which of them are accepted.

        Returns:
            Each entry; None: it is ignored, as another one was first; TooLarge: the broker does not
            accept it.
        """
        mine = {listed.identity: False for listed in entries}
        self._awaited |= mine
        try:
            refused = await self._appending.ask(entries)
            listing = await self.read([listed.loop for listed in entries])
            return [
                refused.get(listed.identity)
                or (listed if self._is_accepted(listed, listing) else None)
                for listed in entries
            ]
        finally:
            for identity in mine:
                self._awaited.pop(identity, None)

    async def note(self, notes: Sequence[RosterNote]) -> None:
        """Append notes, confirmed, without reading them back; a follower does not decode them.

        Without a note that the broker does not accept, the journal is read for its loop.
        """
        messages, rest = list[Message](), iter(notes)
        for parts in batched(note.encoded for note in notes):
            messages.append(message := message_with(parts))
            self._own_notes[message.body] = list(islice(rest, len(parts)))
        for (loop, *_), refusal in (await self._publish_all(messages)).items():
            log_of(__name__).warning("The roster lacks a note on %s: %s", loop, refusal)

    async def _append(self, batch: Iterable[Sequence[RosterEntry]]) -> Refused:
        return await self._publish_all(messages_of(chain.from_iterable(batch)))

    async def _publish_all(self, messages: Iterable[Message]) -> Refused:
        """Publish entries; return those that the broker does not accept."""
        refused = Refused()
        await side_by_side(partial(self._publish, refused), messages, at_once=AT_ONCE)
        return refused

    async def _publish(self, refused: Refused, message: Message) -> None:
        try:
            await self._broker.publish(
                message, exchange=self._names.control, routing_key=self._names.roster
            )
        except TooLarge as error:
            entries = list(entries_of(message))
            if len(entries) == 1:
                refused[entries[0].identity] = error
            else:  # above the limit of a broker that accepts very little
                for each in entries:
                    await self._publish(refused, *messages_of([each]))

    def _is_accepted(self, listed: RosterEntry, listing: Listing) -> bool:
        if self._awaited.get(listed.identity):
            return True
        latest = listing.get(listed.loop)  # a snapshot may cover it
        return latest is not None and latest.identity == listed.identity

    async def read(self, only: Collection[LoopId] | None = None) -> Listing:
        """Read the roster to its end; no entry that was confirmed before is missed.

        Args:
            only: the loops that are looked up. Of a long roster that was not read yet, nothing but
                their shares is read: a program that starts one of a million loops need not read
                the others.

        Returns:
            The listing, which changes as the roster is read: read-only for callers.

        Raises:
            QueueNotFound: there is no roster: nothing was seeded.
            BrokerUnavailable: it could not be read to its end.
        """
        return await self._reading.ask((self._read_to_end, only))

    async def consult(self, loops: Collection[LoopId], judge: Callable[[Listing], T]) -> T:
        """Return a function's judgement by the entries of these loops; by all, if it looks up
        others.
        """
        try:
            return judge(await self.read(loops))
        except OutOfScope:
            return judge(await self.read())

    async def look(self, only: Collection[LoopId] | None = None) -> Listing:
        """Read the roster as `read` does, but write nothing: for observers.

        In a cluster, the newest entries may be missing.
        """
        return await self._reading.ask((self._read_what_is_there, only))

    async def _read(self, asked: Sequence[Question]) -> Listing:
        is_exact = any(read_from == self._read_to_end for read_from, _ in asked)
        read_from = self._read_to_end if is_exact else self._read_what_is_there
        began_at = self._clock.now()
        loops, is_for_all = set[LoopId](), self._is_given or self.inherits
        for _, only in asked:
            loops.update(only or ())
            is_for_all = is_for_all or only is None
        try:
            await self._continue_or_reread(read_from, None if is_for_all else loops)
        except QueueNotFound as error:
            raise QueueNotFound(
                f"The queue {self._names.roster!r} does not exist: run `scheduler seed` first."
            ) from error
        self._read_at = began_at
        self._forget()
        return self.listing

    @property
    def needs_snapshot(self) -> bool:
        """Return whether reading the entries since the last snapshot is expensive."""
        listing, count = self.listing, self._since_snapshot
        # An entry takes a reader five times as long as a row of a snapshot.
        is_expensive = count > max(FEW, len(listing) // 5)
        return is_expensive and listing.reached is not None and listing.scope is None

    async def compact(self) -> None:
        """Write a snapshot of the entries, if it needs one."""
        if self.needs_snapshot:
            count = self._since_snapshot
            await self._snapshots.append(Shares(self.listing))
            self._since_snapshot = max(self._since_snapshot - count, 0)

    async def follow(
        self,
        hear: Callable[[LoopId, int, timedelta], None] = lambda loop, epoch, lag: None,
        end: Callable[[], None] = lambda: None,
    ) -> "Following":
        """Enter new entries, until cancelled, or until one cannot be entered.

        Args:
            hear: called for each accepted entry, with its loop, its epoch, and the time since it
                was appended. The listing has it.
            end: called when no more are entered: read the roster, and follow it again.
        """
        assert self.listing.scope is None, "It was read for some loops only."
        self.inherits = True
        following = Following(self._enter, hear, end, start=self.listing.reached)
        self._followed.append(following)  # now, as entries come before the broker has confirmed
        since = "first" if following.start is None else following.start.offset
        try:
            following.consumer = await self._broker.follow(
                self._names.roster, following.hear, since=since
            )
        except BaseException:
            following.is_on = False
            raise
        return following

    def skip_notes(self) -> None:
        """Skip notes from now on.

        Many loops that wait for long have many, and a follower needs them only if it supervises.
        """
        if self.enters_notes:
            self.enters_notes = False
            if self._noted_at is None:  # else it is still entering those before
                # It may be reading, and notes of long ago are to come.
                self._noted, self._noted_at = self.listing.reached, self._read_at

    async def enter_notes(self) -> None:
        """Enter the notes that were skipped, and from now on all.

        Raises:
            QueueNotFound: there is no roster: nothing was seeded.
            BrokerUnavailable: it could not be read to its end.
        """
        if self.enters_notes:
            return
        self.enters_notes = True  # also the notes that arrive during the reading
        try:
            await self._enter_skipped_notes()
        except BaseException:
            self.enters_notes = False
            self._noted, self._noted_at = None, UNIX_EPOCH
            raise
        if self.enters_notes:
            self._noted_at = None

    async def _enter_skipped_notes(self) -> None:
        for look_up in (self._snapshots.latest, self._snapshots.expected):
            start = await self._load_notes(await look_up()) or self._noted
            reading, is_short = self._read_to_end(start), start is None
            if await self._enter_all(reading, start, self._enter_notes, is_short=is_short):
                return
        await self._enter_all(self._read_to_end(None), None, self._enter_notes)

    async def with_last_note(self, listed: RosterEntry) -> RosterEntry:
        """Return an entry with its latest checkpoint, even if that note was skipped."""
        now = self._clock.now()
        since = max(listed.at, self._noted_at or now)
        if now - since <= LONG:  # the journal has it
            return listed
        if self._with_notes is None:
            self._with_notes = Roster(self._broker, self._names, self._clock)
        current = (await self._with_notes.read([listed.loop])).get(listed.loop)
        return current if current is not None and current.identity == listed.identity else listed

    def was_read_for(self, only: Collection[LoopId] | None) -> bool:
        """Return whether it was read for these loops; None: for all."""
        listing = self.listing
        if listing.reached is None or listing.scope is None:
            return listing.reached is not None
        return only is not None and all(map(listing.is_for, only))

    async def _continue_or_reread(
        self, read_from: ReadFrom, only: Collection[LoopId] | None
    ) -> None:
        """Read on from the last position, or the last snapshot; or all of it."""
        if self.listing.table.has_failed:
            self.listing.begin_again()
        if self.listing.scope is not None and not self.was_read_for(only):
            self.listing = Listing(self._aliases)  # others may be looking at the one before
        listing, start = self.listing, self.listing.reached
        before = start
        if start is not None and await self._enter_all(read_from(start), start):
            return
        for following in self._followed:  # without it, the place of new entries is unknown
            following.end()
        self._noted, self._noted_at = None, None if self.enters_notes else UNIX_EPOCH
        self.lacks_some = self.lacks_some or (self.inherits and len(listing) > 0)
        self._begin_again()
        snapshot = await self._snapshots.latest()
        if snapshot is None:
            if await self._enter_all(read_from(None), is_short=True):
                return
            self._begin_again()
            snapshot = await self._snapshots.expected()
        # Of another roster, it covers more than nothing, and less than the entries read of that.
        if snapshot is not None and (not listing or await self._is_there(snapshot.up_to)):
            await self._load(snapshot, only)
            start = self._noted = listing.reached
            if start is not None and await self._enter_all(read_from(start), start):
                is_later = before is not None and before.offset < snapshot.up_to.offset
                if self.inherits and is_later:  # what it lacks had been gone for long
                    listing.drop_inherited(self._kept)
                return
            if listing.scope is not None:
                await self._continue_or_reread(read_from, None)
                return
            listing.inherit_all()
        await self._enter_all(read_from(None))

    def _begin_again(self) -> None:
        self._since_snapshot = 0
        if self.inherits:
            self.listing.inherit_all()
        else:
            self.listing.clear()

    async def _is_there(self, bookmark: Bookmark) -> bool:
        """Return whether a message is in the roster."""
        async with aclosing(self._read_what_is_there(bookmark)) as messages:
            async for message in messages:
                return bookmark.is_at(message)
        return False

    def _read_to_end(self, start: Bookmark | None) -> AsyncGenerator[Message]:
        return self._broker.read_to_end(
            self._names.roster,
            exchange=self._names.control,
            routing_key=self._names.roster,
            since=start and start.offset,
            timeout=READING_TIMEOUT,
        )

    def _read_what_is_there(self, start: Bookmark | None) -> AsyncGenerator[Message]:
        return self._broker.read(
            self._names.roster, since=start and start.offset, timeout=READING_TIMEOUT
        )

    async def _enter_all(
        self,
        reading: AsyncGenerator[Message],
        start: Bookmark | None = None,
        enter: Callable[[Message], None] | None = None,
        *,
        is_short: bool = False,
    ) -> bool:
        """Enter all entries from a message on.

        Args:
            start: the first message; None: the first of the stream.
            enter: enters a message; None: its entries and notes.
            is_short: stop if the stream turns out to be long, so that it has a snapshot.

        Returns:
            False: that message is not there, and nothing was entered; or it has stopped.
        """
        is_there, enter, count = start is None, enter or self._enter, 0
        async with aclosing(reading) as messages:
            async for message in messages:
                assert message.offset is not None
                is_there = is_there or (start is not None and start.is_at(message))
                count += 1
                # Marks have offsets, too: a later one does not tell how long the stream is.
                is_long = count > FEW or (count == 1 and message.offset > FEW)
                if not is_there or (is_short and is_long):
                    return False
                enter(message)
                await asyncio.sleep(0)
        return is_there

    async def _load(self, snapshot: Latest, only: Collection[LoopId] | None) -> None:
        """Load a snapshot, or the shares of some loops; an unreadable one leaves only some
        inherited loops.
        """
        listing, reached = self.listing, dict[int, Bookmark]()
        listing.scope = scope = None if only is None else self._scope(only, snapshot.shares)
        ranges = [(0, snapshot.shares - 1)] if scope is None else scope.ranges
        try:
            for first, last in ranges:
                async with aclosing(self._snapshots.shares(snapshot, first, last)) as shares:
                    async for share in shares:
                        reached.setdefault(share.number, share.up_to)
                        listing.table.load(share.lines)
                        listing.forgotten = learned(listing.forgotten, share.forgotten)
                if last not in reached:
                    raise Undecodable("A part of it is gone.")
            await listing.begin_from(reached, snapshot.shares)
        except (Undecodable, QueueNotFound) as error:
            self._snapshots.warn("read", error)

    async def _load_notes(self, latest: Latest | None) -> Bookmark | None:
        """Load the notes of the latest snapshot; return the last message that it covers.

        None: there is no snapshot, or no note of it was skipped.
        """
        try:
            noted = self._noted
            if latest is None or (noted is not None and latest.up_to.offset <= noted.offset):
                return None
            reading = self._snapshots.shares(latest, 0, latest.shares - 1)
            async with aclosing(reading) as shares:
                async for share in shares:
                    self.listing.load_notes(share.lines)
        except (Undecodable, QueueNotFound) as error:
            self._snapshots.warn("read", error)
            return None
        return latest.up_to

    def _scope(self, only: Collection[LoopId], shares: int) -> Scope | None:
        """Return the shares to load for these loops and all before; None: all.

        A program that looks up ever more loops reads twice as many shares each time.
        """
        self._looked_up.update(only)
        scope = Scope.of(self._looked_up, shares, extra=2**self._times_read - 1)
        self._times_read += 1
        return scope if len(scope.numbers) * FEW_SHARES <= shares else None

    def _enter_notes(self, message: Message) -> None:
        for part in parts_of(message):
            self.listing.enter_note(part)

    def _enter(self, message: Message) -> None:
        """Judge the entries of a message, unless it was judged."""
        assert message.offset is not None
        listing = self.listing
        if listing.reached is not None and message.offset <= listing.reached.offset:
            return
        for part in () if self._enter_own_notes(message) else parts_of(message):
            self._since_snapshot += 1
            if listing.leaves_out(part) or not (self.enters_notes or listing.is_later(part)):
                continue
            if listing.enter_note(part):
                continue
            if (first := listing.enter_first(part, message.offset)) is not None:
                self._note_accepted((first.loop, first.epoch, first.by))
                self._announce(first.loop, first.epoch, first.at)
                continue
            listed = entry_of(part)
            if listed is None or listing.is_covered(listed.loop, message.offset):
                continue
            if listing.enter(listed):
                self._note_accepted(listed.identity)
                # The former loop of a renamed one has ended.
                for loop in dict.fromkeys((listed.before, listed.loop)):
                    self._announce(loop, listing[loop].epoch, listed.at)
        listing.reached = Bookmark.at(message)

    def _enter_own_notes(self, message: Message) -> bool:
        """Enter the notes of a message of this connection; return False if they must be decoded."""
        notes = self._own_notes.pop(message.body, ())
        is_done = bool(notes) and all(map(self.listing.enter_decoded, notes))
        self._since_snapshot += len(notes) if is_done else 0
        return is_done

    def _note_accepted(self, identity: Identity) -> None:
        if identity in self._awaited:
            self._awaited[identity] = True

    def _announce(self, loop: LoopId, epoch: int, at: datetime) -> None:
        if not self._followed:
            return
        lag = self._clock.now() - at
        self._followed = [each for each in self._followed if each.is_on]
        for following in self._followed:
            following.announce(loop, epoch, lag)
        # A processor may follow for months without reading. Between old entries, it must forget
        # nothing: an entry that other readers reject would be accepted.
        if self._followed and lag < REMEMBERED / 2:
            self._forget(FORGOTTEN_AT_ONCE)

    def _forget(self, most: int = -1) -> None:
        kept = self._kept if self.inherits else ()
        self.listing.forget(self._clock.now() - REMEMBERED, most=most, kept=kept)


class Following:
    """Follow a roster, until cancelled.

    Args:
        enter: enters a message.
        announce: called for each accepted entry.
        on_end: called if it ends before it is cancelled.
        start: the first message; None: the first of the stream.
    """

    consumer: Consumer

    def __init__(
        self,
        enter: Callable[[Message], None],
        announce: Callable[[LoopId, int, timedelta], None],
        on_end: Callable[[], None],
        *,
        start: Bookmark | None,
    ) -> None:
        self.start, self.announce = start, announce
        self._enter, self._on_end = enter, on_end
        self._heard = -1
        self.is_on = True

    def hear(self, message: Message) -> None:
        """Enter a message, if it continues after the one before.

        Otherwise the stream was recreated, and the roster has to be read again.
        """
        assert message.offset is not None
        goes_on = message.offset > self._heard
        if self._heard < 0 and self.start is not None:
            goes_on = self.start.is_at(message)
        self._heard = message.offset
        if not goes_on:
            self.end()
        if self.is_on:
            try:
                self._enter(message)
            except Exception as error:
                # Without this entry, later ones may be judged wrongly.
                is_known = isinstance(error, NoSpace)
                log_of(__name__).error(
                    "The roster cannot be followed: %s", error, exc_info=not is_known
                )
                self.end()

    def end(self) -> None:
        """Enter no more messages."""
        if self.is_on:
            self.is_on = False
            self._on_end()

    async def cancel(self) -> None:
        """Stop following."""
        self.is_on = False
        await self.consumer.cancel()


@dataclass(frozen=True, slots=True)
class Shares:
    """Yield the shares of a listing, each in its state at that moment.

    Args:
        most: the approximate number of loops in one.

    Raises:
        Undecodable: the roster was recreated in between, so that they would not fit together.
    """

    listing: Listing
    most: int = IN_A_SHARE

    def __iter__(self) -> Iterator[Share]:
        listing = self.listing
        shares, streams = -(-len(listing) // self.most) or 1, listing.streams
        for number in range(shares):
            if listing.reached is None or listing.streams != streams:
                raise Undecodable("The roster was recreated while its snapshot was written.")
            lines = listing.table.share(number, shares)
            yield Share(number, listing.reached, lines, listing.forgotten)
