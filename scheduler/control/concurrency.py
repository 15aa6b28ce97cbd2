"""Doing something to each of many, a few at once."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import TypeVar

AT_ONCE = 16

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
