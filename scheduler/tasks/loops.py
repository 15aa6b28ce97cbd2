"""Combine a task and a schedule."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, ClassVar

from pydantic import ConfigDict

from scheduler.errors import InvalidArguments, RegistrationError
from scheduler.protocol.messages import WIRE, Moment
from scheduler.protocol.tokens import LoopId
from scheduler.tasks.arguments import Arguments
from scheduler.tasks.retries import Policy, Retry
from scheduler.tasks.tasks import SUPERVISION, TaskSpec
from scheduler.timing.durations import shown
from scheduler.timing.schedules import Every, Schedule

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


def absent(task: str) -> TaskSpec:
    """Return a task that is not in this code, but whose loops are in the broker."""

    async def nobody() -> None:
        raise NotImplementedError(f"The task {task!r} is not in this code.")

    return TaskSpec(task, nobody, Arguments(nobody), Policy(Retry(0)))


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
