"""A message on its way through the queues."""

from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from scheduler.brokers.contract import Depth
from scheduler.protocol.messages import Message
from scheduler.protocol.topology import Queue

DeathCause = Literal["expired", "maxlen", "delivery_limit"]


@dataclass(frozen=True, slots=True)
class Death:
    """Why a message left a queue other than to a consumer."""

    queue: str
    reason: DeathCause
    exchange: str
    keys: tuple[str, ...]

    def table(self) -> dict[str, Any]:
        return {
            "queue": self.queue,
            "reason": self.reason,
            "exchange": self.exchange,
            "routing-keys": list(self.keys),
            "count": 1,  # never more: who dies twice in a queue has gone in a circle
        }


@dataclass(slots=True, eq=False)
class Letter:
    """A message on its way: to where, and in which queues it has died before.

    Attributes:
        copies: further keys that it goes by.
    """

    message: Message
    exchange: str
    routing_key: str
    copies: tuple[str, ...] = ()
    deaths: tuple[Death, ...] = ()

    def died(
        self, queue: str, reason: DeathCause, exchange: str, routing_key: str | None
    ) -> "Letter":
        deaths = (Death(queue, reason, self.exchange, self.keys), *self.deaths)
        headers = {**self.message.headers, "x-death": [death.table() for death in deaths]}
        if not self.deaths:
            headers["x-first-death-queue"] = queue
            headers["x-first-death-reason"] = reason
            headers["x-first-death-exchange"] = self.exchange
        key, *copies = self.keys if routing_key is None else (routing_key,)
        message = replace(self.message, headers=headers, expiration=None)
        return Letter(message, exchange, key, tuple(copies), deaths)

    @property
    def keys(self) -> tuple[str, ...]:
        """All keys that it goes by."""
        return self.routing_key, *self.copies

    def has_died_in(self, queue: str) -> bool:
        return any(death.queue == queue for death in self.deaths)


class Place(Protocol):
    """Where a letter may go, a queue or a stream: to an exchange they are the same."""

    @property
    def spec(self) -> Queue: ...

    @property
    def name(self) -> str: ...

    def offer(self, letter: Letter) -> bool:
        """Take a letter in; False when the place is full and rejects it."""
        ...

    def depth(self) -> Depth: ...

    def close(self) -> None: ...
