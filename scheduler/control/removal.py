"""Ending loops: those that were started at run time, and those that the code no longer has."""

from contextlib import suppress
from datetime import timedelta

from scheduler.brokers.contract import Broker
from scheduler.control.new_tokens import first_token, with_act
from scheduler.control.reports import Did, Report
from scheduler.errors import DeliveryLost, QueueNotFound, UnknownLoop, UsageError
from scheduler.protocol.tokens import Verb, encode
from scheduler.protocol.topology import routing_key
from scheduler.queues.failed import FailedQueues, Reason
from scheduler.queues.hatchery import Hatchery, Occupant, left_in_place
from scheduler.queues.roster import Roster
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
        patience: timedelta,
    ) -> None:
        self._app = app
        self._broker = broker
        self._clock = clock
        self._hatchery = hatchery
        self._roster = roster
        self._failed = failed
        self._patience = patience

    async def remove(self, loop: Loop) -> Report:
        """End a loop: a run that is going on, or due, is its last.

        Raises:
            UsageError: the code has it, and would start it again.
        """
        if loop.id in self._app.loops:
            raise UsageError(
                f"The loop {loop} is in the code, which would start it again. Nothing was changed; "
                "pause it, or take it out of the code and run `scheduler seed --prune`."
            )
        async with self._hatchery.mutex(self._patience):
            return await self.take_away(loop)

    async def take_away(self, loop: Loop) -> Report:
        """End a loop, with the mutex in hand."""
        queue = self._app.names.hatchery(loop.id)
        occupants: list[Occupant] = []
        with suppress(QueueNotFound):
            occupants = await self._hatchery.take_all(loop.id)
        async with left_in_place(occupants):
            await self._roster.remove(loop.id)
            if await self._broker.depth(queue) is None:
                return Report(loop, Did.NOT_THERE)
            await self._broker.delete(queue)
        token = occupants[-1].token if occupants else first_token(loop, self._clock.now())
        # With its queue gone, the journal is the only one that hears of it.
        await self._broker.publish(
            encode(
                with_act(Verb.REMOVED, token, self._clock.now()),
                self._app.namespace,
                expiration=None,
            ),
            exchange=self._app.names.scheduler,
            routing_key=routing_key(loop.id),
        )
        for occupant in occupants:
            with suppress(DeliveryLost):
                await occupant.delivery.ack()
        if loop.id.task not in self._app.tasks:
            await self._remove_queue_of(loop.id.task)
        return Report(loop, Did.REMOVED)

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
