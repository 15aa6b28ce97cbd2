"""Run operations of visitors: with progress, results and undo."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from secrets import token_urlsafe
from typing import Any

from scheduler.control.reports import acting_as
from scheduler.errors import SchedulerError
from scheduler.timing.moments import Clock

REMEMBERED = 50
LINES = 50
LONG = 100  # loops, after which progress is shown
PATIENCE_S = 5.0


class Stopped(Exception):
    """A visitor has stopped the operation."""


@dataclass(slots=True)
class Operation:
    """Track an action, until it has ended and after.

    Attributes:
        right: the action whose right its visitor needed.
        total: the number of its messages or loops; None: not known in advance.
        count: how many of them are done, failures included.
        lines: the results of the first of them, failures first.
        undo: the action that reverts it, and its fields; None: there is none.
        shown: set once the visitor watches it, before its end.
    """

    id: str
    what: str
    by: str
    right: str
    begun_at: datetime
    ended_at: datetime | None = None
    total: int | None = None
    count: int = 0
    failed: int = 0
    lines: list[str] = field(default_factory=list[str])
    error: str = ""
    undo: tuple[str, Mapping[str, str]] | None = None
    is_stopped: bool = False
    shown: asyncio.Event = field(default_factory=asyncio.Event)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def title(self) -> str:
        """Return the action, capitalized; names stay as they are."""
        return self.what[:1].upper() + self.what[1:]

    @property
    def state(self) -> str:
        """Describe its progress, or how it has ended."""
        done = f"{self.count:,}" + (f" of {self.total:,}" if self.total is not None else "")
        if self.ended_at is None:
            return f"{done} done"
        if self.is_stopped:
            return f"stopped after {done}"
        if self.error:
            return f"failed after {self.count:,}" if self.count else "failed"
        return f"{self.failed:,} of {self.count:,} failed" if self.failed else "done"

    @property
    def left_out(self) -> int:
        return max(self.count - len(self.lines), 0)

    @property
    def is_bad(self) -> bool:
        return bool(self.error or self.failed)

    def expect(self, total: int) -> None:
        """Set the total; if it is large, the visitor watches the progress."""
        self.total = total
        if total > LONG:
            self.shown.set()

    def add_line(self, line: str) -> None:
        """Add one result."""
        self._add(len(self.lines), line)

    def fail(self, line: str) -> None:
        """Add one failure."""
        self._add(self.failed, line)
        self.failed += 1

    def _add(self, place: int, line: str) -> None:
        self.count += 1
        self.lines.insert(place, line)
        del self.lines[LINES:]

    def check(self) -> None:
        """Raise `Stopped` if the visitor has stopped it."""
        if self.stopping.is_set():
            raise Stopped


Work = Callable[[Operation], Coroutine[Any, Any, None]]


class DashboardOperations:
    """Manage the operations in progress, and the last ones that have ended."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: dict[str, Operation] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def get(self, name: str) -> Operation | None:
        return self._known.get(name)

    async def begin(self, what: str, by: str, right: str, work: Work) -> Operation:
        """Begin an operation, and wait a while for its end."""
        operation = Operation(token_urlsafe(8), what, by, right, self._clock.now())
        self._known[operation.id] = operation
        while len(self._known) > REMEMBERED:
            del self._known[next(iter(self._known))]
        task = asyncio.create_task(self._carry_out(operation, work), name=what)
        self._tasks[operation.id] = task
        task.add_done_callback(lambda _: self._tasks.pop(operation.id))
        shown = asyncio.create_task(operation.shown.wait())
        await asyncio.wait([task, shown], timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
        shown.cancel()
        return operation

    async def stop(self, operation: Operation) -> None:
        """Stop an operation before its next loop or message."""
        operation.stopping.set()
        if (task := self._tasks.get(operation.id)) is not None:
            await asyncio.wait([task], timeout=PATIENCE_S)

    async def close(self) -> None:
        tasks = [*self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _carry_out(self, operation: Operation, work: Work) -> None:
        try:
            with acting_as(operation.by):
                await work(operation)
        except Stopped:
            operation.is_stopped = True
        except SchedulerError as error:
            operation.error = str(error)
        except Exception as error:
            logging.getLogger(__name__).exception("%s failed", operation.what)
            operation.error = f"Failed, see the log: {type(error).__name__}: {error}"
        finally:
            operation.ended_at = self._clock.now()
