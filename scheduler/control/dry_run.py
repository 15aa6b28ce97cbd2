"""What a seed would do, without doing it."""

from scheduler.brokers.contract import Broker
from scheduler.control.new_tokens import first_token
from scheduler.control.reports import Did, Report
from scheduler.protocol.tokens import same_seeding
from scheduler.queues.hatchery import Hatchery
from scheduler.tasks.loops import Loop
from scheduler.tasks.registry import App
from scheduler.timing.clock import Clock


class DryRun:
    """Looks at the slots of an app's loops, as a seed does, and changes nothing."""

    def __init__(self, app: App, broker: Broker, clock: Clock, hatchery: Hatchery) -> None:
        self._app = app
        self._broker = broker
        self._clock = clock
        self._hatchery = hatchery

    async def plan(self) -> list[Report]:
        """What `seed` would do, without doing it."""
        return [await self._plan(loop) for loop in self._app.loops.values()]

    async def _plan(self, loop: Loop) -> Report:
        if await self._broker.depth(self._app.names.hatchery(loop.id)) is None:
            return Report(loop, Did.CREATED, first_token(loop, self._clock.now()))
        token = await self._hatchery.look(loop.id)
        if token is None:
            return Report(loop, Did.RUNNING)
        same = same_seeding(token.generation, first_token(loop, self._clock.now()).generation)
        return Report(loop, Did.UNCHANGED if same else Did.RESCHEDULED, token)
