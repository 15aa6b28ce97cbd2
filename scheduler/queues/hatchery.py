"""The hatchery queue of a loop: a register with one slot and a timer.

`merge` decides, without I/O, which of two tokens of a loop goes on; `Hatchery` makes it so.
"""

import asyncio
import functools
from collections.abc import AsyncGenerator, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta

from scheduler.brokers.contract import DEFAULT_TIMEOUT, Broker, Delivery
from scheduler.errors import DeliveryLost, MessageError, Rejected
from scheduler.protocol.tokens import Act, LoopId, State, Token, decode, encode, same_seeding
from scheduler.protocol.topology import Names, routing_key
from scheduler.queues.failed import FailedQueues, Reason
from scheduler.timing.backoff import backoff
from scheduler.timing.clock import Clock

# A token on its way from the slot to a worker is in neither queue for a moment.
LOOKS = 10
LOOK_PAUSE = 0.02
FIRST_PAUSE, LAST_PAUSE = timedelta(milliseconds=2), timedelta(milliseconds=250)
PATIENCE = timedelta(seconds=10)
LONGEST_WAIT = timedelta(days=3650)  # RabbitMQ refuses longer ones


def merge(mine: Token, occupant: Token) -> Token:
    """Which token goes on, when `mine` finds the slot taken by `occupant`.

    The one that has come further does; of two that have come equally far, the occupant. A guard
    only stood in for me. From the other one it takes

    - the schedule, if that was seeded later;
    - the pause, if it is paused: a loop is resumed by an operator, never by a run.
    """
    if mine.progress > occupant.progress or occupant.state is State.GUARD:
        ahead, behind = mine, occupant
    else:
        ahead, behind = occupant, mine
    merged = _reseeded(ahead, behind) if _seeded_later(behind, ahead) else ahead
    if behind.state is State.PAUSED:
        return replace(merged, state=State.PAUSED, reason=behind.reason)
    return merged


def _seeded_later(token: Token, other: Token) -> bool:
    # Seeded again with the same schedule, it brings nothing new.
    same = same_seeding(token.generation, other.generation)
    return token.generation > other.generation and not same


def _reseeded(token: Token, seeded: Token) -> Token:
    return replace(
        token,
        schedule=seeded.schedule,
        args=seeded.args,
        generation=seeded.generation,
        scheduled_at=seeded.scheduled_at,
        # A guard is due late, in case a run goes on; the schedule it brings is not.
        due_at=seeded.scheduled_at if seeded.state is State.GUARD else seeded.due_at,
    )


def superseded(token: Token, occupant: Token | None) -> bool:
    """Whether the slot shows that this token has been settled before."""
    if occupant is None or occupant.state is State.GUARD:
        return False
    return occupant.progress > token.progress


@dataclass(frozen=True, slots=True)
class Occupant:
    """A token taken out of the slot, to be acked or put back."""

    token: Token
    delivery: Delivery


@asynccontextmanager
async def left_in_place(occupants: Collection[Occupant]) -> AsyncGenerator[None]:
    """On the way out with an error, put back what was taken."""
    try:
        yield
    except BaseException:
        for occupant in occupants:
            with suppress(DeliveryLost):
                await occupant.delivery.requeue()
        raise


