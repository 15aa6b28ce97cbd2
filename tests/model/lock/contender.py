"""What a contender for the lock does next: the project's own code is given a broker's answers.

How long and how often it asks for a queue is left out; what it makes of the answers is not.
Where it stands is told by what it has been answered since it began, and it is brought there again
by giving it all these answers.
"""

import asyncio
from asyncio import Future
from contextlib import suppress
from datetime import timedelta
from enum import Enum
from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple

from scheduler.brokers.amqp.mutex import Holder, Mutexes
from scheduler.brokers.amqp.session import Session
from scheduler.errors import BrokerUnavailable, Locked
from scheduler.protocol.topology import next_to

LOCK = "lock"
NEXT = next_to(LOCK)


class Wish(Enum):
    """What a contender waits for."""

    HAVE = "tries to have"
    LOOK = "looks once more whether it is kept:"
    FREE = "frees"
    LEAVE = "has the lock"


class Request(NamedTuple):
    """What a contender does, and with which queue."""

    wish: Wish
    queue: str


class Lost(NamedTuple):
    """The connection, and all that it had; it has another one."""


class Anew(Exception):
    """It asks for all once more, as if it just came."""


History = tuple[tuple[Request | Lost, Any], ...]


class Contender(Mutexes):
    """Whoever wants the lock, on a broker whose answers are given."""

    def __init__(self) -> None:
        connection: Any = SimpleNamespace(connected=True, address="a broker", ready=self.ready)
        publisher: Any = None
        super().__init__(connection, publisher)
        self.requests: dict[Request, Future[Any]] = {}
        self.session = 0

    async def ready(self) -> int:
        return self.session

    async def _holder_of(
        self, name: str, session: Session, deadline: float, last_pause: timedelta
    ) -> Holder:
        return await self.answered(Request(Wish.HAVE, name))

    async def _begin_anew(self, name: str) -> None:
        raise Anew

    async def _is_kept(self, name: str) -> bool:
        return await self.answered(Request(Wish.LOOK, name))

    async def _free(self, name: str) -> None:
        await self.answered(Request(Wish.FREE, name))

    async def contend(self) -> None:
        with suppress(Anew, BrokerUnavailable, Locked):
            async with self.holding(LOCK, timedelta(hours=1)):
                await self.answered(Request(Wish.LEAVE, LOCK))

    async def answered(self, request: Request) -> Any:
        self.requests[request] = asyncio.get_running_loop().create_future()
        return await self.requests[request]

    def take(self, request: Request | Lost, answer: Any) -> None:
        if isinstance(request, Lost):
            self.session += 1
        else:
            self.requests.pop(request).set_result(answer)

    def leave(self) -> None:
        """Have the way to its end, whatever is answered."""
        while self.requests:
            request, future = self.requests.popitem()
            future.set_result(Holder.ANOTHER if request.wish is Wish.HAVE else None)


@cache
def requests_after(history: History) -> tuple[Request, ...]:
    """What a contender waits for, after these answers; nothing: it is done."""
    return asyncio.run(_requests_after(history))


async def _requests_after(history: History) -> tuple[Request, ...]:
    contender = Contender()
    contending = asyncio.create_task(contender.contend())
    await _until_it_waits()
    for request, answer in history:
        contender.take(request, answer)
        await _until_it_waits()
    requests = tuple(contender.requests)
    while not contending.done():  # it frees in the end whatever it may have
        contender.leave()
        await _until_it_waits()
        if not contender.requests:
            contending.cancel()
    return requests


async def _until_it_waits() -> None:
    for _ in range(10):
        await asyncio.sleep(0)
