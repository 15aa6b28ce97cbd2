"""Run operations concurrently, a few at once, or group them."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sized
from typing import Generic, TypeVar

AT_ONCE = 32

E = TypeVar("E")
R = TypeVar("R")


async def side_by_side(
    act: Callable[[E], Awaitable[R]], subjects: Iterable[E], *, at_once: int = AT_ONCE
) -> list[R]:
    """Run an operation on each item, a few at once; return the results in their order.

    Each item is taken when it is its turn.
    """
    results, waiting = dict[int, R](), iter(enumerate(subjects))

    async def take_turns() -> None:
        for number, subject in waiting:
            results[number] = await act(subject)

    many = min(at_once, len(subjects)) if isinstance(subjects, Sized) else at_once
    doing = [asyncio.create_task(take_turns()) for _ in range(many)]
    try:
        await asyncio.gather(*doing)
        return [results[number] for number in range(len(results))]
    finally:
        for each in doing:
            each.cancel()
        await asyncio.gather(*doing, return_exceptions=True)


class Gathering(Generic[E, R]):
    """Serve all callers in groups: those who ask during one round share the next, as in a group
    commit.

    Args:
        serve: serves all of them; its result or exception goes to each.
    """

    def __init__(self, serve: Callable[[list[E]], Awaitable[R]]) -> None:
        self._serve = serve
        self._turn = asyncio.Lock()
        self._asked: list[E] = []
        self._waiting = dict[asyncio.Task[R], int]()
        self._next: asyncio.Task[R] | None = None

    async def ask(self, subject: E) -> R:
        """Ask to be served, and wait for the result."""
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
                serving.cancel()  # the task has ended, or its callers have gone
                if self._next is serving:
                    self._next = None

    async def _serve_next(self) -> R:
        async with self._turn:
            self._next, asked = None, self._asked  # later callers join the next round
            return await self._serve(asked)
