"""Publish messages that must not be lost, until confirmed or until their delivery is lost."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from functools import partial

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
        self._waiting: dict[asyncio.Timeout, tuple[Delivery, float]] = {}
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
        limit = asyncio.timeout(None)
        give_up = partial(expire, limit)
        try:
            async with limit:
                self._waiting[limit] = delivery, self._loop.time()
                if self._reporting is None:
                    self._report()
                delivery.lost.add_done_callback(give_up)
                if self._shutdown.aborted.done():
                    give_up()
                await publish()
        except TimeoutError:
            if not limit.expired():
                raise
            raise DeliveryLost from None
        finally:
            delivery.lost.remove_done_callback(give_up)
            del self._waiting[limit]

    def _report(self) -> None:
        """Report long unconfirmed messages, while there are any."""
        loop, self._reporting = self._loop, None
        while self._waiting:
            limit, (delivery, since) = next(iter(self._waiting.items()))
            if (report_at := since + REPORT_AFTER.total_seconds()) > loop.time():
                self._reporting = loop.call_at(report_at, self._report)
                return
            self._emit(SettlementDelayed(delivery.routing_key, SILENCE, REPORT_AFTER))
            del self._waiting[limit]
            self._waiting[limit] = delivery, loop.time()

    def _give_up_all(self, _: object) -> None:
        for limit in self._waiting:
            expire(limit)


def expire(limit: asyncio.Timeout, _: object = None) -> None:
    """Cancel what waits inside the limit, unless it has ended."""
    with suppress(RuntimeError):
        limit.reschedule(0)
