"""Doing something to each of many, a few at once; or two things."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine
from typing import Any, TypeVar

AT_ONCE = 32

E = TypeVar("E")
R = TypeVar("R")
S = TypeVar("S")


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
        await _ended(doing)


async def both(one: Coroutine[Any, Any, R], other: Coroutine[Any, Any, S]) -> tuple[R, S]:
    """Do two things at once; if one fails, the other is not done to its end."""
    doing = first, second = asyncio.create_task(one), asyncio.create_task(other)
    try:
        await asyncio.gather(first, second)
        return first.result(), second.result()
    finally:
        await _ended(doing)


async def _ended(doing: Collection[asyncio.Task[Any]]) -> None:
    for each in doing:
        each.cancel()
    await asyncio.gather(*doing, return_exceptions=True)
