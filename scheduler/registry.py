"""What an app has registered, as the parts that serve it see it."""

from collections.abc import Mapping
from typing import Protocol

from scheduler.events import EventStream
from scheduler.messages import LoopId
from scheduler.roster import Listed
from scheduler.settings import Settings
from scheduler.tasks import SUPERVISION, Loop, TaskSpec, absent
from scheduler.topology import Names, Topology, hatchery


class App(Protocol):
    """What the other parts need to know of an app."""

    namespace: str
    names: Names
    events: EventStream

    @property
    def settings(self) -> Settings: ...

    @property
    def tasks(self) -> Mapping[str, TaskSpec]: ...

    @property
    def loops(self) -> Mapping[LoopId, Loop]: ...

    @property
    def supervision(self) -> Loop: ...

    def topology(self) -> Topology: ...


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
