"""Ending loops: those that were started at run time, and those that the code no longer has."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import timedelta

from scheduler.brokers.contract import Broker
from scheduler.control.beginnings import Beginnings, Begun
from scheduler.control.concurrency import AT_ONCE, side_by_side
from scheduler.control.loops import as_listed, hatchery_of
from scheduler.control.new_tokens import first_token
from scheduler.control.one_offs import DONE
from scheduler.control.reports import Did, Report
from scheduler.control.together import Together
from scheduler.errors import UnknownLoop, UsageError
from scheduler.protocol.epochs import Verb
from scheduler.protocol.tokens import State, encode
from scheduler.protocol.topology import routing_key
from scheduler.queues.failed import FailedQueues, Reason
from scheduler.queues.hatchery import Hatchery
from scheduler.queues.roster import Listing, Roster
from scheduler.tasks.loops import Loop
from scheduler.tasks.registry import App
from scheduler.timing.clock import Clock


class Removal:
    """Removes loops from the broker.

    Args:
        patience: how long to wait for others who create tokens.
    """

    def __init__(
        self,
        app: App,
        broker: Broker,
        clock: Clock,
        hatchery: Hatchery,
        roster: Roster,
        failed: FailedQueues,
        beginnings: Beginnings,
        patience: timedelta,
    ) -> None:
        self._app = app
        self._broker = broker
        self._clock = clock
        self._hatchery = hatchery
        self._roster = roster
        self._failed = failed
        self._beginnings = beginnings
        self._patience = patience
        self._removals = Together(self._remove, most=AT_ONCE)

    async def remove(self, loop: Loop) -> Report:
        """End a loop: a run that is going on is its last.

        Raises:
            UsageError: the code has it, and would start it again.
        """
        if loop.id in self._app.loops:
            raise UsageError(
                f"The loop {loop} is in the code, which would start it again. Nothing was changed; "
                "pause it, or take it out of the code and run `scheduler seed --prune`."
            )
        return await self._removals.do(loop)

    async def _remove(self, loops: Sequence[Loop]) -> Sequence[Report]:
        async with self._hatchery.mutex(self._patience):
            listing = await self._roster.compacted()
            return await side_by_side(lambda loop: self.take_away(loop, listing), loops)

    async def finish(self, done: Collection[tuple[Loop, int]]) -> None:
        """Remove named one-offs whose run has ended, each in an epoch.

        One of which a later epoch has begun meanwhile is left alone; where that was its removal,
        which came no further, its queue is deleted.

        Raises:
            AccessRefused: this user may not delete their queues.
        """
        async with self._hatchery.mutex(self._patience):
            listing = await self._roster.compacted()
            for loop, _ in done:
                if (listed := listing.get(loop.id)) and listed.is_gone:
                    await self._broker.delete(self._app.names.hatchery(loop.id))
            still = [loop for loop, epoch in done if listing.known(loop.id) == epoch]
            for loop in still[
                :1
            ]:  # what may declare it may delete it: so nothing is left half done
                await self._broker.declare(hatchery_of(self._app, loop.id))
            await side_by_side(lambda loop: self._forget(loop, listing), still)

    async def _forget(self, loop: Loop, listing: Listing) -> None:
        await self._beginnings.begin(Verb.GONE, loop, listing.get(loop.id), reason=DONE)

    async def take_away(self, loop: Loop, listing: Listing) -> Report:
        """End a loop, with the mutex in hand."""
        listed = listing.get(loop.id)
        was_there = listed is not None and not listed.is_gone
        queue = self._app.names.hatchery(loop.id)
        has_slot = await self._broker.depth(queue) is not None
        loop = as_listed(loop, listing)
        epoch = await self._beginnings.begin(Verb.GONE, loop, listed)
        if epoch is None and has_slot:  # the roster has lost it
            await self._broker.delete(queue)
        if epoch is None or not (was_there or has_slot):
            return Report(loop, Did.NOT_THERE, silent=epoch.silent if epoch else ())
        await self._tell(loop, epoch)
        if loop.id.task not in self._app.tasks:
            await self._remove_queue_of(loop.id.task)
        return Report(loop, Did.REMOVED, silent=epoch.silent)

    async def _tell(self, loop: Loop, epoch: Begun) -> None:
        """Have the journal hear of it: with its queue gone, that is the only one that does."""
        token = first_token(
            loop, epoch.listed.entry, Verb.GONE, self._clock.now(), by=epoch.listed.by
        )
        message = encode(replace(token, state=State.PAUSED), self._app.namespace, expiration=None)
        await self._broker.publish(
            message, exchange=self._app.names.scheduler, routing_key=routing_key(loop.id)
        )

    async def _remove_queue_of(self, task: str) -> None:
        """Delete the queue of a task that the code does not have; its messages are parked."""
        queue = self._app.names.processor_queue(task)
        depth = await self._broker.depth(queue)
        if depth is None or depth.consumers:
            return
        while delivery := await self._broker.get(queue):
            error = UnknownLoop(f"The task {task!r} was removed, with this message in its queue.")
            await self._failed.park_taken(delivery, Reason.REMOVED, error)
        await self._broker.delete(queue)
        failed = self._app.names.failed_queue(task)
        parked = await self._broker.depth(failed)
        if parked is not None and not parked.ready:
            await self._broker.delete(failed)
