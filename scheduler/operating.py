"""What a program can do about the runs and loops of its app, besides what its tasks can."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from os import PathLike
from typing import TYPE_CHECKING, Protocol

from scheduler.control.keyed import Synced
from scheduler.tasks.tasks import TaskSpec

if TYPE_CHECKING:  # few programs do any of it
    from scheduler.control.cancellation import CancelReport
    from scheduler.program import Program
    from scheduler.queues.running import Running


class Operated(Protocol):
    """What has to be there for it."""

    @property
    def tasks(self) -> Mapping[str, TaskSpec]: ...

    def operations(self) -> "AbstractAsyncContextManager[Program]": ...


class Operating:
    """The part of an app that asks for what runs, ends runs, and makes loops those of a file."""

    async def running(self: Operated, *, stack_of: str | None = None) -> "Running":
        """What runs now, in all processors: they are asked, which takes some milliseconds.

        Args:
            stack_of: the run whose stack is told as well, named as for `cancel`.

        Raises:
            NotRunning, UsageError: there is no such run, or more than one.
            QueueNotFound: nothing was seeded.
        """
        async with self.operations() as operations:
            return await operations.cancellation.running(stack_of=stack_of)

    async def cancel(self: Operated, run: str, *, escalate: bool = False) -> "CancelReport":
        """End a run that is going on, and wait until it has ended, for at most 10 seconds.

        It is not tried again, and a loop goes on with its next tick. A coroutine is cancelled, a
        process killed; a thread cannot be stopped, so that its run ends when its function does.

        Args:
            run: the id of a message, or how it begins; `loop#seq`, or the name of a loop.
            escalate: whether it counts as failed for the last time: it is parked then.

        Raises:
            NotRunning: no such run is going on, as far as processors have answered.
            UsageError: there is more than one.
            QueueNotFound: nothing was seeded.
        """
        async with self.operations() as operations:
            return await operations.cancellation.cancel(run, escalate=escalate)

    async def sync_file(
        self: Operated, path: str | PathLike[str], *, dry_run: bool = False
    ) -> Mapping[str, Synced]:
        """Make the keyed loops of tasks those of a file, in TOML, or JSON if it ends in `.json`.

        By task and key, it has the schedule and `args`, as in `[digest."user-42"]` of
        `every = "1h"`. For each task in the file this is `task.sync`; no other task is touched.
        All is checked before anything is done.

        Args:
            dry_run: only say what it would do.

        Returns:
            What it did, by task.

        Raises:
            UsageError: the file, or something in it, cannot be used; nothing was changed.
            AccessRefused: this user may not declare a queue.
            BrokerError: the broker could not do it; what is left is done by the next call.
        """
        from scheduler.control.loop_files import sync_file  # few programs have one

        return await sync_file(path, self.tasks, self.operations, dry_run=dry_run)
