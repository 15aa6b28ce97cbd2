"""Do one thing for many: each of many a few at once, and what many ask for in one go."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Generic, TypeVar

AT_ONCE = 32

E = TypeVar("E")
R = TypeVar("R")


async def side_by_side(act: Callable[[E], Awaitable[R]], subjects: Collection[E]) -> list[R]:
    """Do something to each of many, a few at once; the results are in their order."""
    turn = asyncio.Semaphore(AT_ONCE)

    async def in_turn(subject: E) -> R:
        async with turn:
            return await act(subject)

    doing = [asyncio.create_task(in_turn(subject)) for subject in subjects]
    try:
        return await asyncio.gather(*doing)
    finally:
        for each in doing:
            each.cancel()
        await asyncio.gather(*doing, return_exceptions=True)


class Gathering(Generic[E, R]):
    """Serves in one go all who ask while it serves those before, as databases commit in groups.

    Args:
        serve: serves all of them; what it returns, or raises, is for each.
    """

    def __init__(self, serve: Callable[[list[E]], Awaitable[R]]) -> None:
        self._serve = serve
        self._turn = asyncio.Lock()
        self._asked: list[E] = []
        self._waiting = dict[asyncio.Task[R], int]()
        self._next: asyncio.Task[R] | None = None

    async def ask(self, subject: E) -> R:
        """Ask to be served, and wait for that."""
        if self._next is None:
            self._asked = []
            self._next = asyncio.create_task(self._serve_next(), name="gathering")
        serving = self._next
        self._asked.append(subject)
        self._waiting[serving] = self._waiting.get(serving, 0) + 1
        try:
            return await asyncio.shield(serving)
        finally:
            self._waiting[serving] -= 1
            if not self._waiting[serving]:
                del self._waiting[serving]
                serving.cancel()  # it has ended, or nobody waits for it any more
                if self._next is serving:
                    self._next = None

    async def _serve_next(self) -> R:
        async with self._turn:
            self._next, asked = None, self._asked  # who asks from here on is served next
            return await self._serve(asked)
