"""Removing named one-offs whose run has ended.

Whoever has settled the run does it soon; what it did not come to, supervision does. It needs the
right to delete their queues: where a processor's user has not got it, that is reported.
"""

import asyncio
import logging
from collections.abc import Iterable

from scheduler.brokers.cancellation import cancelled
from scheduler.control.one_offs import is_over
from scheduler.control.removal import Removal
from scheduler.errors import AccessRefused, BrokerError
from scheduler.events import Event, RunFinished, RunSettled, SupervisionDelayed
from scheduler.protocol.tokens import LoopId, State, Token
from scheduler.queues.roster import REMEMBERED, Listing
from scheduler.tasks.loops import Loop, absent
from scheduler.tasks.registry import App
from scheduler.timing.clock import Clock

GATHERED_S = 0.25  # that many may be removed under one mutex


class Endings:
    """Removes what is done.

    Args:
        listing: the roster, as it is followed.
    """

    def __init__(self, app: App, listing: Listing, removal: Removal, clock: Clock) -> None:
        self._app = app
        self._listing = listing
        self._removal = removal
        self._clock = clock
        self._ending: dict[LoopId, Token] = {}
        self._done: list[Token] = []
        self._unfinished: dict[LoopId, Token] = {}
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
            self._done.append(self._ending.pop(event.loop))
            self._news.set()

    async def sweep(self, tokens: Iterable[Token]) -> bool:
        """Remove those that are done, of these that wait in their slots; says whether we may."""
        now = self._clock.now()
        self._listing.forget(now - REMEMBERED)
        # What the roster calls gone is not looked at again: so we remember what may be half done.
        self._unfinished |= {token.loop: token for token in tokens if is_over(token, now)}
        over = list(self._unfinished.values())
        if not over:
            return True
        try:
            await self._removal.finish([self._loop_of(token) for token in over])
        except AccessRefused:
            self._forget(over)  # nothing was begun
            return False
        self._forget(over)
        return True

    def _forget(self, over: Iterable[Token]) -> None:
        for token in over:
            self._unfinished.pop(token.loop, None)

    async def _remove(self) -> None:
        while True:
            await self._news.wait()
            await asyncio.sleep(GATHERED_S)
            self._news.clear()
            done, self._done = self._done, []
            try:
                await self.sweep(done)
            except BrokerError as error:  # supervision does it
                self._app.events.emit(SupervisionDelayed(str(error)))
            except Exception:
                logging.getLogger(__name__).exception("Removing what is done failed")

    def _loop_of(self, token: Token) -> tuple[Loop, int]:
        task = self._app.tasks.get(token.loop.task) or absent(token.loop.task)
        return Loop(token.loop, task, token.schedule, token.args), token.epoch
