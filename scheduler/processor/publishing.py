"""Publishing what must not be lost: again and again, for as long as its delivery is ours."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeVar

from scheduler.brokers.cancellation import cancelled
from scheduler.brokers.contract import Delivery
from scheduler.errors import BrokerError, DeliveryLost
from scheduler.events import Emit, SettlementDelayed
from scheduler.processor.shutdown import Shutdown
from scheduler.timing.backoff import backoff

REPORT_AFTER = timedelta(seconds=30)
SILENCE = "the broker does not confirm: it may be blocked by a memory or disk alarm."
R = TypeVar("R")
FIRST_PAUSE, LONGEST_PAUSE = timedelta(milliseconds=50), timedelta(seconds=5)


class PatientPublisher:
    """Publishes on behalf of deliveries that wait for it to be acked."""

    def __init__(self, shutdown: Shutdown, emit: Emit) -> None:
        self._shutdown = shutdown
        self._emit = emit

    async def insist(self, delivery: Delivery, publish: Callable[[], Awaitable[R]]) -> R:
        """Publish until it is confirmed, for as long as the delivery is ours.

        Raises:
            DeliveryLost: the broker has given the message to somebody else.
            BrokerError: not confirmed yet, and told to stop waiting.
        """
        for pause in backoff(FIRST_PAUSE, LONGEST_PAUSE, jitter=0):
            try:
                return await self._confirmed(delivery, asyncio.ensure_future(publish()))
            except DeliveryLost:
                raise
            except BrokerError as error:
                if delivery.lost.done():
                    raise DeliveryLost from None
                if self._shutdown.aborting:
                    raise
                next_in = timedelta(seconds=pause)
                self._emit(SettlementDelayed(delivery.routing_key, str(error), next_in))
            await asyncio.wait([delivery.lost], timeout=pause)
        raise AssertionError("it goes on without end")

    async def _confirmed(self, delivery: Delivery, sending: asyncio.Future[R]) -> R:
        """Wait as long as it takes: what is published twice may be taken twice."""
        watched = [sending, delivery.lost, self._shutdown.aborted]
        while not sending.done():
            await asyncio.wait(
                watched, timeout=REPORT_AFTER.total_seconds(), return_when=asyncio.FIRST_COMPLETED
            )
            if not sending.done():
                if delivery.lost.done() or self._shutdown.aborting:
                    await cancelled(sending)
                    raise DeliveryLost
                self._emit(SettlementDelayed(delivery.routing_key, SILENCE, REPORT_AFTER))
        return sending.result()
