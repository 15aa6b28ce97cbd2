"""Checkpoints: how far loops had come that wait for long, so that the journal is not read for it.

The roster holds, with the entry of a loop's epoch, the token that waits: supervision notes it, or
the processor that settled the run before, or the creator of the epoch. What comes after a token is
not put before it is due, unless a later epoch begins: so the journal is read from then on, and not
from when the token was put.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from scheduler.errors import Undecodable
from scheduler.protocol.epochs import Position
from scheduler.protocol.messages import Message, parsed
from scheduler.protocol.tokens import TOKEN_TYPE, Token, decode, encode
from scheduler.timing.moments import LATEST_MS, milliseconds_since_epoch, moment_of

LONG = timedelta(minutes=1)
MOST_BYTES = 100_000  # of a body: what a token may carry, and what it says besides
NOWHERE = Position(0, -1)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """How far a loop had come: its last token, as its message had it.

    Attributes:
        until: before this, nothing that comes after it was put.
    """

    headers: Mapping[str, Any]
    body: str
    until: datetime

    def token(self, namespace: str) -> Token:
        """The token.

        Raises:
            Undecodable: it is not one of this format and namespace.
        """
        message = Message(self.body.encode(), self.headers, type=TOKEN_TYPE)
        return decode(message, namespace)

    def is_newer_than(self, other: "Checkpoint | None") -> bool:
        """Return whether its token had come further; of two as far, the later epoch's had."""
        return other is None or _rank(self.position) > _rank(other.position)

    @property
    def position(self) -> Position:
        """Return the position that its token claims; `NOWHERE` if it cannot be read."""
        try:
            claimed = parsed(_Claimed, self.body.encode(), "checkpoint")
        except Undecodable:
            return NOWHERE
        return Position(claimed.epoch, claimed.seq, claimed.attempt, not claimed.first)

    def ended(self, at: datetime) -> "Checkpoint":
        """The same, now that a later epoch has begun."""
        return replace(self, until=min(self.until, at))


def checkpoint_of(token: Token, namespace: str, until: datetime) -> Checkpoint | None:
    """Return the checkpoint of a token; None if it is not joined, or too big.

    Args:
        until: before this, nothing that comes after it is put.
    """
    if token.first:
        return None
    message = encode(token, namespace)
    if len(message.body) > MOST_BYTES:
        return None
    return Checkpoint(message.headers, message.body.decode(), until)


def _rank(position: Position) -> tuple[tuple[int, int, bool], int]:
    return position.progress, position.epoch


class _Claimed(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    epoch: int
    seq: int
    attempt: int
    first: bool = False


class WireCheckpoint(BaseModel):
    """A checkpoint, as it travels in an entry of the roster."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    headers: dict[str, Any]
    body: str
    until_ms: int = Field(ge=0, le=LATEST_MS)

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint(self.headers, self.body, moment_of(self.until_ms))


def wire_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """What an entry of the roster holds of it."""
    return {
        "headers": dict(checkpoint.headers),
        "body": checkpoint.body,
        "until_ms": milliseconds_since_epoch(checkpoint.until),
    }
