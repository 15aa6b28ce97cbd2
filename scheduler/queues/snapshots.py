"""Snapshot the roster, in messages of a separate stream.

A snapshot is split into shares of the loops, by a hash of their keys, and each share names the
roster entry that it covers last: so shares are written one after the other, while loops continue. A
reader of the last snapshot reads the roster from the first of these entries on, which also
identifies the roster: if the entry is missing, the roster was recreated, or has dropped it, and is
read from its first entry. So no snapshot is wrong, and an older one only means more to read.

No message holds all loops: a share is one part or more, and a snapshot counts if all of its parts
are there. The parts are far below RabbitMQ's max_message_size; a broker that accepts less gets
smaller ones. A part's body is a line for each loop, compressed: the columns of its row in
`scheduler.queues.loop_table`, with tabs between them. So its reader parses no JSON. Its headers:

============================  ============================================================
``snapshot``                  the ID that the parts of one snapshot share
``part``, ``last``            which of them it is, from 0 on, and whether it is the last
``share``                     its share of the loops, from 0 on
``offset``, ``digest``        of the last message of the roster that it covers
``forgotten``                 the greatest epoch of the loops that are left out, as they are
                              long gone
============================  ============================================================
"""

import asyncio
import hashlib
import uuid
import zlib
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import repeat
from typing import TypeVar

from pydantic import TypeAdapter

from scheduler.brokers.contract import Broker
from scheduler.errors import (
    BrokerError,
    MessageError,
    NoReplica,
    QueueNotFound,
    TooLarge,
    Undecodable,
)
from scheduler.protocol.messages import Count, Flag, Message, validated
from scheduler.protocol.topology import Names
from scheduler.user_code import log_of

SNAPSHOT_TYPE = "scheduler.snapshot"
MOST_BYTES = 1_000_000  # of a part, compressed; only a single large entry may exceed it
SLICE = 200  # entries to compress or write before other tasks run,
SLICE_BYTES = 100_000  # or bytes
GZIP = zlib.MAX_WBITS | 16
SHOWN_AFTER_S, LOOK_PAUSE_S = 5.0, 0.5
L = TypeVar("L", bytes, str)


@dataclass(frozen=True, slots=True)
class Bookmark:
    """Mark a position in a stream.

    Attributes:
        offset: of the last message.
        digest: of that message's body.
    """

    offset: int
    digest: str

    @classmethod
    def at(cls, last: Message) -> "Bookmark":
        """Return the bookmark at a message of a stream."""
        assert last.offset is not None
        return cls(last.offset, hashlib.sha256(last.body).hexdigest())

    def is_at(self, message: Message) -> bool:
        """Return whether this is the marked message."""
        return message.offset == self.offset and Bookmark.at(message) == self


@dataclass(frozen=True, slots=True)
class Share:
    """Hold a stream's state of a share of the loops, up to a message.

    Attributes:
        number: which share it is.
        lines: a line for each loop.
        forgotten: the greatest epoch of the loops that are left out.
    """

    number: int
    up_to: Bookmark
    lines: Sequence[bytes]
    forgotten: int = 0


@dataclass(frozen=True, slots=True)
class Latest:
    """Locate a complete snapshot.

    Attributes:
        since: the offset of its first part.
        up_to: of the first share, which was written first.
        shares: how many it has.
    """

    id: str
    since: int
    up_to: Bookmark
    shares: int = 1


@dataclass(frozen=True, slots=True)
class _About:
    snapshot: str
    part: Count
    share: Count
    offset: Count
    digest: str
    last: Flag = False
    forgotten: Count = 0


_ABOUT = TypeAdapter(_About)


def _about(part: Message) -> _About:
    return validated(_ABOUT, part.headers, "snapshot")


