"""Snapshots: what the roster has told so far, in messages of a stream of their own.

A snapshot names the entry of the roster that it goes up to. Who reads the last one goes on from
that entry, and knows by it that this is the roster of which it tells: where it is not there, the
roster was recreated, or has forgotten it, and is read from its first entry. So no snapshot is
wrong, and an older one only means that there is more to read.

No message holds all loops: a snapshot is split into parts, and counts if all of them are there.
The parts are far below RabbitMQ's max_message_size; a broker that accepts less gets smaller ones.
A part's body is a JSON object a line, one for each entry, compressed. Its headers say the rest:

============================  ============================================================
``snapshot``                  the ID that the parts of one snapshot share
``part``, ``parts``           which of them it is, from 0 on, and how many there are
``offset``, ``digest``        of the message of the roster up to which it tells all
``forgotten``                 the greatest epoch of the loops that are left out, as they are
                              gone for long
============================  ============================================================
"""

import asyncio
import hashlib
import logging
import uuid
import zlib
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, TypeVar

from pydantic import Field, TypeAdapter

from scheduler.brokers.contract import Broker
from scheduler.errors import (
    BrokerError,
    MessageError,
    NoReplica,
    QueueNotFound,
    TooLarge,
    Undecodable,
)
from scheduler.protocol.messages import Count, Message, validated
from scheduler.protocol.topology import Names

SNAPSHOT_TYPE = "scheduler.snapshot"
MOST_BYTES = 1_000_000  # of a part, compressed; only one large entry alone may have more
SLICE = 200  # so many entries are encoded or decoded before others have their turn,
SLICE_BYTES = 100_000  # or so many bytes
GZIP = zlib.MAX_WBITS | 16
L = TypeVar("L", bytes, str)


@dataclass(frozen=True, slots=True)
class Bookmark:
    """How far a stream was read.

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
        """Return whether this is the message that it is at."""
        return message.offset == self.offset and Bookmark.at(message) == self


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a stream has told, up to a message of it: an encoded entry of each loop."""

    up_to: Bookmark
    entries: Iterable[bytes]
    forgotten: int = 0


@dataclass(frozen=True, slots=True)
class _About:
    snapshot: str
    part: Count
    parts: Annotated[int, Field(strict=True, ge=1)]
    offset: Count
    digest: str
    forgotten: Count = 0


_ABOUT = TypeAdapter(_About)


def _about(part: Message) -> _About:
    return validated(_ABOUT, part.headers, "snapshot")


class Snapshots:
    """The snapshots of a roster."""

    def __init__(self, broker: Broker, names: Names) -> None:
        self._broker = broker
        self._names = names

    async def latest(self) -> Snapshot | None:
        """Return the latest complete snapshot that can be read; None: there is none."""
        try:
            parts = await self._latest_parts()
            if not parts:
                return None
            entries = [entry for part in parts async for entry in _entries_of(part)]
            about = _about(parts[0])
            return Snapshot(Bookmark(about.offset, about.digest), entries, about.forgotten)
        except (QueueNotFound, NoReplica):
            return None
        except Undecodable as error:
            self._warn("read", error)
            return None

    async def append(self, snapshot: Snapshot) -> None:
        """Publish a snapshot; where that fails, warn only: it serves others than who makes it."""
        try:
            try:
                await self._publish(snapshot, MOST_BYTES)
            except TooLarge as error:
                await self._publish(snapshot, error.limit // 2)
        except (BrokerError, MessageError) as error:
            self._warn("written", error)

    async def _publish(self, snapshot: Snapshot, most_bytes: int) -> None:
        for part in await _parts_of(snapshot, most_bytes):
            await self._broker.publish(
                part, exchange=self._names.control, routing_key=self._names.snapshots
            )

    async def _latest_parts(self) -> list[Message]:
        last = await self._broker.last(self._names.snapshots)
        if last is None:
            return []
        about = _about(last)
        if about.parts == 1:
            return [last]
        assert last.offset is not None
        # They were published one after the other, most likely with no others between them.
        since = max(last.offset - about.part, 0)
        return await self._complete(since) or await self._complete(None)

    async def _complete(self, since: int | None) -> list[Message]:
        """Return the parts of the last complete snapshot that is found from an offset on."""
        found, complete = dict[str, dict[int, Message]](), list[Message]()
        async with aclosing(self._broker.read(self._names.snapshots, since=since)) as messages:
            async for message in messages:
                about = _about(message)
                parts = found.setdefault(about.snapshot, {})
                parts[about.part] = message
                if len(parts) == about.parts:
                    complete = [parts[part] for part in sorted(parts)]
                    del found[about.snapshot]
        return complete

    def _warn(self, what: str, error: Exception) -> None:
        logging.getLogger(__name__).warning(
            "No snapshot of the roster can be %s, so that it takes long to read: %s", what, error
        )


async def _parts_of(snapshot: Snapshot, most_bytes: int) -> list[Message]:
    bodies = [body async for body in _bodies_of(snapshot.entries, most_bytes)]
    about = {
        "snapshot": uuid.uuid4().hex,
        "parts": len(bodies),
        "offset": snapshot.up_to.offset,
        "digest": snapshot.up_to.digest,
        "forgotten": snapshot.forgotten,
    }
    return [
        Message(body, about | {"part": part}, content_encoding="gzip", type=SNAPSHOT_TYPE)
        for part, body in enumerate(bodies)
    ]


async def _bodies_of(entries: Iterable[bytes], most_bytes: int) -> AsyncGenerator[bytes]:
    compress, body = zlib.compressobj(1, wbits=GZIP), bytearray()
    for batch in batches(entries, SLICE, min(SLICE_BYTES, most_bytes // 2)):
        lines = b"".join(entry + b"\n" for entry in batch)
        if body and len(body) + len(lines) > most_bytes:
            yield bytes(body + compress.flush())
            compress, body = zlib.compressobj(1, wbits=GZIP), bytearray()
        # Flushed, so that it is known how long the part is.
        body += compress.compress(lines) + compress.flush(zlib.Z_SYNC_FLUSH)
        await asyncio.sleep(0)
    yield bytes(body + compress.flush())


def batches(entries: Iterable[L], many: int, size: int) -> Iterator[list[L]]:
    """Split entries into batches of so many, or of so many bytes; a larger one is alone."""
    batch, length = list[L](), 0
    for entry in entries:
        if batch and (len(batch) == many or length + len(entry) > size):
            yield batch
            batch, length = [], 0
        batch.append(entry)
        length += len(entry)
    if batch:
        yield batch


async def _entries_of(part: Message) -> AsyncGenerator[bytes]:
    decompress, rest, compressed = zlib.decompressobj(GZIP), b"", part.body
    while not decompress.eof:
        try:
            lines = decompress.decompress(compressed, SLICE_BYTES)
        except zlib.error as error:
            raise Undecodable(f"The snapshot cannot be decompressed: {error}.") from None
        compressed = decompress.unconsumed_tail
        if not (lines or compressed or decompress.eof):
            raise Undecodable("The snapshot cannot be decompressed: it is cut off.")
        *entries, rest = (rest + lines).split(b"\n")
        for entry in entries:
            yield entry
        await asyncio.sleep(0)
