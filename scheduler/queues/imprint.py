"""What was seeded last: of which app it is, and what its queues were declared with.

A broker tells nobody the arguments of a queue, and whoever may not declare cannot compare them. So
whoever seeds leaves a message, the last of which stays: a JSON object with these members.

===================  =================================================================
version              1, the version of this format
app                  the module that the app was made in
queues               the arguments of each queue that code or settings may change
===================  =================================================================
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from scheduler.brokers.contract import Broker
from scheduler.errors import QueueNotFound, Undecodable
from scheduler.protocol.messages import (
    FORMAT_VERSION,
    Message,
    compact_json,
    parsed,
)
from scheduler.protocol.topology import Names
from scheduler.queues.heads import LOOK_PAUSE

IMPRINT_TYPE = "scheduler.imprint"
LOOKS = 50  # of many who start at once, one has it in hand for a moment


class Imprint(BaseModel):
    """What was seeded.

    Attributes:
        app: the module that the app was made in.
        queues: the arguments of each.
    """

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    version: int = Field(default=FORMAT_VERSION, ge=1, le=1)
    app: str
    queues: Mapping[str, Mapping[str, Any]]


class Imprints:
    """The imprint of a namespace."""

    def __init__(self, broker: Broker, names: Names) -> None:
        self._broker = broker
        self._names = names

    async def read(self) -> Imprint | None:
        """What was seeded last; None: nothing, or nobody can tell."""
        queue = self._names.imprint
        for _ in range(LOOKS):
            try:
                delivery = await self._broker.get(queue)
            except QueueNotFound:
                return None
            if delivery is not None:
                await delivery.requeue()
                return _read(delivery.message)
            await asyncio.sleep(LOOK_PAUSE)
        return None

    async def leave(self, imprint: Imprint) -> None:
        """Have this one take the place of the one before, confirmed."""
        body = compact_json(imprint.model_dump(mode="json"))
        message = Message(body, content_type="application/json", type=IMPRINT_TYPE)
        queue = self._names.imprint
        await self._broker.publish(message, exchange=self._names.control, routing_key=queue)


def _read(message: Message) -> Imprint | None:
    try:
        return parsed(Imprint, message.body, "imprint")
    except Undecodable:  # of another version, say: the next seed leaves another one
        return None
