"""The hatchery queue of a loop: a register with one slot and a timer."""

import asyncio
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from datetime import timedelta

from scheduler.brokers.contract import DEFAULT_TIMEOUT, Broker, Delivery
from scheduler.errors import MessageError, Rejected
from scheduler.protocol.epochs import Refused, refused
from scheduler.protocol.tokens import LoopId, Token, decode, encode
from scheduler.protocol.topology import Names, routing_key
from scheduler.queues.failed import FailedQueues, Reason
from scheduler.timing.backoff import backoff
from scheduler.timing.clock import Clock
from scheduler.timing.lead import Lead

# A token on its way from the slot to a worker is in neither queue for a moment.
LOOKS = 10
LOOK_PAUSE = 0.02
FIRST_PAUSE, LAST_PAUSE = timedelta(milliseconds=2), timedelta(milliseconds=250)
PATIENCE = timedelta(seconds=10)
AT_ONCE = timedelta(0)
LONGEST_WAIT = timedelta(days=3650)  # RabbitMQ refuses longer ones


@dataclass(frozen=True, slots=True)
class Occupant:
    """A token taken out of the slot, to be acked or put back."""

    token: Token
    delivery: Delivery


class Hatchery:
    """The hatchery queues of a namespace."""

    def __init__(
        self, broker: Broker, names: Names, clock: Clock, failed: FailedQueues, lead: Lead
    ) -> None:
        self._broker = broker
        self._lead = lead
        self._names = names
        self._clock = clock
        self._failed = failed

    def mutex(self, patience: timedelta) -> AbstractAsyncContextManager[object]:
        """One at a time creates tokens in the namespace; the others wait for so long.

        Raises:
            Locked: somebody else has it all the while.
        """
        return self._broker.mutex(self._names.lock, timeout=patience)

    async def put(self, token: Token, *, timeout: timedelta | None = DEFAULT_TIMEOUT) -> Token:
        """Put a token into the slot of its loop, confirmed; returns the token that waits there now.

        What stands in its way is taken out; what is as far as it, or farther, is left (R2 of
        `scheduler.protocol.epochs`). A quorum queue may reject for some milliseconds after its
        token left, until that is confirmed: then the put is tried again. Where the slot does not
        exist, the token is in the journal, from which the loop is put again.

        Raises:
            Unroutable: neither the slot nor the journal exists.
            Rejected: the slot kept rejecting though nothing was in it.
            BrokerError: the token may not have been put.
        """
        patience = self._patience(token)
        while not await self._offered(token, timeout):
            occupant = await self.take(token.loop)
            if occupant is None:
                await asyncio.sleep(next(patience))
                continue
            match refused(token.position, occupant.token.position):
                case Refused.REPLACE:
                    await occupant.delivery.ack()
                case Refused.LEAVE:
                    return await self.leave(occupant)
        return token

    async def put_first(self, token: Token, *, at_once: bool) -> None:
        """Put the token with which an epoch begins, confirmed, whatever was in the slot.

        Args:
            at_once: it hatches now, whenever it is due.

        Raises:
            Unroutable: neither the slot nor the journal exists.
            Rejected: the slot kept rejecting though nothing was in it.
        """
        patience = self._patience(token)
        while not await self.offer(token, at_once=at_once):
            if await self.clear(token.loop):
                token = replace(token, known=False)  # that was put meanwhile: the journal tells it
            else:
                await asyncio.sleep(next(patience))

    async def offer(
        self, token: Token, *, at_once: bool = False, timeout: timedelta | None = DEFAULT_TIMEOUT
    ) -> bool:
        """Put a token if the slot is free; says whether it was."""
        due_in = AT_ONCE if at_once else max(token.due_at - self._clock.now(), AT_ONCE)
        lead = min(self._lead.length, due_in)
        wait = None if token.rests else min(due_in - lead, LONGEST_WAIT)
        try:
            await self._broker.publish(
                encode(token, self._names.namespace, expiration=wait, lead=lead),
                exchange=self._names.scheduler,
                routing_key=routing_key(token.loop),
                timeout=timeout,
            )
        except Rejected:
            return False
        return True

    async def _offered(self, token: Token, timeout: timedelta | None) -> bool:
        """The same, tried again once: most often, what left the slot is still on its way."""
        if await self.offer(token, timeout=timeout):
            return True
        await asyncio.sleep(FIRST_PAUSE.total_seconds())
        return await self.offer(token, timeout=timeout)

    async def clear(self, loop: LoopId, *, is_new: bool = False) -> list[Token]:
        """Take out all that waits in the slot; returns it.

        Args:
            is_new: nothing was ever put into it.

        Raises:
            QueueNotFound: the hatchery queue does not exist.
        """
        found: list[Token] = []
        while (occupant := await self.take(loop, is_new=is_new)) is not None:
            found.append(occupant.token)
            await occupant.delivery.ack()
        return found

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

    async def find(self, loop: LoopId) -> Token | None:
        """The token that waits in the slot, though somebody who looks holds it for a moment.

        Raises:
            QueueNotFound: the hatchery queue does not exist.
        """
        for _ in range(LOOKS):
            if (token := await self.look(loop)) is not None:
                return token
            await asyncio.sleep(LOOK_PAUSE)
        return None

    async def take(self, loop: LoopId, *, is_new: bool = False) -> Occupant | None:
        """Take the token out of the slot. What is not a token is parked.

        Raises:
            QueueNotFound: the hatchery queue does not exist.
            QueueUnresponsive: it does not answer.
        """
        queue = self._names.hatchery(loop)
        while delivery := await self._broker.get(queue, aside=True):
            try:
                return Occupant(decode(delivery.message, self._names.namespace), delivery)
            except MessageError as error:
                await self._failed.park_taken(delivery, Reason.UNDECODABLE, error)
        if not is_new:  # else nothing can be due
            await self._broker.wake(queue)
        return None

    def _patience(self, token: Token) -> Iterator[float]:
        """Seconds to wait before each further try."""
        deadline = self._clock.now() + PATIENCE
        for pause in backoff(FIRST_PAUSE, LAST_PAUSE, jitter=0):
            if self._clock.now() >= deadline:
                raise Rejected(
                    f"The hatchery queue of {token.loop} takes no token, though none waits in it: "
                    "one that has left it is still on its way to a processor. Try again later."
                )
            yield pause
