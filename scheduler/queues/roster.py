"""The roster: which loops there are, as a stream of those that came and went.

It is what makes keyed loops known to all processors, and what shows the loops that the code no
longer has. An entry is a JSON object: ``did`` ("added" or "removed"), ``task``, ``key``, ``at_ms``,
and, where a loop was added, its ``schedule`` and ``args``.
"""

import json
import logging
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from scheduler.brokers.contract import Broker, Consumer
from scheduler.errors import MessageError, ScheduleError
from scheduler.protocol.messages import Message, parsed_json, validated
from scheduler.protocol.tokens import LoopId
from scheduler.protocol.topology import Names
from scheduler.timing.clock import Clock
from scheduler.timing.moments import LATEST_MS, milliseconds_since_epoch
from scheduler.timing.schedules import Schedule, from_wire, to_wire

ENTRY_TYPE = "scheduler.roster"


@dataclass(frozen=True, slots=True)
class Listed:
    """A loop, as it was added."""

    loop: LoopId
    schedule: Schedule
    args: Mapping[str, Any]


class Roster:
    """The roster of a namespace."""

    def __init__(self, broker: Broker, names: Names, clock: Clock) -> None:
        self._broker = broker
        self._names = names
        self._clock = clock

    async def add(self, listed: Listed) -> None:
        """Have a loop known, confirmed."""
        await self._append(
            listed.loop,
            {"did": "added", "schedule": to_wire(listed.schedule), "args": dict(listed.args)},
        )

    async def remove(self, loop: LoopId) -> None:
        """Have a loop forgotten, confirmed."""
        await self._append(loop, {"did": "removed"})

    async def read(self) -> dict[LoopId, Listed]:
        """The loops that there are now, in the order in which they came.

        Raises:
            QueueNotFound: there is no roster: nothing was seeded.
        """
        listed = dict[LoopId, Listed]()
        async with aclosing(self._broker.read(self._names.roster)) as messages:
            async for message in messages:
                _enter(message, listed)
        return listed

    async def follow(self, listed: dict[LoopId, Listed]) -> Consumer:
        """Keep a dictionary up to date, until the consumer is cancelled."""
        return await self._broker.follow(
            self._names.roster, lambda message: _enter(message, listed), since="first"
        )

    async def _append(self, loop: LoopId, entry: dict[str, Any]) -> None:
        at_ms = milliseconds_since_epoch(self._clock.now())
        body = json.dumps({"task": loop.task, "key": loop.key, "at_ms": at_ms, **entry})
        await self._broker.publish(
            Message(body.encode(), content_type="application/json", type=ENTRY_TYPE),
            exchange=self._names.control,
            routing_key=self._names.roster,
        )


def _enter(message: Message, listed: dict[LoopId, Listed]) -> None:
    try:
        entry = validated(_Entry, parsed_json(message.body), "roster entry")
        loop = LoopId(entry.task, entry.key)
        if entry.did == "added":
            listed[loop] = Listed(loop, from_wire(entry.schedule), entry.args)
        else:
            listed.pop(loop, None)
    except (MessageError, ScheduleError) as error:
        logging.getLogger(__name__).warning("An entry of the roster is left out: %s", error)


class _Entry(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    did: Literal["added", "removed"]
    task: str = Field(min_length=1)
    key: str = ""
    at_ms: int = Field(ge=0, le=LATEST_MS)
    schedule: dict[str, Any] = {}
    args: dict[str, Any] = {}