class Hatchery:
    """The hatchery queues of a namespace."""

    def __init__(self, broker: Broker, names: Names, clock: Clock, failed: FailedQueues) -> None:
        self._broker = broker
        self._names = names
        self._clock = clock
        self._failed = failed

    def mutex(self, patience: timedelta) -> AbstractAsyncContextManager[None]:
        """One at a time creates tokens in the namespace; the others wait for so long.

        Raises:
            Locked: somebody else has it all the while.
        """
        return self._broker.mutex(self._names.lock, timeout=patience)

    async def put(
        self, token: Token, *, occupied: bool = False, timeout: timedelta = DEFAULT_TIMEOUT
    ) -> Token:
        """Put a token into the slot of its loop, confirmed; returns the token that waits there now.

        If the slot is taken, the two are merged. A quorum queue may reject for some milliseconds
        after its token left, until that is confirmed: then the put is tried again. Where the slot
        does not exist, the token is in the journal, from which the loop is put again.

        Args:
            occupied: whether the slot was looked at, and was taken. For some milliseconds after a
                look, a quorum queue takes another token: what waits there is taken out first.

        Raises:
            Unroutable: neither the slot nor the journal exists.
            Rejected: the slot kept rejecting though nothing was in it.
            BrokerError: the token may not have been put.
        """
        held: list[Occupant] = []
        async with left_in_place(held):
            winner = await self._contend(token, held, occupied, timeout)
            if held and winner is held[-1].token:
                await held.pop().delivery.requeue()
            while held:
                await held.pop().delivery.ack()
        return winner

    async def look(self, loop: LoopId) -> Token | None:
        """The token that waits in the slot, left where it is.

        Raises:
            QueueNotFound: the hatchery queue does not exist.
        """
        occupant = await self.take(loop)
        return None if occupant is None else await self.leave(occupant)

    async def leave(self, occupant: Occupant) -> Token:
        """Put the one in hand back, as it was."""
        await occupant.delivery.requeue()
        return occupant.token

    async def replace(self, occupant: Occupant, token: Token) -> Token:
        """Put another token in place of the one in hand: publish, confirm, then ack."""
        async with left_in_place([occupant]):
            winner = await self.put(token)
        await occupant.delivery.ack()
        return winner

    async def offer(self, token: Token, *, timeout: timedelta = DEFAULT_TIMEOUT) -> bool:
        """Put a token if the slot is free; says whether it was."""
        try:
            await self._publish(token, timeout)
        except Rejected:
            return False
        return True

    async def take_all(self, loop: LoopId) -> list[Occupant]:
        """Take every token out of the slot: there may be more, where publishers raced.

        Raises:
            QueueNotFound: the hatchery queue does not exist.
        """
        occupants: list[Occupant] = []
        async with left_in_place(occupants):
            while (occupant := await self.take(loop)) is not None:
                occupants.append(occupant)
        return occupants

    async def unite(self, occupants: list[Occupant], act: Act) -> None:
        """Put one token in place of those in hand: publish, confirm, then ack."""
        winner = functools.reduce(merge, [occupant.token for occupant in occupants])
        async with left_in_place(occupants):
            await self.put(replace(winner, act=act))
        for occupant in occupants:
            await occupant.delivery.ack()

    async def find(self, loop: LoopId) -> Occupant | None:
        """Take the token out of the slot, though somebody who looks holds it for a moment.

        Raises:
            QueueNotFound: the hatchery queue does not exist.
        """
        for _ in range(LOOKS):
            if (occupant := await self.take(loop)) is not None:
                return occupant
            await asyncio.sleep(LOOK_PAUSE)
        return None

    async def take(self, loop: LoopId) -> Occupant | None:
        """Take the token out of the slot. What is not a token is parked.

        Raises:
            QueueNotFound: the hatchery queue does not exist.
        """
        queue = self._names.hatchery(loop)
        while delivery := await self._broker.get(queue):
            try:
                return Occupant(decode(delivery.message, self._names.namespace), delivery)
            except MessageError as error:
                await self._failed.park_taken(delivery, Reason.UNDECODABLE, error)
        await self._broker.wake(queue)
        return None

    async def _contend(
        self, token: Token, held: list[Occupant], occupied: bool, timeout: timedelta
    ) -> Token:
        """Publish until something waits in the slot: ours, or what merging with occupants gave."""
        deadline = self._clock.now() + PATIENCE
        pauses = backoff(FIRST_PAUSE, LAST_PAUSE, jitter=0)
        while True:
            if not occupied and await self.offer(token, timeout=timeout):
                return token
            occupied = False
            occupant = await self.take(token.loop)
            if occupant is not None:
                held.append(occupant)
                token = merge(token, occupant.token)
                if token is occupant.token:
                    return token
            elif self._clock.now() >= deadline:
                raise Rejected(
                    f"The hatchery queue of {token.loop} takes no token, though none waits in it: "
                    "one that has left it is still on its way to a processor. Try again later."
                )
            else:
                await asyncio.sleep(next(pauses))

    async def _publish(self, token: Token, timeout: timedelta) -> None:
        waits = token.state is not State.PAUSED
        wait = min(max(token.due_at - self._clock.now(), timedelta(0)), LONGEST_WAIT)
        delay = wait if waits else None
        await self._broker.publish(
            encode(token, self._names.namespace, expiration=delay),
            exchange=self._names.scheduler,
            routing_key=routing_key(token.loop),
            timeout=timeout,
        )
