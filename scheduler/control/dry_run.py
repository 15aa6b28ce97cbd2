"""What a seed would do, without doing it."""

from scheduler.brokers.contract import Broker
from scheduler.control.fit import Fit
from scheduler.control.loops import as_to_be_seeded, orphans_of
from scheduler.control.new_tokens import first_token
from scheduler.control.reports import Did, Report
from scheduler.errors import QueueNotFound
from scheduler.protocol.epochs import Verb, begun
from scheduler.queues.hatchery import Hatchery
from scheduler.queues.roster import Listing, Roster
from scheduler.tasks.loops import Loop
from scheduler.tasks.registry import App
from scheduler.timing.clock import Clock


class DryRun:
    """Looks at the roster and the slots, as a seed does, and changes nothing."""

    def __init__(
        self,
        app: App,
        broker: Broker,
        clock: Clock,
        hatchery: Hatchery,
        roster: Roster,
        fit: Fit,
    ) -> None:
        self._app = app
        self._broker = broker
        self._clock = clock
        self._hatchery = hatchery
        self._roster = roster
        self._fit = fit

    async def plan(self, *, prune: bool = False, paused: bool = False) -> list[Report]:
        """What `seed` would do, without doing it.

        Args:
            prune, paused: as of `seed`.

        Raises:
            UsageError: the namespace is that of another app.
        """
        await self._fit.require_app()
        try:
            listing = await self._roster.read()
        except QueueNotFound:
            listing = Listing()
        loops = [as_to_be_seeded(loop, listing) for loop in self._app.loops.values()]
        planned = [await self._plan(loop, listing, paused=paused) for loop in loops]
        orphans = orphans_of(self._app, listing) if prune else []
        return [*planned, *(Report(loop, Did.REMOVED) for loop in orphans)]

    async def _plan(self, loop: Loop, listing: Listing, *, paused: bool) -> Report:
        listed = listing.get(loop.id)
        slot = await self._broker.depth(self._app.names.hatchery(loop.id))
        token = None if slot is None else await self._hatchery.look(loop.id)
        if listed is None and token is not None:  # the roster has lost it
            return Report(loop, Did.REPAIRED, token)
        if listed is None or listed.is_gone:
            beginning = begun(Verb.START, None, paused=paused)
            assert beginning is not None
            token = first_token(loop, beginning.entry, Verb.START, self._clock.now())
            return Report(loop, Did.CREATED, token)
        if (listed.schedule, dict(listed.args)) != (loop.schedule, dict(loop.args)):
            return Report(loop, Did.RESCHEDULED, token)
        if slot is None:
            return Report(loop, Did.REPAIRED)
        return Report(loop, Did.RUNNING if token is None else Did.UNCHANGED, token)
