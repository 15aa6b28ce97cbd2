"""Keyed loops: many loops of one task, started and stopped while processors run.

They are loops like those of the code, but for who names them: so they wait in hatchery queues of
their own, are supervised, paused and triggered like any other, and outlive every deploy.
"""

import re
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Unpack

from scheduler.control.reports import Did
from scheduler.errors import AccessRefused, ScheduleError, UsageError
from scheduler.protocol.tokens import LoopId
from scheduler.protocol.topology import Names
from scheduler.tasks.loops import Loop, loop_of
from scheduler.tasks.tasks import TaskSpec
from scheduler.timing.durations import SECOND, Duration
from scheduler.timing.schedules import Every, Schedule, ScheduleOptions, schedule_of

if TYPE_CHECKING:  # every program has tasks, and few of them start loops
    from scheduler.control.loops import Loops
    from scheduler.control.removal import Removal
    from scheduler.control.seeding import Seeding

KEY = re.compile(r"[A-Za-z0-9_-]+([.@+][A-Za-z0-9_-]+)*")
LONGEST_KEY = 100


@dataclass(frozen=True, slots=True)
class KeyedLoop:
    """A loop that was started at run time."""

    key: str
    schedule: Schedule
    args: Mapping[str, Any]


class Operations(Protocol):
    """What starting and stopping loops needs, over one connection."""

    loops: "Loops"
    seeding: "Seeding"
    removal: "Removal"


Connect = Callable[[], AbstractAsyncContextManager[Operations]]


class Keyed:
    """The keyed loops of one task."""

    def __init__(self, spec: TaskSpec, names: Names, connect: Connect) -> None:
        self._keyed_spec = spec
        self._names = names
        self._connect = connect

    async def start(
        self,
        key: str,
        *,
        every: Duration | None = None,
        cron: str | None = None,
        schedule: Schedule | None = None,
        args: Mapping[str, Any] | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> Did:
        """Start a loop of this task, or give the one of this key another schedule or arguments.

        Started again as it is, it goes on undisturbed. The broker's user must have the right to
        declare the loop's hatchery queue.

        Args:
            key: which of the task's loops it is: up to 100 letters, digits, '_', '-', and between
                them '.', '@', '+'.
            every, cron, schedule, options: as `Scheduler.periodic` takes them.
            args: arguments for the function's parameters, besides its `Context`.

        Returns:
            created, rescheduled or unchanged; repaired: its token was lost, and is put again.

        Raises:
            UsageError: the key, the schedule or the arguments cannot be used.
            AccessRefused: this user may not declare the queue.
        """
        name = self._keyed_spec.name
        try:
            when = schedule_of(every=every, cron=cron, schedule=schedule, **options)
        except ScheduleError as error:
            raise ScheduleError(f"The schedule of {name}.{key}: {error}") from None
        loop = loop_of(self._keyed_spec, when, args, self._checked(key))
        try:
            async with self._connect() as operations:
                return (await operations.seeding.start(loop)).did
        except AccessRefused as error:
            raise AccessRefused(
                f"{error} To start loops at run time, the broker's user must have the right to "
                f"configure {self._names.hatchery(loop.id)!r}. Nothing was started."
            ) from None

    async def stop(self, key: str) -> bool:
        """End a loop; says whether there was one. A run that is going on is its last."""
        loop = LoopId(self._keyed_spec.name, self._checked(key))
        async with self._connect() as operations:
            # Also one that is gone from the roster: whoever stopped it may have come no further.
            ended = await operations.removal.remove(Loop(loop, self._keyed_spec, Every(SECOND), {}))
        return ended.did is Did.REMOVED

    async def list(self) -> list[KeyedLoop]:
        """The loops of this task that were started and not stopped."""
        async with self._connect() as operations:
            loops = await operations.loops.all()
        return [
            KeyedLoop(loop.id.key, loop.schedule, loop.args)
            for loop in loops
            if loop.id.key and loop.id.task == self._keyed_spec.name
        ]

    def _checked(self, key: str) -> str:
        if len(key) > LONGEST_KEY or not KEY.fullmatch(key):
            raise UsageError(
                f"A key has 1 to {LONGEST_KEY} letters, digits, '_' or '-', and between them '.', "
                f"'@' or '+', got {key!r}."
            )
        if ".task." in f".{key}":
            # The broker would hand the loop's token to the task of that name as well.
            raise UsageError(
                f"The loop {self._keyed_spec.name}.{key} would be taken for a call of the task "
                f"{key.rpartition('.')[2]!r}: choose a key without the word 'task' before a '.'."
            )
        return key
