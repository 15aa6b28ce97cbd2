"""Snapshots: what the roster has told so far, in one message of a stream of their own.

A snapshot names the entry of the roster that it goes up to. Who reads the last one goes on from
that entry, and knows by it that this is the roster of which it tells: where another one is in its
place, the roster was made anew, or has forgotten it, and is read from its first entry on. So no
snapshot is wrong, and an older one only means that there is more to read.

Its body is JSON, compressed: ``offset`` and ``digest`` of that entry, and the ``entries``.
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
from scheduler.protocol.messages import Message, parsed_json, validated
from scheduler.protocol.topology import Names

SNAPSHOT_TYPE = "scheduler.snapshot"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a stream has told.

    Attributes:
        offset: of the last of its messages.
        digest: of that message's body.
        entries: what they told, as the stream has it.
    """

    offset: int
    digest: str
    entries: Sequence[Any]

    @classmethod
    def up_to(cls, last: Message, entries: Sequence[Any]) -> "Snapshot":
        """A snapshot of what was read up to a message."""
        assert last.offset is not None
        return cls(last.offset, _digest(last), entries)

    def is_up_to(self, message: Message | None) -> bool:
        """Whether this is the message that it goes up to."""
        return message is not None and self.digest == _digest(message)


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
        "offset": snapshot.offset,
        "digest": snapshot.digest,
        "entries": list(snapshot.entries),
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
    wire = validated(_Snapshot, parsed_json(body), "snapshot")
    return Snapshot(wire.offset, wire.digest, wire.entries)


class _Snapshot(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    offset: int = Field(ge=0)
    digest: str
    entries: list[Any]
