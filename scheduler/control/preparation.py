"""Seeing to it that everything is there, before a processor begins to consume."""

from collections.abc import Iterable
from contextlib import suppress

from scheduler.brokers.contract import Broker
from scheduler.control.declaring import Declaring
from scheduler.control.fit import Fit
from scheduler.control.seeding import Seeding
from scheduler.errors import AccessRefused, BrokerUnavailable, QueueNotFound
from scheduler.protocol.hatchery import timers
from scheduler.tasks.registry import App
from scheduler.tasks.tasks import TaskSpec


class Preparation:
    """Prepares a namespace for a processor."""

    def __init__(
        self, app: App, broker: Broker, declaring: Declaring, seeding: Seeding, fit: Fit
    ) -> None:
        self._app = app
        self._broker = broker
        self._declaring = declaring
        self._seeding = seeding
        self._fit = fit

    async def prepare(self, tasks: Iterable[TaskSpec]) -> None:
        """See to it that everything that a processor of these tasks needs is there.

        Raises:
            QueueNotFound: something is not, and we may not declare it.
            AccessRefused: this user may not even look (RabbitMQ 4.3 refuses that).
            UsageError: the namespace is that of another app, or a queue is for other code.
        """
        names, tasks = self._app.names, list(tasks)
        needed = [names.roll_call, names.roster, names.journal, names.presence]
        needed += [names.processor_queue(task.name) for task in tasks]
        needed += [names.timer(timer) for timer in timers()]
        while True:
            with suppress(BrokerUnavailable):  # a connection that goes comes back
                gone = await self._declaring.absent(needed)
                if not gone:
                    return await self._fit.require(task.name for task in tasks)
                await self._fit.require_app()
                await self._adopt(gone[0])

    async def _adopt(self, gone: str) -> None:
        try:
            await self._seeding.adopt()
        except AccessRefused:
            raise QueueNotFound(
                f"{gone!r} is not in {self._broker.address} yet, and this user may not declare it. "
                "Nothing was started; run `scheduler seed` once, then this again."
            ) from None
