"""Keyed loops: many loops of one task, started and stopped while processors run.

They are loops like those of the code, but for who names them: so they wait in hatchery queues of
their own, are supervised, paused and triggered like any other, and outlive every deploy.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Unpack

from scheduler.control import App, Control, Did, loops_of
from scheduler.durations import Duration
from scheduler.errors import AccessRefused, ScheduleError, UsageError
from scheduler.messages import LoopId
from scheduler.outbox import Outbox
from scheduler.roster import Roster
from scheduler.schedules import Schedule, ScheduleOptions, schedule_of
from scheduler.tasks import Loop, TaskSpec, loop_of

KEY = re.compile(r"[A-Za-z0-9_-]+([.@+][A-Za-z0-9_-]+)*")
LONGEST_KEY = 100


@dataclass(frozen=True, slots=True)
class KeyedLoop:
    """A loop that was started at run time."""

    key: str
    schedule: Schedule
    args: Mapping[str, Any]


class Keyed:
    """The keyed loops of one task."""

    def __init__(self, spec: TaskSpec, app: App, outbox: Outbox) -> None:
        self._keyed_spec = spec
        self._app = app
        self._keyed_outbox = outbox

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
            created, rescheduled or unchanged; guarded: it takes effect when its run has ended.

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
            return (await (await self._control()).start(loop)).did
        except AccessRefused as error:
            raise AccessRefused(
                f"{error} To start loops at run time, the broker's user must have the right to "
                f"configure {self._app.names.hatchery(loop.id)!r}. Nothing was started."
            ) from None

    async def stop(self, key: str) -> bool:
        """End a loop; says whether there was one. A run that is going on, or due, is its last."""
        loop_id = LoopId(self._keyed_spec.name, self._checked(key))
        listed = await self._roster_now()
        if loop_id not in listed:
            return False
        return (await (await self._control()).remove(listed[loop_id])).did is Did.REMOVED

    async def list(self) -> list[KeyedLoop]:
        """The loops of this task that were started and not stopped."""
        return [
            KeyedLoop(loop.id.key, loop.schedule, loop.args)
            for loop in (await self._roster_now()).values()
            if loop.id.key and loop.id.task == self._keyed_spec.name
        ]

    async def _roster_now(self) -> dict[LoopId, Loop]:
        broker = await self._keyed_outbox.broker()
        listed = await Roster(broker, self._app.names, self._keyed_outbox.clock).read()
        return {loop.id: loop for loop in loops_of(self._app, listed)}

    async def _control(self) -> Control:
        return Control(self._app, await self._keyed_outbox.broker(), self._keyed_outbox.clock)

    def _checked(self, key: str) -> str:
        if len(key) > LONGEST_KEY or not KEY.fullmatch(key):
            raise UsageError(
                f"A key has 1 to {LONGEST_KEY} letters, digits, '_' or '-', and between them '.', "
                f"'@' or '+', got {key!r}."
            )
        return key
