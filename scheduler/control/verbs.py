"""The operator's verbs: seed, pause, resume, trigger, start, remove; each an operation on the slot.

Tokens are created under one mutex of the namespace, so that any number of operators and pods can
try at once. What a verb did is told by the token that it put, and so by the journal.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import TypeVar

from scheduler.brokers.contract import Broker, Delivery
from scheduler.control.creation import (
    STAND_IN,
    first_token,
    paused,
    rescheduled,
    reseeded,
    with_act,
)
from scheduler.control.location import Locator
from scheduler.control.loops import hatchery_of, loops_of, orphans_of
from scheduler.control.recovery import Recovery
from scheduler.control.repairs import Repairs
from scheduler.errors import DeliveryLost, MessageError, QueueNotFound, UnknownLoop, UsageError
from scheduler.events import LoopRepaired, LoopSeeded
from scheduler.protocol.messages import LoopId, State, Token, Verb, decode, encode, same_seeding
from scheduler.protocol.topology import Topology, routing_key
from scheduler.queues.failed import FailedQueues, Reason
from scheduler.queues.hatchery import LOOK_PAUSE, LOOKS, Hatchery, Occupant, left_in_place
from scheduler.queues.roll_call import RollCall
from scheduler.queues.roster import Listed, Roster
from scheduler.tasks.registry import App
from scheduler.tasks.tasks import SUPERVISION, Loop, no_such
from scheduler.timing.clock import Clock

SEED_TIMEOUT = timedelta(minutes=15)
# One that a cut-off node of a cluster holds is handed on when the node is back.
ARRIVAL = timedelta(seconds=10)
ARRIVAL_PAUSE = 1.0  # not often: while somebody looks into it, a slot takes another token
AT_ONCE = 16  # loops that are worked on side by side


class Did(StrEnum):
    """What a verb did to a loop.

    A token that is on its way has left its slot, and the broker has not handed it on yet: after a
    restart, a broker that stands alone takes its time (see the README). It was left as it is.
    """

    CREATED = "created"
    UNCHANGED = "unchanged"
    RESCHEDULED = "rescheduled"
    GUARDED = "guarded"
    REPAIRED = "repaired"
    PAUSED = "paused"
    RESUMED = "resumed"
    TRIGGERED = "triggered"
    REMOVED = "removed"
    RUNNING = "running"
    ON_ITS_WAY = "on its way"
    NOT_PAUSED = "not paused"
    IS_PAUSED = "is paused"
    NOT_THERE = "not there"


@dataclass(frozen=True, slots=True)
class Report:
    """What a verb did, and the token that waits now, if one does."""

    loop: Loop
    did: Did
    token: Token | None = None


E = TypeVar("E")
R = TypeVar("R")


class Control:
    """The verbs of an app.

    Args:
        roll_call: one that listens already; by default, one is opened whenever it is needed.
        patience: how long to wait for others who create tokens.
    """

    def __init__(
        self,
        app: App,
        broker: Broker,
        clock: Clock,
        *,
        roll_call: RollCall | None = None,
        patience: timedelta = SEED_TIMEOUT,
    ) -> None:
        self._app = app
        self._broker = broker
        self._clock = clock
        self._patience = patience
        self._failed = FailedQueues(broker, app.names, clock)
        self._hatchery = Hatchery(broker, app.names, clock, self._failed)
        self._roster = Roster(broker, app.names, clock)
        self._locator = Locator(broker, app.names, roll_call)
        self._recovery = Recovery(app, broker, clock, patience=patience)
        self._repairs = Repairs(app, broker, clock, self._locator, patience=patience)

    async def loops(self) -> list[Loop]:
        """The loops of the code, and the keyed ones of its tasks.

        Raises:
            QueueNotFound: nothing was seeded.
        """
        return loops_of(self._app, await self._roster.read())

    async def orphans(self) -> list[Loop]:
        """The loops in the broker that this code does not have.

        Raises:
            QueueNotFound: nothing was seeded.
        """
        return orphans_of(self._app, await self._roster.read())

    async def find(self, name: str) -> Loop:
        """The loop of this name, in the code or in the broker.

        Raises:
            UnknownLoop: there is none; the message names the nearest.
        """
        known = {str(loop): loop for loop in self._app.loops.values()}
        if name not in known:
            with suppress(QueueNotFound):
                listed = await self._roster.read()
                others = (*loops_of(self._app, listed), *orphans_of(self._app, listed))
                known |= {str(loop): loop for loop in others}
        if name not in known:
            raise UnknownLoop(no_such("loop", name, known))
        return known[name]

    async def seed(self, *, prune: bool = False) -> list[Report]:
        """Declare everything, and see to it that each loop has its token.

        A loop that waits is left alone, unless its schedule or arguments were changed: then it gets
        the new ones, and keeps its progress. A paused loop stays paused. A token that is nowhere is
        put again; where a run may be going on, by a guard, which makes no second token.

        Args:
            prune: remove the loops that this code does not have.
        """
        async with self._hatchery.mutex(self._patience):
            absent_before = await self._absent(self._app.topology())
            await self._broker.declare(self._app.topology())
            listed = await self._roster.read()
            loops = loops_of(self._app, listed)
            absent_before |= await self._declare_keyed(loops)
            reports = await self._seed_all(loops, listed, absent_before)
            if prune:
                reports += [await self._remove(loop) for loop in orphans_of(self._app, listed)]
            return reports

    async def adopt(self, known: Mapping[LoopId, Listed] = MappingProxyType({})) -> list[Report]:
        """Seed what was never seeded, or is gone. What is there is left alone.

        Args:
            known: the loops that there were, in case that the roster is gone too.

        Raises:
            AccessRefused: this user may not declare.
        """
        async with self._hatchery.mutex(self._patience):
            gone = await self._absent(self._app.topology())
            if gone:
                await self._broker.declare(self._app.topology().only(gone))
            listed = await self._roster.read()
            if self._app.names.roster in gone:
                listed = await self._restored(listed, known)
            loops = loops_of(self._app, listed)
            gone |= await self._declare_keyed(loops)
            lacking = [loop for loop in loops if self._app.names.hatchery(loop.id) in gone]
            reports = await self._seed_all(lacking, listed, gone)
            for report in reports:
                detail = f"its hatchery queue was {report.did}"
                self._app.events.emit(LoopRepaired(report.loop.id, "adopted", detail))
            return reports

    async def plan(self) -> list[Report]:
        """What `seed` would do, without doing it."""
        return [await self._plan(loop) for loop in self._app.loops.values()]

    async def start(self, loop: Loop) -> Report:
        """Start a keyed loop, or give it another schedule or other arguments."""
        async with self._hatchery.mutex(self._patience):
            queue = self._app.names.hatchery(loop.id)
            if await self._broker.depth(queue) is None:
                await self._broker.declare(hatchery_of(self._app, loop.id))
                await self._roster.add(_listing(loop))
                # A run of the loop as it was before it was removed may be going on.
                busy = loop.id in (await self._locator.who_has([loop.id])).claims
                token = self._new_token(loop)
                token = await self._recovery.guard_for(loop, token) if busy else token
                return Report(loop, Did.CREATED, await self._hatchery.put(token))
            report = await self._seeded(loop, fresh=False)
            if report.did is not Did.UNCHANGED:
                await self._roster.add(_listing(loop))
            return report

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
            return await self._remove(loop)

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
            token = replace(self._new_token(loop), generation=STAND_IN)
            token = await self._hatchery.put(paused(token, reason, self._clock.now()))
            return Report(loop, Did.PAUSED, token)
        if occupant.token.state is State.PAUSED:
            return await self._leave(loop, Did.UNCHANGED, occupant)
        held = paused(occupant.token, reason, self._clock.now())
        if occupant.token.state is State.GUARD:
            held = replace(held, generation=STAND_IN)
        return await self._replace(loop, Did.PAUSED, occupant, held)

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
        depth = await self._broker.depth(self._queue_of(loop))
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
                return await self._leave(loop, Did.NOT_PAUSED, occupant)
            if held.generation == STAND_IN:
                async with left_in_place([occupant]):
                    held = await self._recovery.last_token(loop)
                    armed = replace(held, state=State.ARMED, reason=None)
                    guard = None if is_lost else await self._recovery.guard_for(loop, armed)
                if guard is not None:
                    return await self._replace(loop, Did.GUARDED, occupant, guard)
            armed = rescheduled(held, self._clock.now())
            if at_once:
                armed = replace(armed, due_at=self._clock.now())
            armed = with_act(Verb.RESUMED, armed, self._clock.now())
            return await self._replace(loop, Did.RESUMED, occupant, armed)

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
                return await self._leave(loop, Did.IS_PAUSED, occupant)
            if occupant.token.state is State.GUARD:
                return await self._leave(loop, Did.RUNNING, occupant)
            now = self._clock.now()
            due_now = replace(occupant.token, due_at=min(now, occupant.token.due_at))
            due_now = with_act(Verb.TRIGGERED, due_now, now)
            return await self._replace(loop, Did.TRIGGERED, occupant, due_now)

    async def _absent(self, wanted: Topology) -> set[str]:
        async def is_absent(queue: str) -> bool:
            return await self._broker.depth(queue) is None

        names = [queue.name for queue in wanted.queues]
        found = await side_by_side(is_absent, names)
        return {name for name, is_gone in zip(names, found, strict=True) if is_gone}

    async def _restored(
        self, listed: Mapping[LoopId, Listed], known: Mapping[LoopId, Listed]
    ) -> Mapping[LoopId, Listed]:
        """The roster with the keyed loops that it has lost."""
        lost = {loop: each for loop, each in known.items() if loop.key and loop not in listed}
        for each in lost.values():
            await self._roster.add(each)
        return {**listed, **lost}

    async def _declare_keyed(self, loops: Iterable[Loop]) -> set[str]:
        """Declare the hatchery queues of keyed loops that are gone; returns their names."""
        wanted = sum((hatchery_of(self._app, loop.id) for loop in loops if loop.id.key), Topology())
        gone = await self._absent(wanted)
        if gone:
            await self._broker.declare(wanted.only(gone))
        return gone

    async def _seed_all(
        self, loops: Collection[Loop], listed: Mapping[LoopId, Listed], gone: Collection[str]
    ) -> list[Report]:
        async def seed(loop: Loop) -> Report:
            # With its task's queue there before, a listed loop may have a run going on.
            fresh = self._app.names.hatchery(loop.id) in gone and (
                self._queue_of(loop) in gone or loop.id not in listed
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
            return Report(loop, Did.CREATED, await self._hatchery.put(self._new_token(loop)))
        for _ in range(LOOKS):
            if (occupant := await self._hatchery.take(loop.id)) is not None:
                return await self._reseed_waiting(loop, occupant)
            if (delivery := await self._broker.get(self._queue_of(loop))) is not None:
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
        new = self._new_token(loop)
        stands_in = occupant.token.generation == STAND_IN
        if stands_in or same_seeding(new.generation, occupant.token.generation):
            return await self._leave(loop, Did.UNCHANGED, occupant)
        changed = with_act(Verb.RESCHEDULED, reseeded(occupant.token, new), self._clock.now())
        return await self._replace(loop, Did.RESCHEDULED, occupant, changed)

    async def _reseed_ready(self, loop: Loop, delivery: Delivery) -> Report:
        """A token that waits for a processor stays where it is; its schedule may be changed."""
        new = self._new_token(loop)
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

    async def _plan(self, loop: Loop) -> Report:
        if await self._broker.depth(self._app.names.hatchery(loop.id)) is None:
            return Report(loop, Did.CREATED, self._new_token(loop))
        token = await self._hatchery.look(loop.id)
        if token is None:
            return Report(loop, Did.RUNNING)
        same = same_seeding(token.generation, self._new_token(loop).generation)
        return Report(loop, Did.UNCHANGED if same else Did.RESCHEDULED, token)

    async def _remove(self, loop: Loop) -> Report:
        queue = self._app.names.hatchery(loop.id)
        occupants: list[Occupant] = []
        with suppress(QueueNotFound):
            occupants = await self._hatchery.take_all(loop.id)
        async with left_in_place(occupants):
            await self._roster.remove(loop.id)
            if await self._broker.depth(queue) is None:
                return Report(loop, Did.NOT_THERE)
            await self._broker.delete(queue)
        token = occupants[-1].token if occupants else self._new_token(loop)
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

    async def _take(self, loop: Loop) -> Occupant | None:
        try:
            return await self._hatchery.find(loop.id)
        except QueueNotFound:
            raise QueueNotFound(
                f"The loop {loop} is not in {self._broker.address} yet. Nothing was changed; "
                "run `scheduler seed` first."
            ) from None

    async def _leave(self, loop: Loop, did: Did, occupant: Occupant) -> Report:
        await occupant.delivery.requeue()
        return Report(loop, did, occupant.token)

    async def _replace(self, loop: Loop, did: Did, occupant: Occupant, token: Token) -> Report:
        return Report(loop, did, await self._hatchery.replace(occupant, token))

    def _new_token(self, loop: Loop) -> Token:
        return first_token(loop, self._clock.now())

    def _queue_of(self, loop: Loop) -> str:
        return self._app.names.processor_queue(loop.id.task)


async def side_by_side(act: Callable[[E], Awaitable[R]], subjects: Collection[E]) -> list[R]:
    """Do something to each of many, a few at once; the results are in their order."""
    turn = asyncio.Semaphore(AT_ONCE)

    async def in_turn(subject: E) -> R:
        async with turn:
            return await act(subject)

    doing = [asyncio.create_task(in_turn(subject)) for subject in subjects]
    try:
        return await asyncio.gather(*doing)
    finally:
        for each in doing:
            each.cancel()
        await asyncio.gather(*doing, return_exceptions=True)


def _listing(loop: Loop) -> Listed:
    return Listed(loop.id, loop.schedule, loop.args)
