"""Group commit: start or stop in one batch the loops that callers ask for at the same time.

Each start or stop appends to the roster and reads it back. Callers that come while this program is
at it are served together by the next batch: by one append and one reading.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from scheduler.control.reports import Report
from scheduler.errors import BrokerUnavailable
from scheduler.protocol.tokens import LoopId
from scheduler.tasks.loops import Loop


@dataclass(eq=False, slots=True)
class Wish:
    """Something to be done about a loop.

    Attributes:
        outcome: of it, when it is done.
        alone: done with others, it failed: perhaps because of one of these.
    """

    loop: Loop
    outcome: Report | Exception | None = None
    alone: bool = False


class Together:
    """Does the same for many loops.

    Args:
        act: does it for some of them, no two of which are the same.
        most: how many these are at most; the others wait for the next batch.
    """

    def __init__(
        self, act: Callable[[Sequence[Loop]], Awaitable[Sequence[Report]]], *, most: int
    ) -> None:
        self._act = act
        self._most = most
        self._turn = asyncio.Lock()
        self._wishes: list[Wish] = []

    async def do(self, loop: Loop) -> Report:
        """Do it for this loop, with those of all others who wait for it."""
        self._wishes.append(mine := Wish(loop))
        try:
            async with self._turn:
                await asyncio.sleep(0)  # until those are here who ask in the same moment
                while mine.outcome is None:
                    await self._grant([mine] if mine.alone else list(self._next()))
        finally:
            if mine in self._wishes:
                self._wishes.remove(mine)
        if isinstance(mine.outcome, Exception):
            raise mine.outcome
        return mine.outcome

    def _next(self) -> Iterator[Wish]:
        """Those who have waited longest. Of several for one loop, each has its own turn."""
        there = set[LoopId]()
        for wish in self._wishes:
            if not wish.alone and wish.loop.id not in there and len(there) < self._most:
                there.add(wish.loop.id)
                yield wish

    async def _grant(self, wishes: Sequence[Wish]) -> None:
        try:
            reports = await self._act([wish.loop for wish in wishes])
        except BrokerUnavailable as error:
            self._fulfil((wish, error) for wish in wishes)
        except Exception as error:
            if len(wishes) == 1:
                self._fulfil([(wishes[0], error)])
            for wish in wishes:
                wish.alone = True
        else:
            self._fulfil(zip(wishes, reports, strict=True))

    def _fulfil(self, outcomes: Iterable[tuple[Wish, Report | Exception]]) -> None:
        for wish, wish.outcome in outcomes:
            if wish in self._wishes:
                self._wishes.remove(wish)
