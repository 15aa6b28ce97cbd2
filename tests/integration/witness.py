"""Waiting for what an app tells of itself."""

import asyncio
from collections.abc import Callable

from scheduler import Scheduler
from scheduler.events import Event


class Witness:
    """Hears the events of an app, and whatever else a test notes."""

    def __init__(self, app: Scheduler) -> None:
        self.events: list[Event] = []
        self._news = asyncio.Event()
        app.listen(self._hear)

    def _hear(self, event: Event) -> None:
        self.events.append(event)
        self._news.set()

    def count(self, kind: type[Event]) -> int:
        return sum(isinstance(event, kind) for event in self.events)

    async def heard(self, kind: type[Event], count: int) -> None:
        """Wait until there were so many events of a kind."""
        await self.until(lambda: self.count(kind) >= count)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until what was heard or noted shows something."""
        try:
            async with asyncio.timeout(40):
                while not condition():
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError as error:
            error.add_note("\n".join(map(str, self.events[-30:])))
            raise
