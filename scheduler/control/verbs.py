"""The operator's verbs: pause, resume, trigger; each an operation on the slot.

They are done under the mutex under which tokens are created. What a verb did is told by the token
that it put, and so by the journal.
"""

import asyncio
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

from scheduler.brokers.contract import Broker
from scheduler.control.location import Locator
from scheduler.control.new_tokens import STAND_IN, first_token, paused, rescheduled, with_act
from scheduler.control.recovery import Recovery
from scheduler.control.repairs import Repairs
from scheduler.control.reports import Did, Report
from scheduler.errors import QueueNotFound
from scheduler.protocol.tokens import State, Verb
from scheduler.queues.hatchery import Hatchery, Occupant, left_in_place
from scheduler.tasks.loops import Loop
from scheduler.tasks.registry import App
from scheduler.timing.clock import Clock

# One that a cut-off node of a cluster holds is handed on when the node is back.
ARRIVAL = timedelta(seconds=10)
ARRIVAL_PAUSE = 1.0  # not often: while somebody looks into it, a slot takes another token


class Verbs:
    """The verbs of an app's loops.

    Args:
        patience: how long to wait for others who create tokens.
    """

    def __init__(
        self,
        app: App,
        broker: Broker,
        clock: Clock,
        hatchery: Hatchery,
        locator: Locator,
        recovery: Recovery,
        repairs: Repairs,
        patience: timedelta,
    ) -> None:
        self._app = app
        self._broker = broker
        self._clock = clock
        self._hatchery = hatchery
        self._locator = locator
        self._recovery = recovery
        self._repairs = repairs
        self._patience = patience

    async def pause(self, loop: Loop, reason: str = "paused by an operator") -> Report:
        """Have the loop wait until it is resumed. A run that is going on ends first.

        A token that is nowhere to be found is waited for, up to 10 s.
        """
        async with self._hatchery.mutex(self._patience):
            report = await self._pause(loop, reason)
        held = report.token
        if report.did is Did.PAUSED and held is not None and held.generation == STAND_IN:
            await self._see_arrive(loop)
        return report

    async def _pause(self, loop: Loop, reason: str) -> Report:
        occupant = await self._take(loop)
        if occupant is None:
            token = replace(first_token(loop, self._clock.now()), generation=STAND_IN)
            token = await self._hatchery.put(paused(token, reason, self._clock.now()))
            return Report(loop, Did.PAUSED, token)
        if occupant.token.state is State.PAUSED:
            return Report(loop, Did.UNCHANGED, await self._hatchery.leave(occupant))
        held = paused(occupant.token, reason, self._clock.now())
        if occupant.token.state is State.GUARD:
            held = replace(held, generation=STAND_IN)
        return Report(loop, Did.PAUSED, await self._hatchery.replace(occupant, held))

    async def _see_arrive(self, loop: Loop) -> None:
        """Wait a while for a token that is on its way, lest it goes on beside its stand-in.

        The slot may take it: RabbitMQ's queue has told the channels that it is full, and one that
        put it at the same moment, or on a node that was cut off, has not heard of it.
        """
        until, missed = self._clock.now() + ARRIVAL, True
        while True:
            on_its_way = missed and await self._is_on_its_way(loop)
            slot = await self._broker.depth(self._app.names.hatchery(loop.id))
            if slot is not None and slot.ready > 1:
                await self._repairs.unite(loop)
            elif not on_its_way or self._clock.now() >= until:
                return
            await asyncio.sleep(ARRIVAL_PAUSE)
            missed = await self._stands_in(loop)

    async def _is_on_its_way(self, loop: Loop) -> bool:
        """Whether its token is not known to be ready, or in a hand."""
        depth = await self._broker.depth(self._app.names.processor_queue(loop.id.task))
        if depth is None or depth.ready or not depth.consumers:
            return False
        answers = await self._locator.who_has([loop.id])
        return not (answers.complete and loop.id in answers.claims)

    async def resume(self, loop: Loop, *, at_once: bool = False) -> Report:
        """Have a paused loop go on, at its next nominal time or at once."""
        async with self._hatchery.mutex(self._patience):
            is_lost = await self._stands_in(loop) and await self._locator.is_nowhere(loop.id)
            occupant = await self._take(loop)
            if occupant is None:
                return Report(loop, Did.NOT_PAUSED)
            held = occupant.token
            if held.state is not State.PAUSED:
                return Report(loop, Did.NOT_PAUSED, await self._hatchery.leave(occupant))
            if held.generation == STAND_IN:
                async with left_in_place([occupant]):
                    held = await self._recovery.last_token(loop)
                    armed = replace(held, state=State.ARMED, reason=None)
                    guard = None if is_lost else await self._recovery.guard_for(loop, armed)
                if guard is not None:
                    return Report(loop, Did.GUARDED, await self._hatchery.replace(occupant, guard))
            armed = rescheduled(held, self._clock.now())
            if at_once:
                armed = replace(armed, due_at=self._clock.now())
            armed = with_act(Verb.RESUMED, armed, self._clock.now())
            return Report(loop, Did.RESUMED, await self._hatchery.replace(occupant, armed))

    async def _stands_in(self, loop: Loop) -> bool:
        """Whether it was paused during a run, which may be going on, or lost."""
        with suppress(QueueNotFound):
            token = await self._hatchery.look(loop.id)
            return token is not None and token.generation == STAND_IN
        return False

    async def trigger(self, loop: Loop) -> Report:
        """Have the loop's own token hatch now, so that no second chain of runs can start."""
        async with self._hatchery.mutex(self._patience):
            occupant = await self._take(loop)
            if occupant is None:
                return Report(loop, Did.RUNNING)
            if occupant.token.state is State.PAUSED:
                return Report(loop, Did.IS_PAUSED, await self._hatchery.leave(occupant))
            if occupant.token.state is State.GUARD:
                return Report(loop, Did.RUNNING, await self._hatchery.leave(occupant))
            now = self._clock.now()
            due_now = replace(occupant.token, due_at=min(now, occupant.token.due_at))
            due_now = with_act(Verb.TRIGGERED, due_now, now)
            return Report(loop, Did.TRIGGERED, await self._hatchery.replace(occupant, due_now))

    async def _take(self, loop: Loop) -> Occupant | None:
        try:
            return await self._hatchery.find(loop.id)
        except QueueNotFound:
            raise QueueNotFound(
                f"The loop {loop} is not in {self._broker.address} yet. Nothing was changed; "
                "run `scheduler seed` first."
            ) from None
