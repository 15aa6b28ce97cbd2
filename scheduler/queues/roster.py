"""The roster: which loops there are, as a stream of the epochs that began.

It is what makes keyed loops known to all processors, what shows the loops that the code no longer
has, and what tells who reads it to its end which tokens are void.

Entries are compared and appended: each names the epoch that it follows, and counts only if that is
the loop's latest at its place in the stream. All readers judge it in the order of the stream, and
so alike: a lock is not needed.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import chain

from scheduler.brokers.contract import Broker, Consumer
from scheduler.errors import TooLarge
from scheduler.protocol.messages import Message
from scheduler.protocol.tokens import LoopId
from scheduler.protocol.topology import Names
from scheduler.queues.concurrency import Gathering
from scheduler.queues.listing import Listed, Listing, decoded, encoded, entries_of, messages_of
from scheduler.queues.snapshots import SLICE, Bookmark, Snapshot, Snapshots
from scheduler.timing.clock import Clock
from scheduler.timing.moments import milliseconds_since_epoch

READING_TIMEOUT = timedelta(minutes=2)
FEW = 1_000  # entries are read without a snapshot
REMEMBERED = timedelta(days=1)  # what is gone: no clocks disagree by so much
AT_ONCE = 16  # messages that are on their way

Identity = tuple[LoopId, int, str]
Refused = dict[Identity, TooLarge]
ReadFrom = Callable[[Listing], AsyncGenerator[Message]]
"""Reads from where a listing has got to."""


class Roster:
    """The roster of a namespace; what was read of it is not read again over this connection."""

    def __init__(self, broker: Broker, names: Names, clock: Clock) -> None:
        self._broker = broker
        self._names = names
        self._clock = clock
        self._snapshots = Snapshots(broker, names)
        self._listing = Listing()
        self._since_snapshot = 0
        self._reading = Gathering(self._read)
        self._awaited: dict[Identity, bool] = {}
        self._last_ms = 0
        self._appending = Gathering(self._note_all)  # 1,000 starts at once are a few messages

    def next_epoch_ms(self) -> int:
        """Return the time in milliseconds, later than at each call before.

        A creator that numbers its epochs by it never appends two entries of one identity, if it
        reads the roster before each. It is also later than all epochs that are forgotten: a clock
        may have been ahead, of whoever numbered them, or of whoever forgot them.
        """
        now_ms = milliseconds_since_epoch(self._clock.now())
        self._last_ms = max(self._last_ms + 1, self._listing.forgotten + 1, now_ms)
        return self._last_ms

    async def append(self, entries: Sequence[Listed]) -> list[Listed | TooLarge | None]:
        """Append entries, confirmed, and read the roster to see which of them are accepted.

        Returns:
            Each entry with its time; None: it is ignored, as another one was first; TooLarge: the
            broker does not accept it.
        """
        now = self._clock.now()
        entries = [replace(listed, at=now) for listed in entries]
        mine = {listed.identity: False for listed in entries}
        self._awaited |= mine
        try:
            refused = await self._appending.ask(entries)
            listing = await self.read()
            return [
                refused.get(listed.identity)
                or (listed if self._is_accepted(listed, listing) else None)
                for listed in entries
            ]
        finally:
            for identity in mine:
                self._awaited.pop(identity, None)

    async def note(self, entries: Iterable[Listed]) -> None:
        """Append entries, confirmed, with the time that they have, and do not read them back.

        Raises:
            TooLarge: the broker does not accept one of them; the others are appended.
        """
        for refusal in (await self._note(entries)).values():
            raise refusal

    async def _note_all(self, batch: Iterable[Sequence[Listed]]) -> Refused:
        return await self._note(chain.from_iterable(batch))

    async def _note(self, entries: Iterable[Listed]) -> Refused:
        """Append entries; return those that the broker does not accept."""
        messages, refused = messages_of(entries), Refused()
        publishing = [asyncio.create_task(self._publish(messages, refused)) for _ in range(AT_ONCE)]
        try:
            await asyncio.gather(*publishing)
            return refused
        finally:
            for each in publishing:
                each.cancel()
            await asyncio.gather(*publishing, return_exceptions=True)

    async def _publish(self, messages: Iterator[Message], refused: Refused) -> None:
        for message in messages:
            try:
                await self._broker.publish(
                    message, exchange=self._names.control, routing_key=self._names.roster
                )
            except TooLarge as error:
                entries = list(entries_of(message))
                if len(entries) == 1:
                    refused[entries[0].identity] = error
                else:  # more than a broker accepts that was told to accept very little
                    await self._publish(chain.from_iterable(map(_alone, entries)), refused)

    def _is_accepted(self, listed: Listed, listing: Listing) -> bool:
        if self._awaited.get(listed.identity):
            return True
        latest = listing.get(listed.loop)  # a snapshot may have told of it
        return latest is not None and latest.identity == listed.identity

    async def read(self) -> Listing:
        """Read the roster on to its end; no entry is left out that was confirmed before.

        Returns:
            The listing of this program itself, that changes as it reads on: not to be changed.

        Raises:
            QueueNotFound: there is no roster: nothing was seeded.
            BrokerUnavailable: it could not be read to its end.
        """
        return await self._reading.ask(self._read_to_end)

    async def look(self) -> Listing:
        """Read the roster on as `read` does, but write nothing: for who does not act on it.

        In a cluster, what was appended only just now may be missing.
        """
        return await self._reading.ask(self._read_what_is_there)

    async def _read(self, asked: Sequence[ReadFrom]) -> Listing:
        is_exact = self._read_to_end in asked
        await self._read_on_or_anew(self._read_to_end if is_exact else self._read_what_is_there)
        self._listing.forget(self._clock.now() - REMEMBERED)
        return self._listing

    async def compacted(self) -> Listing:
        """Read the roster as `read` does; where it took much, write a snapshot."""
        listing = await self.read()
        if listing.reached is not None and self._since_snapshot > max(FEW, len(listing) // 4):
            self._since_snapshot = 0
            loops = [(listed, listing.is_inherited(loop)) for loop, listed in listing.items()]
            entries = _Entries(loops)
            await self._snapshots.append(Snapshot(listing.reached, entries, listing.forgotten))
        return listing

    async def follow(
        self, listing: Listing, told: Callable[[Listed, timedelta], None] = lambda listed, lag: None
    ) -> Consumer:
        """Enter what comes after what a listing has reached, until the consumer is cancelled.

        Args:
            told: of each that tells of a new epoch, and of the time since it was appended.
        """
        start, heard = listing.reached, -1

        def hear(message: Message) -> None:
            nonlocal heard
            assert message.offset is not None
            goes_on = message.offset > heard
            if heard < 0 and start is not None:
                goes_on = start.is_at(message)
            if not goes_on:
                listing.begin_anew()
            heard = message.offset
            for listed in self._enter(message, listing):
                told(listed, self._clock.now() - listed.at)

        since = "first" if start is None else start.offset
        return await self._broker.follow(self._names.roster, hear, since=since)

    async def _read_on_or_anew(self, read_from: ReadFrom) -> None:
        """Read on from where this program has got to, or the last snapshot; or all of it."""
        listing = self._listing
        if listing.reached is not None and await self._enter_all(listing, read_from(listing)):
            return
        listing = self._listing = await _listing_of(await self._snapshots.latest())
        self._since_snapshot = 0
        if not await self._enter_all(listing, read_from(listing)):
            listing.begin_anew()
            await self._enter_all(listing, read_from(listing))

    def _read_to_end(self, listing: Listing) -> AsyncGenerator[Message]:
        return self._broker.read_to_end(
            self._names.roster,
            exchange=self._names.control,
            routing_key=self._names.roster,
            since=listing.reached and listing.reached.offset,
            timeout=READING_TIMEOUT,
        )

    def _read_what_is_there(self, listing: Listing) -> AsyncGenerator[Message]:
        return self._broker.read(
            self._names.roster,
            since=listing.reached and listing.reached.offset,
            timeout=READING_TIMEOUT,
        )

    async def _enter_all(self, listing: Listing, reading: AsyncGenerator[Message]) -> bool:
        """Enter what is read from where a listing has got to.

        Returns:
            False: what it has reached is not there, and nothing was entered.
        """
        start, is_first = listing.reached, True
        async with aclosing(reading) as messages:
            async for message in messages:
                if is_first and start is not None and not start.is_at(message):
                    return False
                is_first = False
                for listed in self._enter(message, listing):
                    if listed.identity in self._awaited:
                        self._awaited[listed.identity] = True
                await asyncio.sleep(0)
        return start is None or not is_first

    def _enter(self, message: Message, listing: Listing) -> list[Listed]:
        """Judge the entries of a message, unless it was judged; return those that are accepted."""
        assert message.offset is not None
        if listing.reached is not None and message.offset <= listing.reached.offset:
            return []
        entries = list(entries_of(message))
        if listing is self._listing:
            self._since_snapshot += len(entries)
        listing.reached = Bookmark.at(message)
        told = list[Listed]()
        for listed in entries:
            if listing.enter(listed):
                # Of a loop that is renamed, the one before has ended.
                told += [listing[loop] for loop in dict.fromkeys((listed.before, listed.loop))]
        return told


def _alone(listed: Listed) -> Iterator[Message]:
    return messages_of([listed])


@dataclass(frozen=True, slots=True)
class _Entries:
    """Entries of a snapshot, encoded one by one each time that they are iterated over."""

    loops: Sequence[tuple[Listed, bool]]

    def __iter__(self) -> Iterator[bytes]:
        for listed, is_inherited in self.loops:
            yield encoded(listed, is_inherited=is_inherited).encode()


async def _listing_of(snapshot: Snapshot | None) -> Listing:
    if snapshot is None:
        return Listing()
    listing = Listing(snapshot.forgotten)
    for number, entry in enumerate(snapshot.entries):
        if (told := decoded(entry)) is not None:
            listed, is_inherited = told
            listing.inherit(listed) if is_inherited else listing.enter(listed)
        if number % SLICE == 0:
            await asyncio.sleep(0)
    listing.reached = snapshot.up_to
    return listing
