"""Publish messages that must not be lost, until confirmed or until their delivery is lost."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta

from scheduler.brokers.contract import Delivery
from scheduler.errors import BrokerError, DeliveryLost
from scheduler.events import Emit, SettlementDelayed
from scheduler.processor.shutdown import Shutdown
from scheduler.timing.pacing import backoff

REPORT_AFTER = timedelta(seconds=30)
SILENCE = "the broker does not confirm: it may be blocked by a memory or disk alarm."
FIRST_PAUSE, LONGEST_PAUSE = timedelta(milliseconds=50), timedelta(seconds=5)


class PatientPublisher:
    """Publish for deliveries that wait for it to be acked."""

    def __init__(self, shutdown: Shutdown, emit: Emit) -> None:
        self._shutdown = shutdown
        self._emit = emit
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[Confirmation, None] = {}
        self._reporting: asyncio.TimerHandle | None = None
        shutdown.aborted.add_done_callback(self._give_up_all)

    async def insist(
        self,
        delivery: Delivery,
        publish: Callable[[], Awaitable[object]],
        *,
        was_taken: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        """Publish until it is confirmed, or the delivery is lost.

        Args:
            was_taken: asked before it is published again: the broker may have queued an unconfirmed
                message (R3p).

        Raises:
            DeliveryLost: the broker has redelivered the message.
            BrokerError: not confirmed yet, and the wait was cancelled.
        """
        pauses: Iterator[float] | None = None
        while True:
            if delivery.lost.done():
                raise DeliveryLost
            try:
                if pauses is None or was_taken is None or not await was_taken():
                    await self._confirmed(delivery, publish)
                return
            except DeliveryLost:
                raise
            except BrokerError as error:
                if delivery.lost.done():
                    raise DeliveryLost from None
                if self._shutdown.aborted.done():
                    raise
                pauses = pauses or backoff(FIRST_PAUSE, LONGEST_PAUSE, jitter=0)
                pause, reason = next(pauses), str(error)
                next_in = timedelta(seconds=pause)
                self._emit(SettlementDelayed(delivery.routing_key, reason, next_in))
            await asyncio.wait([delivery.lost], timeout=pause)

    async def _confirmed(
        self, delivery: Delivery, publish: Callable[[], Awaitable[object]]
    ) -> None:
        """Wait without a limit: a message that is published twice may be queued twice."""
        confirmation = Confirmation(delivery, self._loop)
        self._waiting[confirmation] = None
        if self._reporting is None:
            self._report()
        delivery.lost.add_done_callback(confirmation.give_up)
        if self._shutdown.aborted.done():
            self._loop.call_soon(confirmation.give_up)
        try:
            await publish()
        except asyncio.CancelledError:
            if not confirmation.end():
                raise
            raise DeliveryLost from None
        finally:
            confirmation.end()
            delivery.lost.remove_done_callback(confirmation.give_up)
            del self._waiting[confirmation]

    def _report(self) -> None:
        """Report long unconfirmed messages, while there are any."""
        loop, self._reporting = self._loop, None
        while self._waiting:
            oldest = next(iter(self._waiting))
            if (report_at := oldest.since + REPORT_AFTER.total_seconds()) > loop.time():
                self._reporting = loop.call_at(report_at, self._report)
                return
            self._emit(SettlementDelayed(oldest.delivery.routing_key, SILENCE, REPORT_AFTER))
            del self._waiting[oldest]
            oldest.since = loop.time()
            self._waiting[oldest] = None

    def _give_up_all(self, _: object) -> None:
        for confirmation in self._waiting:
            confirmation.give_up()


class Confirmation:
    """Track a confirmation that the running task waits for.

    Attributes:
        since: when it was last reported, by the event loop's time.
    """

    __slots__ = ("_gave_up", "_task", "delivery", "since")

    def __init__(self, delivery: Delivery, loop: asyncio.AbstractEventLoop) -> None:
        self.delivery = delivery
        self.since = loop.time()
        self._task = asyncio.current_task(loop)
        self._gave_up = False

    def give_up(self, _: object = None) -> None:
        """Stop waiting: cancel the task, until it reacts."""
        if self._task is not None and not self._gave_up:
            self._gave_up = True
            self._task.cancel()

    def end(self) -> bool:
        """End the wait; return whether only `give_up` has cancelled its task."""
        task, self._task = self._task, None
        return task is not None and self._gave_up and not task.uncancel()