class Snapshots:
    """Read and write the snapshots of a roster."""

    def __init__(self, broker: Broker, names: Names) -> None:
        self._broker = broker
        self._names = names

    async def latest(self) -> Latest | None:
        """Return the latest complete snapshot; None: there is none."""
        try:
            last = await self._broker.last(self._names.snapshots)
            if last is None:
                return None
            assert last.offset is not None
            # Its parts were published one after the other, most likely with no others between.
            about = _about(last)
            if about.last and not about.part:
                up_to = Bookmark(about.offset, about.digest)
                return Latest(about.snapshot, last.offset, up_to)
            since = max(last.offset - about.part, 0)
            return await self._complete(since) or await self._complete(None)
        except (QueueNotFound, NoReplica):
            return None
        except Undecodable as error:
            self.warn("read", error)
            return None

    async def expected(self) -> Latest | None:
        """Return the latest complete snapshot, once the broker shows one.

        After a restart, RabbitMQ reports a stream as empty for some 3 s (tried on 3.10 and 4.0).
        """
        try:
            async with asyncio.timeout(SHOWN_AFTER_S):
                for pause in repeat(LOOK_PAUSE_S):
                    if await self._broker.last(self._names.snapshots) is not None:
                        break
                    await asyncio.sleep(pause)
        except (QueueNotFound, NoReplica, TimeoutError):
            return None
        return await self.latest()

    async def shares(self, snapshot: Latest, first: int, last: int) -> AsyncGenerator[Share]:
        """Read some shares of a snapshot, in order; one that was split comes in pieces.

        Raises:
            Undecodable: a part cannot be decompressed.
            BrokerUnavailable: it could not be read to its end.
        """
        # Each share before it has one part or more.
        reading = self._broker.read(self._names.snapshots, since=snapshot.since + first)
        async with aclosing(reading) as messages:
            async for message in messages:
                about = _about(message)
                if about.snapshot != snapshot.id or about.share < first:
                    continue
                if about.share > last:
                    return
                up_to = Bookmark(about.offset, about.digest)
                async for lines in _lines_of(message):
                    yield Share(about.share, up_to, lines, about.forgotten)
                if about.last:
                    return

    async def append(self, shares: Iterable[Share]) -> None:
        """Publish a snapshot; log a failure as a warning: other programs benefit, not this one.

        Args:
            shares: all of them, in order; each is taken when it is its turn.
        """
        try:
            try:
                await self._publish(shares, MOST_BYTES)
            except TooLarge as error:
                await self._publish(shares, error.limit // 2)
        except (BrokerError, MessageError) as error:
            self.warn("written", error)

    async def _publish(self, shares: Iterable[Share], most_bytes: int) -> None:
        snapshot, part, before = uuid.uuid4().hex, 0, None
        for share in shares:
            async for body in _bodies_of(share, most_bytes):
                if before is not None:
                    await self._publish_part(before)
                about = {
                    "snapshot": snapshot,
                    "part": part,
                    "share": share.number,
                    "offset": share.up_to.offset,
                    "digest": share.up_to.digest,
                    "forgotten": share.forgotten,
                }
                before = Message(body, about, content_encoding="gzip", type=SNAPSHOT_TYPE)
                part += 1
        if before is not None:
            await self._publish_part(replace(before, headers={**before.headers, "last": True}))

    async def _publish_part(self, part: Message) -> None:
        await self._broker.publish(
            part, exchange=self._names.control, routing_key=self._names.snapshots
        )

    async def _complete(self, since: int | None) -> Latest | None:
        """Return the last complete snapshot that is found from an offset on."""
        begun, complete = dict[str, tuple[Latest, int]](), None
        async with aclosing(self._broker.read(self._names.snapshots, since=since)) as messages:
            async for message in messages:
                about = _about(message)
                assert message.offset is not None
                if about.part == 0:
                    up_to = Bookmark(about.offset, about.digest)
                    begun[about.snapshot] = Latest(about.snapshot, message.offset, up_to), 0
                if about.snapshot not in begun:
                    continue
                snapshot, expected = begun.pop(about.snapshot)
                if about.part == expected and about.last:
                    complete = replace(snapshot, shares=about.share + 1)
                elif about.part == expected:
                    begun[about.snapshot] = snapshot, expected + 1
        return complete

    def warn(self, what: str, error: Exception) -> None:
        """Log that no snapshot can be read, or written."""
        log_of(__name__).warning(
            "The snapshot of the roster cannot be %s, so reading the roster is slow: %s",
            what,
            error,
        )


async def _bodies_of(share: Share, most_bytes: int) -> AsyncGenerator[bytes]:
    """Compress the lines of a share, in one body or more."""
    compress, body = zlib.compressobj(1, wbits=GZIP), bytearray()
    for batch in batches(share.lines, SLICE, min(SLICE_BYTES, most_bytes // 2)):
        lines = b"".join(line + b"\n" for line in batch)
        if body and len(body) + len(lines) > most_bytes:
            yield bytes(body + compress.flush())
            compress, body = zlib.compressobj(1, wbits=GZIP), bytearray()
        # Flushed, so that the length of the part is known.
        body += compress.compress(lines) + compress.flush(zlib.Z_SYNC_FLUSH)
        await asyncio.sleep(0)
    yield bytes(body + compress.flush())


def batches(entries: Iterable[L], many: int, size: int) -> Iterator[list[L]]:
    """Split entries into batches, limited by number and bytes; a larger entry is alone."""
    batch, length = list[L](), 0
    for entry in entries:
        if batch and (len(batch) == many or length + len(entry) > size):
            yield batch
            batch, length = [], 0
        batch.append(entry)
        length += len(entry)
    if batch:
        yield batch


async def _lines_of(part: Message) -> AsyncGenerator[list[bytes]]:
    """Decompress the lines of a part, some at a time."""
    decompress, rest, compressed = zlib.decompressobj(GZIP), b"", part.body
    while not decompress.eof:
        try:
            text = decompress.decompress(compressed, SLICE_BYTES)
        except zlib.error as error:
            raise Undecodable(f"The snapshot cannot be decompressed: {error}.") from None
        compressed = decompress.unconsumed_tail
        if not (text or compressed or decompress.eof):
            raise Undecodable("The snapshot cannot be decompressed: it is cut off.")
        *lines, rest = (rest + text).split(b"\n")
        yield lines
        await asyncio.sleep(0)
