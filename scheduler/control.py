"""The operator's verbs: seed, pause, resume, trigger and status, each an operation on the slot.

Tokens are created under one mutex of the namespace, so that any number of operators and pods can
try at once.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from scheduler.app import Scheduler
from scheduler.brokers import Broker, Delivery
from scheduler.clock import Clock
from scheduler.errors import MessageError, QueueNotFound
from scheduler.events import LoopSeeded
from scheduler.hatchery import Hatchery, Occupant
from scheduler.messages import (
    LastRun,
    State,
    Token,
    decode,
    encode,
    generation_of,
    one_line,
    same_seeding,
)
from scheduler.parking import ParkingLot
from scheduler.schedules import jittered
from scheduler.tasks import Loop
from scheduler.topology import routing_key

SEED_TIMEOUT = timedelta(minutes=15)
# The generation of a token that was made to hold a pause while a run may be going on: older than
# any seeding, so that it brings the pause and nothing else.
STAND_IN = ""
# A token on its way from the slot to a worker is in neither queue for a moment.
LOOKS = 10
LOOK_PAUSE = 0.02
GUARD_GRACE = timedelta(seconds=10)
# RabbitMQ's consumer_timeout, unless it was configured.
CONSUMER_TIMEOUT = timedelta(minutes=30)


class Did(StrEnum):
    """What a verb did to a loop."""

    CREATED = "created"
    UNCHANGED = "unchanged"
    RESCHEDULED = "rescheduled"
    GUARDED = "guarded"
    PAUSED = "paused"
    RESUMED = "resumed"
    TRIGGERED = "triggered"
    RUNNING = "running"
    NOT_PAUSED = "not paused"
    IS_PAUSED = "is paused"


@dataclass(frozen=True, slots=True)
class Report:
    """What a verb did, and the token that waits now, if one does."""

    loop: Loop
    did: Did
    token: Token | None = None


class Where(StrEnum):
    """Where the token of a loop is."""

    WAITING = "waiting"
    PAUSED = "paused"
    READY = "ready"
    RUNNING = "running"
    LOST = "lost"
    UNSEEDED = "unseeded"


@dataclass(frozen=True, slots=True)
class Status:
    """Attributes: due_at and last are known while the token waits."""

    loop: Loop
    where: Where
    processors: int
    due_at: datetime | None = None
    seq: int | None = None
    attempt: int | None = None
    reason: str | None = None
    last: LastRun | None = None


class Control:
    """The verbs of an app."""

    def __init__(self, app: Scheduler, broker: Broker, clock: Clock) -> None:
        self._app = app
        self._broker = broker
        self._clock = clock
        self._hatchery = Hatchery(broker, app.names, clock, ParkingLot(broker, app.names, clock))

    async def seed(self) -> list[Report]:
        """Declare everything, and see to it that each loop has its token.

        A loop that waits is left alone, unless its schedule or arguments were changed: then it gets
        the new ones, and keeps its progress. A paused loop stays paused. Where the token is neither
        waiting nor ready, a run may be going on, so a guard is put: it makes no second token.
        """
        async with self._mutex():
            # A loop whose hatchery queue was deleted may have a run going on; a new one has none.
            fresh = [
                loop
                for loop in self._app.loops.values()
                if await self._broker.depth(self._queue_of(loop)) is None
            ]
            await self._broker.declare(self._app.topology())
            return [
                await self._seed(loop, fresh=loop in fresh) for loop in self._app.loops.values()
            ]

    async def plan(self) -> list[Report]:
        """What `seed` would do, without doing it."""
        return [await self._plan(loop) for loop in self._app.loops.values()]

    async def pause(self, loop: Loop, reason: str = "paused by an operator") -> Report:
        """Have the loop wait until it is resumed. A run that is going on ends first."""
        async with self._mutex():
            occupant = await self._take(loop)
            if occupant is None:
                token = replace(self._new_token(loop), generation=STAND_IN)
                paused = replace(token, state=State.PAUSED, reason=one_line(reason))
                return Report(loop, Did.PAUSED, await self._hatchery.put(paused))
            if occupant.token.state is State.PAUSED:
                return await self._leave(loop, Did.UNCHANGED, occupant)
            paused = replace(occupant.token, state=State.PAUSED, reason=one_line(reason))
            if occupant.token.state is State.GUARD:
                paused = replace(paused, generation=STAND_IN)
            return await self._replace(loop, Did.PAUSED, occupant, paused)

    async def resume(self, loop: Loop, *, at_once: bool = False) -> Report:
        """Have a paused loop go on, at its next nominal time or at once."""
        async with self._mutex():
            occupant = await self._take(loop)
            if occupant is None:
                return Report(loop, Did.NOT_PAUSED)
            if occupant.token.state is not State.PAUSED:
                return await self._leave(loop, Did.NOT_PAUSED, occupant)
            if occupant.token.generation == STAND_IN:
                # It was paused during a run, which may be going on still.
                guard = await self._guard(loop)
                return await self._replace(loop, Did.GUARDED, occupant, guard)
            armed = self._rescheduled(occupant.token)
            if at_once:
                armed = replace(armed, due_at=self._clock.now())
            return await self._replace(loop, Did.RESUMED, occupant, armed)

    async def trigger(self, loop: Loop) -> Report:
        """Have the loop's own token hatch now, so that no second chain of runs can start."""
        async with self._mutex():
            occupant = await self._take(loop)
            if occupant is None:
                return Report(loop, Did.RUNNING)
            if occupant.token.state is State.PAUSED:
                return await self._leave(loop, Did.IS_PAUSED, occupant)
            if occupant.token.state is State.GUARD:
                return await self._leave(loop, Did.RUNNING, occupant)
            due_now = replace(occupant.token, due_at=min(self._clock.now(), occupant.token.due_at))
            return await self._replace(loop, Did.TRIGGERED, occupant, due_now)

    async def status(self) -> list[Status]:
        """Where each loop's token is."""
        return [await self._status(loop) for loop in self._app.loops.values()]

    @asynccontextmanager
    async def _mutex(self) -> AsyncGenerator[None]:
        async with self._broker.mutex(self._app.names.lock, timeout=SEED_TIMEOUT):
            yield

    async def _seed(self, loop: Loop, *, fresh: bool) -> Report:
        report = await self._seeded(loop, fresh=fresh)
        due_at = report.token.due_at if report.token else None
        self._app.events.emit(LoopSeeded(loop.id, report.did.value, due_at))
        return report

    async def _seeded(self, loop: Loop, *, fresh: bool) -> Report:
        if fresh:
            return Report(loop, Did.CREATED, await self._hatchery.put(self._new_token(loop)))
        for _ in range(LOOKS):
            if (occupant := await self._hatchery.take(loop.id)) is not None:
                return await self._reseed_waiting(loop, occupant)
            if (delivery := await self._broker.get(self._queue_of(loop))) is not None:
                return await self._reseed_ready(loop, delivery)
            await asyncio.sleep(LOOK_PAUSE)
        guard = await self._guard(loop)
        return Report(loop, Did.GUARDED, await self._hatchery.put(guard))

    async def _reseed_waiting(self, loop: Loop, occupant: Occupant) -> Report:
        new = self._new_token(loop)
        stands_in = occupant.token.generation == STAND_IN
        if stands_in or same_seeding(new.generation, occupant.token.generation):
            return await self._leave(loop, Did.UNCHANGED, occupant)
        return await self._replace(loop, Did.RESCHEDULED, occupant, _reseeded(occupant.token, new))

    async def _reseed_ready(self, loop: Loop, delivery: Delivery) -> Report:
        """A token that waits for a processor stays where it is; its schedule may be changed."""
        new = self._new_token(loop)
        try:
            token = decode(delivery.message, self._app.namespace)
        except MessageError:
            token = None  # the processor that gets it parks it
        if token is None:
            await delivery.requeue()
            return Report(loop, Did.UNCHANGED)
        same = same_seeding(new.generation, token.generation)
        ready = replace(token, schedule=new.schedule, args=new.args, generation=new.generation)
        if same:
            ready = token
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

    async def _status(self, loop: Loop) -> Status:
        queue = await self._broker.depth(self._queue_of(loop))
        if queue is None:
            return Status(loop, Where.UNSEEDED, 0)
        for _ in range(LOOKS):
            try:
                token = await self._hatchery.look(loop.id)
            except QueueNotFound:
                return Status(loop, Where.UNSEEDED, queue.consumers)
            if token is not None and token.state is not State.GUARD:
                return _waiting(loop, token, queue.consumers)
            queue = await self._broker.depth(self._queue_of(loop)) or queue
            if queue.ready:
                return Status(loop, Where.READY, queue.consumers)
            await asyncio.sleep(LOOK_PAUSE)
        where = Where.RUNNING if queue.consumers else Where.LOST
        return Status(loop, where, queue.consumers)

    async def _take(self, loop: Loop) -> Occupant | None:
        try:
            for _ in range(LOOKS):
                # Somebody who looks holds the token for a moment.
                if (occupant := await self._hatchery.take(loop.id)) is not None:
                    return occupant
                await asyncio.sleep(LOOK_PAUSE)
            return None
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
        now = self._clock.now()
        first = loop.schedule.next_after(now)
        return Token(
            loop=loop.id,
            schedule=loop.schedule,
            generation=generation_of(loop.schedule, loop.args, now),
            scheduled_at=first,
            due_at=jittered(loop.schedule, str(loop), first),
            args=loop.args,
        )

    async def _guard(self, loop: Loop) -> Token:
        """A token that is due when a run, if there is one, must have ended."""
        depth = await self._broker.depth(self._queue_of(loop))
        # Without a consumer, only a processor that is stopping can still have a run.
        stopping = depth is not None and not depth.consumers
        # Otherwise the broker takes back what a processor has not acked within its time.
        grace = self._app.settings.shutdown_grace
        longest = grace if stopping else max(loop.task.timeout, CONSUMER_TIMEOUT)
        token = self._new_token(loop)
        due_at = max(token.due_at, self._clock.now() + longest + GUARD_GRACE)
        return replace(token, state=State.GUARD, due_at=due_at)

    def _rescheduled(self, token: Token) -> Token:
        tick = token.schedule.next_after(self._clock.now())
        due_at = jittered(token.schedule, str(token.loop), tick)
        return replace(token, state=State.ARMED, reason=None, scheduled_at=tick, due_at=due_at)

    def _queue_of(self, loop: Loop) -> str:
        return self._app.names.processor_queue(loop.id.task)


def _reseeded(token: Token, new: Token) -> Token:
    """The token with a new schedule and its first tick; what it has got to stays."""
    return replace(
        new,
        due_at=token.due_at if token.state is State.GUARD else new.due_at,
        state=token.state,
        seq=token.seq,
        attempt=token.attempt,
        carry=token.carry,
        reason=token.reason,
        previous_at=token.previous_at,
        last=token.last,
    )


def _waiting(loop: Loop, token: Token, processors: int) -> Status:
    paused = token.state is State.PAUSED
    return Status(
        loop,
        Where.PAUSED if paused else Where.WAITING,
        processors,
        due_at=None if paused else token.due_at,
        seq=token.seq,
        attempt=token.attempt,
        reason=token.reason,
        last=token.last,
    )
