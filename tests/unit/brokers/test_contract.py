"""The end of a task that asks a broker and that somebody else has begun."""

import asyncio
import gc
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from scheduler.brokers.contract import cancelled


async def wait_for_ever() -> None:
    await asyncio.Event().wait()


async def recover() -> None:
    """Take it for an error to recover from, twice."""
    for _ in range(2):
        with suppress(asyncio.CancelledError):
            await wait_for_ever()
    await wait_for_ever()


async def clean_up() -> None:
    try:
        await wait_for_ever()
    finally:
        await asyncio.sleep(0.01)


async def fail() -> None:
    try:
        await wait_for_ever()
    except asyncio.CancelledError:
        raise ConnectionError from None


@pytest.mark.parametrize("work", [recover, clean_up, fail])
async def test_cancelling_waits_for_a_task_and_ignores_its_error(
    work: Callable[[], Any],
) -> None:
    loop, logged = asyncio.get_running_loop(), list[dict[str, Any]]()
    loop.set_exception_handler(lambda _, context: logged.append(context))
    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    await cancelled(task)
    assert task.cancelled() is (work is not fail)
    del task
    gc.collect()
    await asyncio.sleep(0)
    assert logged == []
