"""Which loops there are: those of the code, the keyed ones, and those that only the broker has."""

from collections.abc import Mapping
from contextlib import suppress

from scheduler.errors import QueueNotFound, UnknownLoop
from scheduler.protocol.tokens import LoopId
from scheduler.protocol.topology import Topology, hatchery
from scheduler.queues.roster import Listed, Roster
from scheduler.tasks.loops import Loop, absent
from scheduler.tasks.registry import App
from scheduler.tasks.tasks import SUPERVISION, no_such


def hatchery_of(app: App, loop: LoopId) -> Topology:
    """What one loop of an app needs in the broker."""
    return hatchery(app.namespace, loop, app.settings.queue_type)


def loops_of(app: App, listed: Mapping[LoopId, Listed]) -> list[Loop]:
    """The loops of the code, and the keyed ones that its tasks were given."""
    keyed = [
        Loop(each.loop, app.tasks[each.loop.task], each.schedule, each.args)
        for each in listed.values()
        if each.loop.key and each.loop.task in app.tasks
    ]
    return [*app.loops.values(), *keyed]


def orphans_of(app: App, listed: Mapping[LoopId, Listed]) -> list[Loop]:
    """The listed loops that this code does not have."""
    known = {SUPERVISION, *(loop.id for loop in loops_of(app, listed))}
    return [
        Loop(each.loop, absent(each.loop.task), each.schedule, each.args)
        for each in listed.values()
        if each.loop not in known
    ]


class Loops:
    """The loops of an app, as its code and the roster have them."""

    def __init__(self, app: App, roster: Roster) -> None:
        self._app = app
        self._roster = roster

    async def all(self) -> list[Loop]:
        """The loops of the code, and the keyed ones of its tasks.

        Raises:
            QueueNotFound: nothing was seeded.
        """
        return loops_of(self._app, await self._roster.read())

    async def orphans(self) -> list[Loop]:
        """The loops in the broker that this code does not have.

        Raises:
            QueueNotFound: nothing was seeded.
        """
        return orphans_of(self._app, await self._roster.read())

    async def find(self, name: str) -> Loop:
        """The loop of this name, in the code or in the broker.

        Raises:
            UnknownLoop: there is none; the message names the nearest.
        """
        known = {str(loop): loop for loop in self._app.loops.values()}
        if name not in known:
            with suppress(QueueNotFound):
                listed = await self._roster.read()
                others = (*loops_of(self._app, listed), *orphans_of(self._app, listed))
                known |= {str(loop): loop for loop in others}
        if name not in known:
            raise UnknownLoop(no_such("loop", name, known))
        return known[name]
