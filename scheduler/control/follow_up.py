"""Looking for what comes after a token that was settled before: it may never have been put.

A broker that goes down may have told the journal of a put that it neither took nor confirmed (seen
on 3.10). Supervision would find out in two rounds; whoever acked the token can look at once.
"""

import asyncio
import logging

from scheduler.brokers.cancellation import cancelled
from scheduler.control.loops import loops_of
from scheduler.control.repairs import Repairs
from scheduler.errors import BrokerError
from scheduler.events import Event, SupervisionDelayed, TokenSuperseded
from scheduler.protocol.epochs import MISSES, Watch
from scheduler.protocol.tokens import LoopId
from scheduler.queues.roster import Listing
from scheduler.tasks.registry import App

AGAIN = 1.0  # seconds before it looks again, when its connection went


class FollowUp:
    """Repairs loops whose settled token has no successor.

    Args:
        listing: the roster, as it is followed.
    """

    def __init__(self, app: App, listing: Listing, repairs: Repairs) -> None:
        self._app = app
        self._listing = listing
        self._repairs = repairs
        self._doubted: set[LoopId] = set()
        self._news = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "FollowUp":
        self._looking = asyncio.create_task(self._look(), name="follow up")
        return self

    async def __aexit__(self, *exception: object) -> None:
        assert self._looking is not None
        await cancelled(self._looking)

    def hear(self, event: Event) -> None:
        """Learn of tokens that were settled before; to be called with each event."""
        if isinstance(event, TokenSuperseded) and event.reason == "settled":
            self._doubt({event.loop})

    def _doubt(self, loops: set[LoopId]) -> None:
        self._doubted |= loops
        self._news.set()

    async def _look(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            doubted, self._doubted = self._doubted, set()
            try:
                await self._repair(doubted)
            except BrokerError as error:
                self._app.events.emit(SupervisionDelayed(str(error)))
                self._doubt(doubted)
                await asyncio.sleep(AGAIN)
            except Exception:
                logging.getLogger(__name__).exception("Looking for successors failed")

    async def _repair(self, doubted: set[LoopId]) -> None:
        loops = [loop for loop in loops_of(self._app, self._listing) if loop.id in doubted]
        loops += [self._app.supervision] if self._app.supervision.id in doubted else []
        sightings = await self._repairs.sightings(loops, self._listing)
        watched = [
            (loop, Watch(self._listing.known(loop.id), MISSES))
            for loop in loops
            if sightings[loop.id].is_lost
        ]
        if watched:
            await self._repairs.repair(watched, "lost")
