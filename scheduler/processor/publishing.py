"""Publishing what must not be lost: again and again, for as long as its delivery is ours."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta

from scheduler.brokers.contract import Delivery
from scheduler.errors import BrokerError, DeliveryLost
from scheduler.events import Emit, SettlementDelayed
from scheduler.processor.shutdown import Shutdown
from scheduler.timing.backoff import backoff

REPORT_AFTER = timedelta(seconds=30)
SILENCE = "the broker does not confirm: it may be blocked by a memory or disk alarm."
FIRST_PAUSE, LONGEST_PAUSE = timedelta(milliseconds=50), timedelta(seconds=5)


class PatientPublisher:
    """Publishes on behalf of deliveries that wait for it to be acked."""

    def __init__(self, shutdown: Shutdown, emit: Emit) -> None:
        self._shutdown = shutdown
        self._emit = emit
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
        """Publish until it is confirmed, for as long as the delivery is ours.

        Args:
            was_taken: asked before it is published again: the broker may have taken what it did not
                confirm (R3p).

        Raises:
            DeliveryLost: the broker has given the message to somebody else.
            BrokerError: not confirmed yet, and told to stop waiting.
        """
        is_again = False
        for pause in backoff(FIRST_PAUSE, LONGEST_PAUSE, jitter=0):
            if delivery.lost.done():
                raise DeliveryLost
            try:
                if not (is_again and was_taken is not None and await was_taken()):
                    await self._confirmed(delivery, publish)
                return
            except DeliveryLost:
                raise
            except BrokerError as error:
                if delivery.lost.done():
                    raise DeliveryLost from None
                if self._shutdown.aborting:
                    raise
                is_again, next_in = True, timedelta(seconds=pause)
                self._emit(SettlementDelayed(delivery.routing_key, str(error), next_in))
            await asyncio.wait([delivery.lost], timeout=pause)

    async def _confirmed(
        self, delivery: Delivery, publish: Callable[[], Awaitable[object]]
    ) -> None:
        """Wait as long as it takes: what is published twice may be taken twice."""
        confirmation = Confirmation(delivery, at_once=self._shutdown.aborting)
        self._waiting[confirmation] = None
        if self._reporting is None:
            self._report()
        try:
            async with confirmation.awaited:
                await publish()
        except TimeoutError:
            raise DeliveryLost from None
        finally:
            del self._waiting[confirmation]
            confirmation.end()

    def _report(self) -> None:
        """Tell of what has not been confirmed for long, as long as anything is waited for."""
        loop, self._reporting = asyncio.get_running_loop(), None
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
    """What a broker is asked to confirm, for as long as that is waited for.

    Attributes:
        since: when it was told of last, by the event loop's time.
    """

    __slots__ = ("_loop", "awaited", "delivery", "since")

    def __init__(self, delivery: Delivery, *, at_once: bool) -> None:
        self.delivery = delivery
        self.awaited = asyncio.timeout(0 if at_once else None)
        self._loop = asyncio.get_running_loop()
        self.since = self._loop.time()
        delivery.lost.add_done_callback(self.give_up)

    def give_up(self, _: object = None) -> None:
        """Wait no longer."""
        with suppress(RuntimeError):  # it has just ended
            self.awaited.reschedule(self._loop.time())

    def end(self) -> None:
        """Take note that it is waited for no longer."""
        self.delivery.lost.remove_done_callback(self.give_up)
