"""Store the progress of the message at the head of an ordered task's queue.

It stays there, unacked by any processor, until it is done, through all its retries, so that those
behind it wait. A message cannot be changed in its place, so its progress is noted in a queue of one
message: each note replaces the one before. A finished message is marked with an empty note; an
empty queue means another reader holds the note.

==============================  ==============================================================
header                          holds
==============================  ==============================================================
scheduler-head-of               a hash of the message
scheduler-attempt               how many attempts have failed
scheduler-begun                 how many runs of this attempt began, except interrupted ones
scheduler-due-at-ms             when the next attempt may begin; none: at once
scheduler-first-failed-at-ms    when the first attempt failed; none: none has
==============================  ==============================================================
"""

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from hashlib import blake2b
from typing import Any, ClassVar

from pydantic import ConfigDict, TypeAdapter

from scheduler.brokers.contract import DEFAULT_TIMEOUT, Broker
from scheduler.errors import QueueNotFound, Undecodable
from scheduler.protocol.messages import (
    PREFIX,
    WIRE,
    Count,
    Message,
    Moment,
    our_headers,
    own_headers,
    validated,
)
from scheduler.protocol.topology import Names

NOTE_TYPE = "scheduler.head"
# A message that another reader holds is back within moments.
LOOKS = 10
LOOK_PAUSE = 0.02


@dataclass(frozen=True, slots=True)
class Head:
    """Describe the progress of a message at the head of its queue.

    Attributes:
        begun: how many runs of this attempt have begun; none of them has ended, or was interrupted
            by a processor that stopped.
        due_at: when the next one may begin; None: at once.
    """

    __pydantic_config__: ClassVar[ConfigDict] = WIRE

    attempt: Count = 0
    begun: Count = 0
    due_at: Moment | None = None
    first_failed_at: Moment | None = None


_HEAD = TypeAdapter(Head)
NOTHING_NOTED = Message(headers={f"{PREFIX}head-of": ""}, type=NOTE_TYPE)
# Redelivered without a note: at most one run of it has begun.
UNNOTED = Head(begun=1)


class Heads:
    """Read and write the notes on the heads of a namespace's ordered queues."""

    def __init__(self, broker: Broker, names: Names) -> None:
        self._broker = broker
        self._names = names

    async def note(
        self, task: str, message: Message, head: Head, timeout: timedelta | None
    ) -> None:
        """Note the progress of a message, confirmed.

        Raises:
            BrokerError: it may not have been noted.
        """
        await self._write(task, _written(message, head), timeout)

    async def of(self, task: str, message: Message) -> Head:
        """Return the progress of a redelivered message."""
        queue = self._names.head(task)
        try:
            note = await look_into(self._broker, queue, LOOKS)
        except QueueNotFound:  # this version has not been seeded yet
            return UNNOTED
        if note is None:
            await self.forget(task)  # there is none yet; from now on readers need not wait for it
            return UNNOTED
        await self._until_back(queue)
        return _read(note, message)

    async def forget(self, task: str, timeout: timedelta | None = DEFAULT_TIMEOUT) -> None:
        """Forget the progress, so that an identical message starts from scratch.

        An empty note replaces it: if none is ready, another reader holds it.
        """
        await self._write(task, NOTHING_NOTED, timeout)

    async def _write(self, task: str, note: Message, timeout: timedelta | None) -> None:
        queue, exchange = self._names.head(task), self._names.control
        await self._broker.publish(note, exchange=exchange, routing_key=queue, timeout=timeout)

    async def _until_back(self, queue: str) -> None:
        """Wait until a note is requeued: a broker confirms no requeue, and the next reader needs
        it.
        """
        for _ in range(LOOKS):
            depth = await self._broker.depth(queue)
            if depth is None or depth.ready:
                return
            await asyncio.sleep(LOOK_PAUSE)


async def look_into(broker: Broker, queue: str, looks: int) -> Message | None:
    """Return the message of a queue of one, and requeue it; None: it has none.

    Raises:
        QueueNotFound: there is no such queue.
    """
    for _ in range(looks):
        if (delivery := await broker.get(queue)) is not None:
            await delivery.requeue()
            return delivery.message
        # Another reader holds it, or has died while holding it: it comes back.
        await asyncio.sleep(LOOK_PAUSE)
    return None


def _written(message: Message, head: Head) -> Message:
    members: dict[str, Any] = {"head_of": _hash_of(message)}
    members |= _HEAD.dump_python(head, by_alias=True, exclude_none=True)
    headers = {PREFIX + name.replace("_", "-"): value for name, value in members.items()}
    return Message(headers=headers, type=NOTE_TYPE)


def _read(note: Message, message: Message) -> Head:
    members = our_headers(note)
    if members.get("head_of") != _hash_of(message):
        return UNNOTED
    try:
        return validated(_HEAD, members, "headers")
    except Undecodable:
        return UNNOTED


def _hash_of(message: Message) -> str:
    headers = sorted(own_headers(message.headers).items())
    named = (message.message_id, message.correlation_id, message.type, message.timestamp, headers)
    return blake2b(repr(named).encode() + message.body, digest_size=16).hexdigest()
