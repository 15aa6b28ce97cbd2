"""Which loops there are: those of the code, the keyed ones, and those that only the broker has."""

from collections.abc import Mapping

from scheduler.protocol.messages import LoopId
from scheduler.protocol.topology import Topology, hatchery
from scheduler.queues.roster import Listed
from scheduler.tasks.registry import App
from scheduler.tasks.tasks import SUPERVISION, Loop, absent


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
