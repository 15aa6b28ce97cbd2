"""Snapshots: what the roster has told so far, in one message of a stream of their own.

A snapshot names the entry of the roster that it goes up to. Who reads the last one goes on from
that entry, and knows by it that this is the roster of which it tells: where another one is in its
place, the roster was made anew, or has forgotten it, and is read from its first entry on. So no
snapshot is wrong, and an older one only means that there is more to read.

Its body is JSON, compressed: ``offset`` and ``digest`` of that entry, the ``entries``, and
``forgotten``, the greatest epoch of those that are left out, as their loops are gone for long.
"""

import gzip
import hashlib
import json
import logging
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from scheduler.brokers.contract import Broker
from scheduler.errors import NoReplica, QueueNotFound, Undecodable, Unroutable
from scheduler.protocol.messages import Message, parsed
from scheduler.protocol.topology import Names

SNAPSHOT_TYPE = "scheduler.snapshot"


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
        """The bookmark at a message of a stream."""
        assert last.offset is not None
        return cls(last.offset, _digest(last))

    def is_at(self, message: Message | None) -> bool:
        """Whether this is the message that it is at."""
        return message is not None and self.digest == _digest(message)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a stream has told, up to a message of it; entries are as the stream has them."""

    up_to: Bookmark
    entries: Sequence[Any]
    forgotten: int = 0


class Snapshots:
    """The snapshots of a roster."""

    def __init__(self, broker: Broker, names: Names) -> None:
        self._broker = broker
        self._names = names

    async def latest(self) -> Snapshot | None:
        """The last one, or one before it; None: there is none that can be read."""
        try:
            message = await self._broker.last(self._names.snapshots)
            return None if message is None else _snapshot_of(message)
        except (QueueNotFound, NoReplica):
            return None
        except Undecodable as error:
            self._warn("read", error)
            return None

    async def append(self, snapshot: Snapshot) -> None:
        """Have it read by whoever comes next, if there is a place for it."""
        try:
            await self._broker.publish(
                _message_of(snapshot),
                exchange=self._names.control,
                routing_key=self._names.snapshots,
            )
        except Unroutable as error:
            self._warn("written", error)

    def _warn(self, what: str, error: Exception) -> None:
        logging.getLogger(__name__).warning(
            "No snapshot of the roster can be %s, so that it takes long to read: %s", what, error
        )


def _digest(message: Message) -> str:
    return hashlib.sha256(message.body).hexdigest()


def _message_of(snapshot: Snapshot) -> Message:
    wire = {
        "offset": snapshot.up_to.offset,
        "digest": snapshot.up_to.digest,
        "entries": list(snapshot.entries),
        "forgotten": snapshot.forgotten,
    }
    return Message(
        gzip.compress(json.dumps(wire).encode(), compresslevel=1),
        content_type="application/json",
        content_encoding="gzip",
        type=SNAPSHOT_TYPE,
    )


def _snapshot_of(message: Message) -> Snapshot:
    try:
        body = gzip.decompress(message.body)
    except (OSError, EOFError, zlib.error) as error:
        raise Undecodable(f"The snapshot cannot be decompressed: {error}.") from None
    wire = parsed(_Snapshot, body, "snapshot")
    return Snapshot(Bookmark(wire.offset, wire.digest), wire.entries, wire.forgotten)


class _Snapshot(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    offset: int = Field(ge=0)
    digest: str
    entries: list[Any]
    forgotten: int = Field(default=0, ge=0)
