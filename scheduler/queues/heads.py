"""What is known of the message at the head of an ordered task's queue.

It stays there until it is done with, through all its retries, so that those behind it wait; nobody
has it in hand meanwhile. A message cannot be changed in its place, so what has become of it so far
is noted beside it, in a queue of one message: the last note takes the place of the one before.
Of a message that is done with, a note of nothing does: where none is found, somebody reads it.

==============================  ==============================================================
header                          holds
==============================  ==============================================================
scheduler-head-of               a hash of the message that is meant
scheduler-attempt               how many attempts have failed
scheduler-begun                 how many runs of this attempt have begun
scheduler-due-at-ms             when the next attempt may begin; none: at once
scheduler-first-failed-at-ms    when the first attempt failed; none: none has
==============================  ==============================================================
"""

import asyncio
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import blake2b

from pydantic import BaseModel, ConfigDict, Field

from scheduler.brokers.contract import DEFAULT_TIMEOUT, Broker
from scheduler.errors import QueueNotFound, Undecodable
from scheduler.protocol.messages import (
    MOST_COUNTED,
    PREFIX,
    Message,
    our_headers,
    own_headers,
    validated,
)
from scheduler.protocol.topology import Names
from scheduler.timing.moments import LATEST_MS, milliseconds_since_epoch, optional_moment

NOTE_TYPE = "scheduler.head"
# What another reader holds is back within moments.
LOOKS = 10
LOOK_PAUSE = 0.02


@dataclass(frozen=True, slots=True)
class Head:
    """How far a message at the head of its queue has come.

    Attributes:
        begun: how many runs of this attempt have begun; none of them has ended.
        due_at: when the next one may begin; None: at once.
    """

    attempt: int = 0
    begun: int = 0
    due_at: datetime | None = None
    first_failed_at: datetime | None = None


NOTHING_NOTED = Message(headers={f"{PREFIX}head-of": ""}, type=NOTE_TYPE)
# Somebody had it before, and left no note: at most one run of it has begun.
UNNOTED = Head(begun=1)


class Heads:
    """The notes on the messages at the heads of a namespace's ordered queues."""

    def __init__(self, broker: Broker, names: Names) -> None:
        self._broker = broker
        self._names = names

    async def note(
        self, task: str, message: Message, head: Head, timeout: timedelta | None
    ) -> None:
        """Note, confirmed, how far a message has come.

        Raises:
            BrokerError: it may not have been noted.
        """
        await self._write(task, _written(message, head), timeout)

    async def of(self, task: str, message: Message) -> Head:
        """How far a message that somebody had before has come."""
        queue = self._names.head(task)
        for _ in range(LOOKS):
            try:
                delivery = await self._broker.get(queue)
            except QueueNotFound:  # this version has not been seeded yet
                return UNNOTED
            if delivery is not None:
                await delivery.requeue()
                await self._until_back(queue)
                return _read(delivery.message, message)
            # Who had the message may have died while it read the note, which comes back as well.
            await asyncio.sleep(LOOK_PAUSE)
        await self.forget(task)  # there is none yet; from now on nobody has to wait for it
        return UNNOTED

    async def forget(self, task: str) -> None:
        """Have another message like it, to the byte, begin anew.

        A note of nothing takes its place: where none is ready, somebody has it in hand.
        """
        await self._write(task, NOTHING_NOTED, DEFAULT_TIMEOUT)

    async def _write(self, task: str, note: Message, timeout: timedelta | None) -> None:
        queue, exchange = self._names.head(task), self._names.control
        await self._broker.publish(note, exchange=exchange, routing_key=queue, timeout=timeout)

    async def _until_back(self, queue: str) -> None:
        """A broker confirms no requeue, and the message may be given on to who reads the note."""
        for _ in range(LOOKS):
            depth = await self._broker.depth(queue)
            if depth is None or depth.ready:
                return
            await asyncio.sleep(LOOK_PAUSE)


def _written(message: Message, head: Head) -> Message:
    moments = {"due-at-ms": head.due_at, "first-failed-at-ms": head.first_failed_at}
    found = {
        "head-of": _hash_of(message),
        "attempt": head.attempt,
        "begun": head.begun,
        **{name: milliseconds_since_epoch(at) for name, at in moments.items() if at is not None},
    }
    return Message(headers={PREFIX + name: value for name, value in found.items()}, type=NOTE_TYPE)


def _read(note: Message, message: Message) -> Head:
    try:
        wire = validated(_Wire, our_headers(note), "headers")
    except Undecodable:
        return UNNOTED
    if wire.head_of != _hash_of(message):
        return UNNOTED
    first_failed_at = optional_moment(wire.first_failed_at_ms)
    return Head(wire.attempt, wire.begun, optional_moment(wire.due_at_ms), first_failed_at)


def _hash_of(message: Message) -> str:
    headers = sorted(own_headers(message.headers).items())
    named = (message.message_id, message.correlation_id, message.type, message.timestamp, headers)
    return blake2b(repr(named).encode() + message.body, digest_size=16).hexdigest()


_Count = Field(default=0, ge=0, le=MOST_COUNTED)
_Ms = Field(default=None, ge=0, le=LATEST_MS)


class _Wire(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")

    head_of: str
    attempt: int = _Count
    begun: int = _Count
    due_at_ms: int | None = _Ms
    first_failed_at_ms: int | None = _Ms
