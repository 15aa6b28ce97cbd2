"""Checkpoints: how far loops had come that wait for long, so that the journal is not read for it.

Supervision looks into the slots anyway. It notes in the roster, with the entry of a loop's epoch,
the token that it finds there. What comes after a token is not put before it is due, unless a later
epoch begins: so the journal is read from then on, and not from when the token was put.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from scheduler.protocol.messages import Message
from scheduler.protocol.tokens import TOKEN_TYPE, State, Token, decode, encode
from scheduler.timing.moments import LATEST_MS, milliseconds_since_epoch, moment_of

LONG = timedelta(minutes=1)
MOST_BYTES = 4_000  # the roster and its snapshots hold one of each loop


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A token that waited in its slot, as its message had it.

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

    def ended(self, at: datetime) -> "Checkpoint":
        """The same, now that a later epoch has begun."""
        return replace(self, until=min(self.until, at))


def checkpoint_of(token: Token, namespace: str, now: datetime) -> Checkpoint | None:
    """What to note of a token that waits in its slot; None: nothing, as it is soon due."""
    if token.state is State.DONE or token.first:
        return None
    paused = token.state is State.PAUSED
    if not (paused or token.due_at - now >= LONG):
        return None
    message = encode(token, namespace, expiration=None)
    if len(message.body) > MOST_BYTES:
        return None
    until = moment_of(LATEST_MS) if paused else token.due_at
    return Checkpoint(message.headers, message.body.decode(), until)


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
