"""Combine a task and a schedule; describe an app to the parts that serve it."""

import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from pydantic import ConfigDict

from scheduler.errors import InvalidArguments, RegistrationError, UsageError
from scheduler.protocol.messages import WIRE, Moment
from scheduler.protocol.tokens import LoopId
from scheduler.protocol.topology import Binding, Names, Topology, topology
from scheduler.tasks.retries import Policy, Retry
from scheduler.tasks.tasks import SUPERVISION, Arguments, TaskSpec
from scheduler.timing.durations import shown
from scheduler.timing.schedules import Every, Schedule
from scheduler.user_code import EventStream

if TYPE_CHECKING:
    from scheduler.settings import Settings


SUPERVISION_TIMEOUT = timedelta(minutes=3)  # reading a busy journal is slow


@dataclass(frozen=True, slots=True)
class Override:
    """Record who overrode the code's schedule of a loop, and when."""

    __pydantic_config__: ClassVar[ConfigDict] = WIRE

    by: str
    at: Moment


@dataclass(frozen=True, slots=True)
class Loop:
    """Combine a task and a schedule; `seed` makes a token of it.

    Attributes:
        override: who set its schedule; None: the code, or the program that started it.
        of_code: the schedule in the code, if the roster was read.
    """

    id: LoopId
    task: TaskSpec
    schedule: Schedule
    args: Mapping[str, Any]
    override: Override | None = None
    of_code: Schedule | None = None

    def __str__(self) -> str:
        return str(self.id)


@lru_cache
def absent(task: str) -> TaskSpec:
    """Return a task that is not in this code, but whose loops are in the broker."""

    async def unknown() -> None:
        raise NotImplementedError(f"The task {task!r} is not in this code.")

    return TaskSpec(task, unknown, Arguments(unknown), Policy(Retry(0)))


def supervision(interval: timedelta) -> Loop:
    """Return supervision's loop; `scheduler.control.supervision` gives it its function."""
    spec = replace(
        absent(SUPERVISION.task), timeout=SUPERVISION_TIMEOUT, concurrency=1, builtin=True
    )
    return Loop(SUPERVISION, spec, Every(interval), {})


def loop_of(
    spec: TaskSpec, schedule: Schedule, args: Mapping[str, Any] | None, key: str = ""
) -> Loop:
    """Return the loop of a task.

    Raises:
        RegistrationError: the task is to run alone, and has no arguments that fit it.
        InvalidArguments: a keyed loop has none.
    """
    if not isinstance(args, Mapping | None):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidArguments(
            f"args= of {spec.name} must map names to arguments, got {shown(args)}."
        )
    try:
        wire = spec.arguments.dump(args or {})
    except InvalidArguments as error:
        if key:
            raise
        raise RegistrationError(
            f"{error} Give the parameters of {spec.name} defaults, or pass args={{...}}."
        ) from None
    return Loop(LoopId(spec.name, key), spec, schedule, wire)


class App(Protocol):
    """Declare what the other parts need to know of an app."""

    namespace: str
    names: Names
    events: EventStream
    module: str

    @property
    def settings(self) -> "Settings": ...

    @property
    def tasks(self) -> Mapping[str, TaskSpec]: ...

    @property
    def loops(self) -> Mapping[LoopId, Loop]: ...

    @property
    def supervision(self) -> Loop: ...

    def topology(self) -> Topology: ...


def check_arguments(app: App, task: str, args: Mapping[str, Any]) -> None:
    """Raise UsageError if new arguments of a parked message do not fit its task in the code."""
    try:
        if (spec := app.tasks.get(task)) is not None:
            spec.arguments.load(args)
    except InvalidArguments as error:
        raise UsageError(f"{error} The message stays parked, as it was.") from None


def resting(app: App) -> frozenset[str]:
    """Return the tasks whose queues may have no consumer for a while."""
    return frozenset(task.name for task in app.tasks.values() if task.ordered or task.rate)


def served(app: App) -> dict[str, TaskSpec]:
    """Return the task that serves each name and alias."""
    return {name: task for task in app.tasks.values() for name in task.names}


def aliases_of(app: App) -> dict[str, str]:
    """Return the name of the task that has each alias."""
    return {alias: task.name for task in app.tasks.values() for alias in task.aliases}


def shards_of(app: App) -> dict[str, int]:
    """Return the number of shards of each task, by name and alias; supervision's included."""
    return {SUPERVISION.task: 1, **{name: task.shards for name, task in served(app).items()}}


def queues_of(app: App, task: str) -> list[str]:
    """Return the processor queues of a task, by its name or an alias."""
    spec = app.tasks.get(task) or served(app).get(task)
    return app.names.processor_queues(task, 1 if spec is None else spec.shards)


def before_rename(app: App, loop: LoopId) -> list[LoopId]:
    """Return the loops of old names that a loop replaces."""
    task = app.tasks.get(loop.task)
    return [LoopId(alias, loop.key) for alias in task.aliases] if task else []


def left_by_renames(app: App) -> list[Binding]:
    """Return the subscriptions' bindings that would also bring messages to the aliases."""
    return [
        Binding(each.exchange, app.names.processor_queue(alias), each.routing_key)
        for task in app.tasks.values()
        for alias in task.aliases
        for each in task.subscriptions
    ]


def topology_of(app: App) -> Topology:
    """Return everything that an app needs in the broker.

    The queues of aliases stay, so that no message has to be moved.
    """
    tasks, settings = app.tasks.values(), app.settings
    return topology(
        app.namespace,
        (*served(app), SUPERVISION.task),
        subscriptions=[each for task in tasks for each in task.subscriptions],
        alone=[SUPERVISION.task],
        ordered=[task.name for task in tasks if task.ordered],
        called=[name for name, task in served(app).items() if task.called],
        shards=shards_of(app),
        queue_type=settings.queue_type,
        journal_max_age=settings.journal_max_age,
        journal_max_bytes=settings.journal_max_bytes,
    )


PACKAGE = __name__.partition(".")[0]


def module_of_caller() -> str:
    """Return the last part of the name of the caller's module, however it was imported."""
    frame = inspect.currentframe()
    while frame is not None and _is_ours(frame):
        frame = frame.f_back
    name = str(frame.f_globals.get("__name__", "")) if frame is not None else ""
    if name == "__main__":
        return Path(str(getattr(sys.modules[name], "__file__", name))).stem
    return name.rpartition(".")[2]


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] == PACKAGE
