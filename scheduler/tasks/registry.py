"""What an app has registered, as the parts that serve it see it."""

from collections.abc import Mapping
from typing import Protocol

from scheduler.events import EventStream
from scheduler.protocol.tokens import LoopId
from scheduler.protocol.topology import Names, Topology
from scheduler.settings import Settings
from scheduler.tasks.loops import Loop
from scheduler.tasks.tasks import TaskSpec


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
