"""Remove named one-offs from the roster as soon as their run is settled, many in one batch."""

import asyncio
import logging
from collections.abc import Collection

from scheduler.brokers.cancellation import cancelled
from scheduler.control.one_offs import is_over
from scheduler.control.removal import Removal
from scheduler.errors import BrokerError
from scheduler.events import Event, RunFinished, RunSettled, SupervisionDelayed
from scheduler.protocol.tokens import LoopId, State, Token
from scheduler.queues.listing import Listed, Listing
from scheduler.tasks.loops import Loop, absent
from scheduler.tasks.registry import App
from scheduler.timing.clock import Clock

GATHERED_S = 0.25  # so many go into one batch


class Endings:
    """Removes what this processor has run for the only time; supervision does the rest.

    Args:
        listing: the roster, as it is followed.
    """

    def __init__(self, app: App, listing: Listing, removal: Removal, clock: Clock) -> None:
        self._app = app
        self._listing = listing
        self._removal = removal
        self._clock = clock
        self._ending: dict[LoopId, Token] = {}
        self._done: list[tuple[LoopId, int]] = []
        self._news = asyncio.Event()
        self._removing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Endings":
        self._removing = asyncio.create_task(self._remove(), name="endings")
        return self

    async def __aexit__(self, *exception: object) -> None:
        assert self._removing is not None
        await cancelled(self._removing)

    def hear(self, event: Event) -> None:
        """Learn of runs that were settled; to be called with each event."""
        if isinstance(event, RunFinished):
            if event.successor is not None and event.successor.state is State.DONE:
                self._ending[event.loop] = event.successor
        elif isinstance(event, RunSettled) and event.loop in self._ending:
            token = self._ending.pop(event.loop)
            if is_over(token.schedule, self._clock.now()):
                self._done.append((token.loop, token.epoch))
                self._news.set()

    async def finish(self, done: Collection[tuple[LoopId, int]]) -> None:
        """Remove one-offs that have run, each in an epoch.

        Raises:
            BrokerError: some may be left.
        """
        await self._removal.finish(
            [
                (self._loop_of(listed), epoch)
                for loop, epoch in done
                if (listed := self._listing.get(loop)) is not None
            ]
        )

    async def _remove(self) -> None:
        while True:
            await self._news.wait()
            await asyncio.sleep(GATHERED_S)
            self._news.clear()
            done, self._done = self._done, []
            try:
                await self.finish(done)
            except BrokerError as error:  # supervision does it
                self._app.events.emit(SupervisionDelayed(str(error)))
            except Exception:
                logging.getLogger(__name__).exception("Removing what is done failed")

    def _loop_of(self, listed: Listed) -> Loop:
        task = self._app.tasks.get(listed.loop.task) or absent(listed.loop.task)
        return Loop(listed.loop, task, listed.schedule, listed.args)
