"""End loops on behalf of their runs: the journal hears of it, then the roster."""

from scheduler.brokers.contract import AS_LONG_AS_IT_TAKES, Delivery
from scheduler.control.removal import Endings
from scheduler.processor.publishing import PatientPublisher
from scheduler.protocol.tokens import Token
from scheduler.queues.timers import Timers


class Ends:
    """Ends the loops that the runs of a processor have paused or finished."""

    def __init__(self, timers: Timers, endings: Endings, publisher: PatientPublisher) -> None:
        self._timers = timers
        self._endings = endings
        self._publisher = publisher

    async def rest(self, delivery: Delivery, token: Token) -> None:
        """Publish a token that waits nowhere, and enter how its loop has ended.

        Raises:
            DeliveryLost, BrokerError: it may not be known.
        """
        await self._publisher.insist(
            delivery, lambda: self._timers.tell(token, timeout=AS_LONG_AS_IT_TAKES)
        )
        await self.enter(delivery, token)

    async def enter(self, delivery: Delivery, token: Token) -> None:
        """Enter in the roster how a loop has ended, if it has; it may be done again."""
        if token.rests:
            await self._publisher.insist(delivery, lambda: self._endings.enter(token))
