"""Waiting for what an app tells of itself."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from scheduler import Scheduler
from scheduler.brokers.amqp.broker import AmqpBroker
from scheduler.events import Event
from tests.stage import at_work, processor_of, program_of


class News:
    """What a test waits for, of which it is told in its event loop.

    Args:
        log: what is shown where that does not come.
    """

    def __init__(self, log: Sequence[object]) -> None:
        self._log = log
        self._news = asyncio.Event()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until what was heard or noted shows something."""
        try:
            async with asyncio.timeout(40):
                while not condition():
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError as error:
            error.add_note("\n".join(map(str, self._log[-30:])))
            raise


class Witness(News):
    """Hears the events of an app, and whatever else a test notes."""

    def __init__(self, app: Scheduler) -> None:
        self.app = app
        self.events: list[Event] = []
        super().__init__(self.events)
        app.listen(self._hear)

    def _hear(self, event: Event) -> None:
        self.events.append(event)
        self._news.set()

    async def seed(self, url: str) -> None:
        async with AmqpBroker(url) as broker:
            await program_of(self.app, broker).seeding.seed()

    @asynccontextmanager
    async def at_work(self, url: str, **options: Any) -> AsyncGenerator[AmqpBroker]:
        """A processor of the app in this process, and its connection."""
        async with (
            AmqpBroker(url, emit=self.app.events.emit) as broker,
            at_work(processor_of(self.app, broker, **options)),
        ):
            yield broker

    def count(self, kind: type[Event]) -> int:
        return sum(isinstance(event, kind) for event in self.events)

    async def heard(self, kind: type[Event], count: int) -> None:
        """Wait until there were so many events of a kind."""
        await self.until(lambda: self.count(kind) >= count)
