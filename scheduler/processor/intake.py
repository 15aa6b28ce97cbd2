"""Receive the messages of a task's queue, none before it could be run.

===========  ====================================================================================
the task     its messages
===========  ====================================================================================
has neither  arrive as fast as they are acked, as many at once as may run
rate=        are fetched one by one, each when it is its turn
ordered=     arrive one by one; if one has to wait, in front of the others, all stay in the broker
             until its time comes, unacked by any processor
===========  ====================================================================================

The broker requeues a message that stays unacked longer than its consumer_timeout, with all others
of its channel (https://www.rabbitmq.com/docs/consumers#acknowledgement-timeout).
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, TypeVar

from scheduler.brokers.contract import AS_LONG_AS_IT_TAKES, Broker, Consumer, Delivery
from scheduler.errors import BrokerError, QueueNotFound
from scheduler.processor.recognition import PatientPublisher
from scheduler.processor.runs import Run
from scheduler.processor.shutdown import Shutdown
from scheduler.protocol.calls import Call
from scheduler.protocol.messages import failed_deliveries
from scheduler.queues.heads import Head, Heads
from scheduler.timing.moments import Clock
from scheduler.timing.pacing import Pacer, backoff

R = TypeVar("R")

NOTED_WITHIN = timedelta(seconds=2)  # by a processor that stops: its broker may be blocked

# Handles a delivery; returns the moment before which the message must not be taken again.
Handle = Callable[[Delivery], "asyncio.Task[datetime | None]"]


@dataclass(eq=False)
class Intake(ABC):
    """Take the messages of one queue, from `open` until `close`, once.

    Attributes:
        closing: its first step is the closing of this intake.
        taking: the task that takes messages, if they are not pushed.
    """

    broker: Broker
    queue: str
    handle: Handle
    closing: Shutdown = field(default_factory=Shutdown, init=False)
    consumer: Consumer | None = field(default=None, init=False)
    taking: asyncio.Task[None] | None = field(default=None, init=False)

    @property
    def listening(self) -> bool:
        """Return whether the broker should know a consumer of this intake now."""
        return self.consumer is not None

    @property
    def active(self) -> bool:
        """Return whether messages arrive, or will in their turn, as far as this end knows."""
        if self.consumer is not None and not self.consumer.active:
            return False
        return self.listening if self.taking is None else not self.taking.done()

    @property
    def is_paced(self) -> bool:
        """Return whether the next message waits for nothing but its turn."""
        return False

    @abstractmethod
    async def open(self) -> None:
        """Take messages from now on.

        Raises:
            QueueNotFound: there is no such queue.
        """

    async def close(self) -> None:
        """Take no more messages; wait until no more are handled."""
        self.closing.begin()

    async def ended(self) -> None:
        """Wait until all handled messages are settled."""
        if self.taking is not None:
            await asyncio.wait([self.taking])

    def begin(self, taking: Coroutine[Any, Any, None]) -> None:
        self.taking = asyncio.create_task(taking, name=f"take {self.queue}")

    async def patiently(self, attempt: Callable[[], Awaitable[R]]) -> R | None:
        """Retry an operation until the broker allows it; None: this is being closed."""
        for pause in backoff():
            if self.closing.begun.done():
                return None
            try:
                return await attempt()
            except BrokerError:
                await self.closing.sleep(pause)
        raise AssertionError("the loop is endless")


@dataclass(eq=False, kw_only=True)
class ConcurrentIntake(Intake):
    """Receive as many messages at once as may run."""

    prefetch: int

    async def open(self) -> None:
        self.consumer = await self.broker.consume(self.queue, self.handle, prefetch=self.prefetch)

    async def close(self) -> None:
        await super().close()
        if self.consumer is not None:
            await self.consumer.cancel()


@dataclass(eq=False, kw_only=True)
class Paced(Intake):
    """Fetch each message when its turn has come, and not before.

    Attributes:
        places: how many more may be unacked.
        room: waits until one could run: with several that wait for that, all would run at once.
    """

    pacer: Pacer
    places: asyncio.Semaphore
    room: Callable[[], Coroutine[Any, Any, bool]]

    @property
    def is_paced(self) -> bool:
        return True

    async def open(self) -> None:
        if await self.broker.depth(self.queue) is None:
            raise QueueNotFound(f"The queue {self.queue!r} does not exist.")
        self.begin(self._take())

    async def close(self) -> None:
        await super().close()
        await self.ended()

    async def _take(self) -> None:
        while await self.closing.unless_begun(self.places.acquire()):
            if (delivery := await self.patiently(self._fetched)) is None:
                return
            self.handle(delivery).add_done_callback(lambda _: self.places.release())

    async def _fetched(self) -> Delivery | None:
        """Return the next message at its turn, once there is one; None: this is being closed."""
        while await self.closing.unless_begun(self.room()):
            async with self.pacer.line:
                await self.pacer.until_free(self.closing.begun)
                if self.closing.begun.done():
                    return None
                delivery = await self.broker.get(self.queue)
            if (delivery := delivery or await self._pushed()) is None:
                return None
            if not self.pacer.wait:
                self.pacer.turn()
                return delivery
            await delivery.requeue()  # another queue of the task has taken the turn
        return None

    async def _pushed(self) -> Delivery | None:
        come: asyncio.Queue[Delivery] = asyncio.Queue()
        self.consumer = await self.broker.consume(self.queue, come.put_nowait, prefetch=1)
        try:
            delivery = await self.closing.unless_begun(come.get())
            # A lost one may have been redelivered.
            while delivery is not None and not come.empty():
                delivery = come.get_nowait()
            await (self.consumer.leave() if delivery is None else self.consumer.cancel())
            return delivery
        finally:
            self.consumer = None


@dataclass(eq=False, kw_only=True)
class InOrder(Intake):
    """Take the messages of all processors one by one, each when the one before it is done.

    A consumer that only stops with an unacked message lets another consumer have the next one: so
    it leaves, which requeues all its deliveries at once; later deliveries stay in place.
    """

    pacer: Pacer | None
    clock: Clock

    def __post_init__(self) -> None:
        self._come: asyncio.Queue[Delivery] = asyncio.Queue()
        self._not_before: datetime | None = None

    @property
    def is_paced(self) -> bool:
        return self.pacer is not None and not self._delay

    async def open(self) -> None:
        self.consumer = await self._consume()
        self.begin(self._take())

    def _consume(self) -> Awaitable[Consumer]:
        return self.broker.consume(self.queue, self._come.put_nowait, prefetch=1)

    async def _take(self) -> None:
        await self._stay_away()  # the last turn may have been before a pause
        while (delivery := await self.closing.unless_begun(self._come.get())) is not None:
            if self.pacer is not None:
                self.pacer.turn()
            self._not_before = await self.handle(delivery)
            await self._stay_away()
        await self._leave()

    async def _stay_away(self) -> None:
        """Leave until the message at the head may be taken."""
        turn = self.pacer.wait if self.pacer is not None else 0.0
        if (seconds := max(turn, self._delay)) > 0:
            await self._leave()
            await self.closing.sleep(seconds)
            self.consumer = await self.patiently(self._consume)

    @property
    def _delay(self) -> float:
        """Return the seconds until the message at the head is due."""
        if self._not_before is None:
            return 0.0
        return max((self._not_before - self.clock.now()).total_seconds(), 0.0)

    async def _leave(self) -> None:
        consumer, self.consumer = self.consumer, None
        if consumer is not None:
            await consumer.leave()
        self._come = asyncio.Queue()


@dataclass(eq=False)
class Order:
    """Keep the notes on the heads of ordered queues; for other tasks, the broker's own count.

    The attempts, delays and crashes of the message at the head are noted in the broker, so that the
    next processor that gets it continues from there.
    """

    heads: Heads
    publisher: PatientPublisher

    async def resume(self, run: Run) -> None:
        """Restore the progress of a redelivered message."""
        message = run.delivery.message
        if not run.task.ordered:
            run.head = Head(begun=failed_deliveries(message))
            return
        run.head = head = await self.heads.of(run.task.name, message)
        if isinstance(call := run.subject, Call):
            first = call.first_failed_at or head.first_failed_at
            attempt = max(call.attempt, head.attempt)
            run.subject = replace(call, attempt=attempt, first_failed_at=first)

    async def begin(self, run: Run) -> None:
        """Note that a run of such a message begins: the next processor knows after a crash."""
        if run.task.ordered:
            await self._note(run, replace(run.head, begun=run.head.begun + 1))

    async def uncount(self, run: Run) -> None:
        """Note that a run was interrupted, or did not begin after all: it killed no processor."""
        if run.task.ordered:
            about = run.task.name, run.delivery.message, run.head
            with suppress(BrokerError):  # then it counts as begun
                await self.heads.note(*about, NOTED_WITHIN)

    async def wait(self, run: Run, delay: timedelta, failed_at: datetime) -> datetime:
        """Note that an attempt failed; return when the next one may begin."""
        assert isinstance(call := run.subject, Call)
        due_at, first = failed_at + delay, call.first_failed_at or failed_at
        await self._note(run, Head(call.attempt + 1, due_at=due_at, first_failed_at=first))
        return due_at

    async def end(self, run: Run) -> None:
        """Forget the note: the message is done."""
        task = run.task.name
        await self.publisher.insist(
            run.delivery, lambda: self.heads.forget(task, AS_LONG_AS_IT_TAKES)
        )

    async def _note(self, run: Run, head: Head) -> None:
        task, message = run.task.name, run.delivery.message
        await self.publisher.insist(
            run.delivery, lambda: self.heads.note(task, message, head, AS_LONG_AS_IT_TAKES)
        )
