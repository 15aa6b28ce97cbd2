"""Starting loops: each gets its one token, whoever asks for it, and however often.

Tokens are created under one mutex of the namespace, so that any number of operators and pods can
try at once.
"""

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import timedelta
from types import MappingProxyType

from scheduler.brokers.contract import Broker, Delivery
from scheduler.control.concurrency import side_by_side
from scheduler.control.declaring import Declaring
from scheduler.control.location import Locator
from scheduler.control.loops import loops_of, orphans_of
from scheduler.control.new_tokens import STAND_IN, first_token, reseeded, with_act
from scheduler.control.recovery import Recovery
from scheduler.control.removal import Removal
from scheduler.control.reports import Did, Report
from scheduler.errors import MessageError
from scheduler.events import LoopRepaired, LoopSeeded
from scheduler.protocol.tokens import LoopId, State, Verb, decode, encode, same_seeding
from scheduler.protocol.topology import routing_key
from scheduler.queues.hatchery import LOOK_PAUSE, LOOKS, Hatchery, Occupant, left_in_place
from scheduler.queues.roster import Listed, Roster
from scheduler.tasks.loops import Loop
from scheduler.tasks.registry import App
from scheduler.tasks.tasks import SUPERVISION
from scheduler.timing.clock import Clock


class Seeding:
    """Sees to it that loops have their tokens.

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
        locator: Locator,
        recovery: Recovery,
        removal: Removal,
        declaring: Declaring,
        patience: timedelta,
    ) -> None:
        self._app = app
        self._broker = broker
        self._clock = clock
        self._hatchery = hatchery
        self._roster = roster
        self._locator = locator
        self._recovery = recovery
        self._removal = removal
        self._declaring = declaring
        self._patience = patience

    async def seed(self, *, prune: bool = False) -> list[Report]:
        """Declare everything, and see to it that each loop has its token.

        A loop that waits is left alone, unless its schedule or arguments were changed: then it gets
        the new ones, and keeps its progress. A paused loop stays paused. A token that is nowhere is
        put again; where a run may be going on, by a guard, which makes no second token.

        Args:
            prune: remove the loops that this code does not have.
        """
        async with self._hatchery.mutex(self._patience):
            absent_before = await self._declaring.everything()
            listed = await self._roster.read()
            loops = loops_of(self._app, listed)
            absent_before |= await self._declaring.keyed_slots(loops)
            reports = await self._seed_all(loops, listed, absent_before)
            if prune:
                orphans = orphans_of(self._app, listed)
                reports += [await self._removal.take_away(loop) for loop in orphans]
            return reports

    async def adopt(
        self, known: Mapping[LoopId, Listed] = MappingProxyType({}), *, patience: timedelta
    ) -> list[Report]:
        """Seed what was never seeded, or is gone. What is there is left alone.

        Args:
            known: the loops that there were, in case that the roster is gone too.
            patience: how long to wait for others who create tokens.

        Raises:
            AccessRefused: this user may not declare.
        """
        async with self._hatchery.mutex(patience):
            gone = await self._declaring.what_is_gone()
            listed = await self._roster.read()
            if self._app.names.roster in gone:
                listed = await self._restored(listed, known)
            loops = loops_of(self._app, listed)
            gone |= await self._declaring.keyed_slots(loops)
            lacking = [loop for loop in loops if self._app.names.hatchery(loop.id) in gone]
            reports = await self._seed_all(lacking, listed, gone)
            for report in reports:
                detail = f"its hatchery queue was {report.did}"
                self._app.events.emit(LoopRepaired(report.loop.id, "adopted", detail))
            return reports

    async def start(self, loop: Loop) -> Report:
        """Start a keyed loop, or give it another schedule or other arguments."""
        async with self._hatchery.mutex(self._patience):
            if await self._declaring.slot(loop):
                await self._roster.add(_listing(loop))
                # A run of the loop as it was before it was removed may be going on.
                busy = loop.id in (await self._locator.who_has([loop.id])).claims
                token = first_token(loop, self._clock.now())
                token = await self._recovery.guard_for(loop, token) if busy else token
                return Report(loop, Did.CREATED, await self._hatchery.put(token))
            report = await self._seeded(loop, fresh=False)
            if report.did is not Did.UNCHANGED:
                await self._roster.add(_listing(loop))
            return report

    async def _restored(
        self, listed: Mapping[LoopId, Listed], known: Mapping[LoopId, Listed]
    ) -> Mapping[LoopId, Listed]:
        """The roster with the keyed loops that it has lost."""
        lost = {loop: each for loop, each in known.items() if loop.key and loop not in listed}
        for each in lost.values():
            await self._roster.add(each)
        return {**listed, **lost}

    async def _seed_all(
        self, loops: Collection[Loop], listed: Mapping[LoopId, Listed], gone: Collection[str]
    ) -> list[Report]:
        async def seed(loop: Loop) -> Report:
            # With its task's queue there before, a listed loop may have a run going on.
            fresh = self._app.names.hatchery(loop.id) in gone and (
                self._app.names.processor_queue(loop.id.task) in gone or loop.id not in listed
            )
            if listed.get(loop.id) != (listing := _listing(loop)):
                await self._roster.add(listing)
            report = await self._seeded(loop, fresh=fresh)
            due_at = report.token.due_at if report.token else None
            self._app.events.emit(LoopSeeded(loop.id, report.did.value, due_at))
            return report

        await self._seed_supervision(listed, gone)
        return await side_by_side(seed, loops)

    async def _seed_supervision(
        self, listed: Mapping[LoopId, Listed], gone: Collection[str]
    ) -> None:
        loop = self._app.supervision
        fresh = self._app.names.hatchery(SUPERVISION) in gone
        if fresh or listed.get(SUPERVISION) != _listing(loop):
            await self._roster.add(_listing(loop))
            await self._seeded(loop, fresh=fresh)

    async def _seeded(self, loop: Loop, *, fresh: bool) -> Report:
        if fresh:
            return Report(
                loop, Did.CREATED, await self._hatchery.put(first_token(loop, self._clock.now()))
            )
        for _ in range(LOOKS):
            if (occupant := await self._hatchery.take(loop.id)) is not None:
                return await self._reseed_waiting(loop, occupant)
            if (
                delivery := await self._broker.get(self._app.names.processor_queue(loop.id.task))
            ) is not None:
                return await self._reseed_ready(loop, delivery)
            await asyncio.sleep(LOOK_PAUSE)
        is_lost = (
            await self._locator.is_in_no_hand(loop.id)
            and await self._hatchery.look(loop.id) is None
        )
        token = await self._recovery.last_token(loop)
        if not is_lost:
            token = await self._recovery.guard_for(loop, token)
        if await self._hatchery.offer(token):
            did = Did.GUARDED if token.state is State.GUARD else Did.REPAIRED
            return Report(loop, did, token)
        if (occupant := await self._hatchery.take(loop.id)) is not None:
            return await self._reseed_waiting(loop, occupant)
        return Report(loop, Did.ON_ITS_WAY)

    async def _reseed_waiting(self, loop: Loop, occupant: Occupant) -> Report:
        new = first_token(loop, self._clock.now())
        stands_in = occupant.token.generation == STAND_IN
        if stands_in or same_seeding(new.generation, occupant.token.generation):
            return Report(loop, Did.UNCHANGED, await self._hatchery.leave(occupant))
        changed = with_act(Verb.RESCHEDULED, reseeded(occupant.token, new), self._clock.now())
        return Report(loop, Did.RESCHEDULED, await self._hatchery.replace(occupant, changed))

    async def _reseed_ready(self, loop: Loop, delivery: Delivery) -> Report:
        """A token that waits for a processor stays where it is; its schedule may be changed."""
        new = first_token(loop, self._clock.now())
        try:
            token = decode(delivery.message, self._app.namespace)
        except MessageError:
            token = None  # the processor that gets it parks it
        if token is None or token.loop != loop.id:
            await delivery.requeue()
            return Report(loop, Did.UNCHANGED)
        same = same_seeding(new.generation, token.generation)
        ready = replace(token, schedule=new.schedule, args=new.args, generation=new.generation)
        if same:
            ready = token
        async with left_in_place([Occupant(token, delivery)]):
            # Published again even so: to requeue it would count as a failed delivery.
            await self._broker.publish(
                encode(ready, self._app.namespace, expiration=None),
                exchange=self._app.names.processor,
                routing_key=routing_key(loop.id),
            )
        await delivery.ack()
        return Report(loop, Did.UNCHANGED if same else Did.RESCHEDULED, ready)


def _listing(loop: Loop) -> Listed:
    return Listed(loop.id, loop.schedule, loop.args)
