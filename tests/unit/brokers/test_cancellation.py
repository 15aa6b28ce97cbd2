"""The end of a task that somebody else has begun."""

import asyncio
import gc
from typing import Any

from scheduler.brokers.cancellation import cancelled


async def test_a_task_is_cancelled_to_its_end() -> None:
    ended = list[str]()

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            ended.append("yes")

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    await cancelled(task)
    assert task.cancelled()
    assert ended == ["yes"]


async def test_a_task_that_takes_it_for_an_error_to_recover_from_is_told_again() -> None:
    told = list[int]()

    async def recover() -> None:
        for number in range(2):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                told.append(number)
        await asyncio.Event().wait()

    task = asyncio.create_task(recover())
    await asyncio.sleep(0)
    await cancelled(task)
    assert task.cancelled()
    assert told == [0, 1]


async def test_the_error_in_which_a_cancelled_task_ends_is_of_no_interest() -> None:
    async def fail() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ConnectionError from None

    loop, logged = asyncio.get_running_loop(), list[dict[str, Any]]()
    loop.set_exception_handler(lambda _, context: logged.append(context))
    task = asyncio.create_task(fail())
    await asyncio.sleep(0)
    await cancelled(task)
    assert task.done()
    del task
    gc.collect()
    await asyncio.sleep(0)
    assert logged == []
