"""How the messages of a task's queue come to a processor: never before they could be run.

===========  ====================================================================================
the task     its messages
===========  ====================================================================================
has neither  come as fast as they are acked, as many at once as may run
rate=        are fetched one by one, each when it is its turn
ordered=     come one by one; where one has to wait, in front of the others, all are left in the
             broker until its time comes, and nobody has any of them in hand
===========  ====================================================================================

A message that waits in hand is taken back by the broker when its consumer_timeout is over, with all
others of its channel (https://www.rabbitmq.com/docs/consumers#acknowledgement-timeout).
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, TypeVar

from scheduler.brokers.contract import Broker, Consumer, Delivery
from scheduler.errors import BrokerError, QueueNotFound
from scheduler.processor.publishing import FIRST_PAUSE, LONGEST_PAUSE
from scheduler.processor.shutdown import Shutdown
from scheduler.timing.backoff import backoff
from scheduler.timing.clock import Clock
from scheduler.timing.rates import Pacer

R = TypeVar("R")

# Takes a delivery to its end; says before which moment the message is not to be taken again.
Handle = Callable[[Delivery], "asyncio.Task[datetime | None]"]


class Intake(Protocol):
    """What takes the messages of one queue. It ends by itself when its processor stops."""

    @property
    def listening(self) -> bool:
        """Whether a consumer of ours should be known to the broker now."""
        ...

    @property
    def active(self) -> bool:
        """Whether messages come, or will when it is their turn, as far as this end knows."""
        ...

    async def open(self) -> None:
        """Take messages from now on.

        Raises:
            QueueNotFound: there is no such queue.
        """
        ...

    async def close(self) -> None:
        """Once the processor is stopping: wait until no more messages are handed over."""
        ...

    async def ended(self) -> None:
        """Once all that was handed over is done with: wait until nothing is held any more."""
        ...


@dataclass(frozen=True, slots=True)
class Source:
    """A queue to take messages from, and what is done with each."""

    broker: Broker
    queue: str
    handle: Handle
    shutdown: Shutdown

    async def patiently(self, attempt: Callable[[], Awaitable[R]]) -> R | None:
        """Try it until the broker lets it be done; None: the processor stops."""
        for pause in backoff(FIRST_PAUSE, LONGEST_PAUSE):
            if self.shutdown.stopping:
                return None
            try:
                return await attempt()
            except BrokerError:
                await self.shutdown.sleep(pause)
        raise AssertionError("it goes on without end")

    def one_by_one(self, handler: Callable[[Delivery], None]) -> Awaitable[Consumer]:
        """Consume one message at a time."""
        return self.broker.consume(self.queue, handler, prefetch=1)


class Flow:
    """Has the broker deliver as many at once as may run."""

    def __init__(self, source: Source, prefetch: int) -> None:
        self._source = source
        self._prefetch = prefetch
        self._consumer: Consumer | None = None

    @property
    def listening(self) -> bool:
        return self._consumer is not None

    @property
    def active(self) -> bool:
        return self._consumer is not None and self._consumer.active

    async def open(self) -> None:
        self._consumer = await self._source.broker.consume(
            self._source.queue, self._receive, prefetch=self._prefetch
        )

    async def close(self) -> None:
        if self._consumer is not None:
            await self._consumer.cancel()

    async def ended(self) -> None: ...

    def _receive(self, delivery: Delivery) -> None:
        self._source.handle(delivery)


class Resting(ABC):
    """What does not consume all the time, and takes messages in a task of its own."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._consumer: Consumer | None = None
        self._taking: asyncio.Task[None] | None = None

    @property
    def listening(self) -> bool:
        return self._consumer is not None

    @property
    def active(self) -> bool:
        if self._taking is None or self._taking.done():
            return False
        return self._consumer is None or self._consumer.active

    def _begin(self) -> None:
        self._taking = asyncio.create_task(self._take(), name=f"take {self._source.queue}")

    @abstractmethod
    async def _take(self) -> None:
        """Take messages until the processor stops."""

    async def _until_over(self) -> None:
        if self._taking is not None:
            await asyncio.wait([self._taking])


class Paced(Resting):
    """Fetches a message when its turn has come, and not before.

    Args:
        concurrency: how many of them may be in hand.
    """

    def __init__(self, source: Source, pacer: Pacer, concurrency: int) -> None:
        super().__init__(source)
        self._pacer = pacer
        self._places = asyncio.Semaphore(concurrency)

    async def open(self) -> None:
        if await self._source.broker.depth(self._source.queue) is None:
            raise QueueNotFound(f"The queue {self._source.queue!r} does not exist.")
        self._begin()

    async def close(self) -> None:
        await self._until_over()

    async def ended(self) -> None: ...

    async def _take(self) -> None:
        while await self._source.shutdown.unless_begun(self._places.acquire()):
            await self._source.shutdown.sleep(self._pacer.wait)
            if (delivery := await self._source.patiently(self._fetched)) is None:
                return
            self._pacer.turn()
            self._source.handle(delivery).add_done_callback(lambda _: self._places.release())

    async def _fetched(self) -> Delivery | None:
        """The next message, as soon as there is one; None: the processor stops."""
        delivery = await self._source.broker.get(self._source.queue)
        return delivery or await self._next_to_come()

    async def _next_to_come(self) -> Delivery | None:
        come: asyncio.Queue[Delivery] = asyncio.Queue()
        self._consumer = await self._source.one_by_one(come.put_nowait)
        try:
            delivery = await self._source.shutdown.unless_begun(come.get())
            # One that was lost may have come again.
            while delivery is not None and not come.empty():
                delivery = come.get_nowait()
            await (self._consumer.leave() if delivery is None else self._consumer.cancel())
            return delivery
        finally:
            self._consumer = None


class InOrder(Resting):
    """Takes the messages of all processors one by one, each when the one before it is done.

    Who stops consuming with a message in hand lets somebody else have the one behind it: so it
    leaves, and with that gives back all that it was delivered, at once.

    Args:
        pacer: None: as fast as they are done.
    """

    def __init__(self, source: Source, pacer: Pacer | None, clock: Clock) -> None:
        super().__init__(source)
        self._pacer = pacer
        self._clock = clock
        self._come: asyncio.Queue[Delivery] = asyncio.Queue()

    async def open(self) -> None:
        self._consumer = await self._consume()
        self._begin()

    async def close(self) -> None:
        """What still comes is left where it was, after the run of the one before it."""

    async def ended(self) -> None:
        await self._until_over()

    def _consume(self) -> Awaitable[Consumer]:
        return self._source.one_by_one(self._come.put_nowait)

    async def _take(self) -> None:
        shutdown = self._source.shutdown
        while (delivery := await shutdown.unless_begun(self._come.get())) is not None:
            if self._pacer is not None:
                self._pacer.turn()
            rest = self._rest(await self._source.handle(delivery))
            if rest > 0:
                await self._leave()
                await shutdown.sleep(rest)
                self._consumer = await self._source.patiently(self._consume)
        await self._leave()

    def _rest(self, not_before: datetime | None) -> float:
        """Seconds until the message at the head may be taken."""
        turn = self._pacer.wait if self._pacer is not None else 0.0
        if not_before is None:
            return turn
        return max(turn, (not_before - self._clock.now()).total_seconds())

    async def _leave(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await consumer.leave()
        self._come = asyncio.Queue()
