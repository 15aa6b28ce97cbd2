"""Named one-offs: a run of a task that a name stands for, so that it is there once.

The timers of calls take any number of messages, and know none of them by name. What is to be
found again, moved or taken back is a loop of one run instead (`scheduler.control.one_offs`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from scheduler.control.keyed import Connect, checked_key, within_deadline
from scheduler.control.reports import Did
from scheduler.errors import ScheduleError, UsageError
from scheduler.protocol.topology import Names
from scheduler.tasks.loops import loop_of
from scheduler.tasks.tasks import TaskSpec
from scheduler.timing.durations import ZERO, Duration, parse_duration
from scheduler.timing.once import Once


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A named one-off that waits for its time, or runs.

    Attributes:
        at: when it is to run.
        args: the arguments for the function's parameters.
    """

    name: str
    at: datetime
    args: Mapping[str, Any]


class OneOffs:
    """The named one-offs of one task."""

    def __init__(self, spec: TaskSpec, names: Names, connect: Connect) -> None:
        self._once_spec = spec
        self._once_names = names
        self._once_connect = connect

    async def once(
        self,
        name: str,
        *,
        at: datetime | None = None,
        after: Duration | None = None,
        args: Mapping[str, Any] | None = None,
        unique: Duration | None = None,
    ) -> Did:
        """Have this task run once, at a moment or after a delay, under a name.

        However often, and from wherever it is called, there is one run of the name. Called again
        with the same moment and arguments it changes nothing, also when the run has ended within
        the day; with others, what waits gets these, and what runs is to run again. `stop(name)`
        takes it back, `scheduled()` lists what waits.

        It is a loop that runs once: never early, its failed attempts are tried again, its run knows
        its name as `ctx.key`. `send_later` is cheaper, for messages that need not be found again.

        Args:
            name: what a key of `start` may be; a task's keyed loops and one-offs share their names.
            at: the moment, which must be aware; one that has passed means now.
            after: the delay, instead, such as "10m". With neither, it runs now.
            args: arguments for the function's parameters, besides its `Context`.
            unique: while the name is taken, change nothing; and keep it taken for so long after
                the moment, at least.

        Returns:
            created, rescheduled or unchanged.

        Raises:
            UsageError: the name, the moment or the arguments cannot be used.
            QueueNotFound: nothing was seeded.
            NotSent: it was not confirmed within 30 s.
        """
        spec, key = self._once_spec, checked_key(self._once_spec, name)
        if at is not None and after is not None:
            raise UsageError(
                f"{spec.name}.once takes a moment or a delay, got both at= and after=."
            )
        kept = ZERO if unique is None else parse_duration(unique)
        delay = parse_duration(after or ZERO)
        async with (
            within_deadline(f"{spec.name}.{key}"),
            self._once_connect() as operations,
        ):
            try:
                when = Once(at or operations.clock.now() + delay, kept)
            except ScheduleError as error:
                raise ScheduleError(f"The moment of {spec.name}.{key}: {error}") from None
            loop = loop_of(spec, when, args, key)
            return (await operations.seeding.start(loop)).did

    async def scheduled(self) -> list[Scheduled]:
        """The named one-offs of this task whose run has not ended, those that are due first."""
        task = self._once_spec.name
        async with self._once_connect() as operations:
            loops = await operations.loops.all()
        found = [
            Scheduled(loop.id.key, loop.schedule.at, loop.args)
            for loop in loops
            if loop.id.task == task and isinstance(loop.schedule, Once)
        ]
        return sorted(found, key=lambda each: (each.at, each.name))
