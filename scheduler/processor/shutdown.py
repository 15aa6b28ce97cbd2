"""Track how a processor stops; or one of its intakes alone.

1. It is stopped: it takes no more messages, and requeues waiting ones.
2. Its consumers are gone: requeued messages do not come straight back.
3. It is aborted, or its grace is over: runs are cancelled, and their messages requeued.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from scheduler.brokers.contract import Delivery, cancelled

T = TypeVar("T")


class Shutdown:
    """Track the steps of stopping. Made in the event loop of the processor.

    Attributes:
        begun: done at step 1.
        unsubscribed: done at step 2.
        aborted: done at step 3.
    """

    def __init__(self) -> None:
        new = asyncio.get_running_loop().create_future
        self.begun: asyncio.Future[None] = new()
        self.unsubscribed: asyncio.Future[None] = new()
        self.aborted: asyncio.Future[None] = new()

    def begin(self) -> None:
        """Take no more messages. May be called again."""
        _reach(self.begun)

    def unsubscribe(self) -> None:
        """Note that no consumer is left."""
        _reach(self.unsubscribed)

    def abort(self) -> None:
        """Take no more messages, and do not wait for runs. May be called again."""
        _reach(self.aborted)
        self.begin()

    async def sleep(self, seconds: float) -> None:
        """Wait for some seconds, or until step 1."""
        await asyncio.wait([self.begun], timeout=seconds)

    async def pause(self, delivery: Delivery, seconds: float) -> None:
        """Wait for some seconds, or until step 1, or until the delivery is lost."""
        ends = [delivery.lost, self.begun]
        await asyncio.wait(ends, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)

    async def unless_begun(self, awaitable: Coroutine[Any, Any, T]) -> T | None:
        """Wait for a coroutine, or until step 1; then cancel it, and return None."""
        waiting = asyncio.ensure_future(awaitable)
        await asyncio.wait([waiting, self.begun], return_when=asyncio.FIRST_COMPLETED)
        if self.begun.done():
            await cancelled(waiting)
            return None
        return waiting.result()


def _reach(step: asyncio.Future[None]) -> None:
    if not step.done():
        step.set_result(None)
