"""What visitors have had done: each as it goes on, and what came of it."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from secrets import token_urlsafe
from typing import Any

from scheduler.control.reports import acting_as
from scheduler.errors import SchedulerError
from scheduler.timing.clock import Clock

REMEMBERED = 50
LINES = 50
PATIENCE_S = 5.0


@dataclass(slots=True)
class Operation:
    """Something that was begun.

    Attributes:
        what: in words, such as "pause 3 loops".
        count: of how many messages or loops it is done.
        lines: what came of the first of them.
        error: why it came to no end.
        undo: the action that takes it back, and its fields; None: there is none.
        version: grows with whatever changes.
    """

    id: str
    what: str
    by: str
    begun_at: datetime
    ended_at: datetime | None = None
    count: int = 0
    lines: list[str] = field(default_factory=list[str])
    error: str = ""
    undo: tuple[str, Mapping[str, str]] | None = None
    version: int = 0

    @property
    def left_out(self) -> int:
        return max(self.count - len(self.lines), 0)

    def tell(self, line: str) -> None:
        """Add what came of one more."""
        self.count += 1
        self.version += 1
        if len(self.lines) < LINES:
            self.lines.append(line)


Work = Callable[[Operation], Coroutine[Any, Any, None]]


class Operations:
    """What is being done, and was done last."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: dict[str, Operation] = {}
        self._tasks = set[asyncio.Task[None]]()

    def get(self, name: str) -> Operation | None:
        return self._known.get(name)

    @property
    def version(self) -> int:
        """Grows with whatever changes."""
        return sum(operation.version + 1 for operation in self._known.values())

    async def begin(self, what: str, by: str, work: Work) -> Operation:
        """Begin something, and wait a while for its end."""
        operation = Operation(token_urlsafe(8), what, by, self._clock.now())
        self._known[operation.id] = operation
        while len(self._known) > REMEMBERED:
            del self._known[next(iter(self._known))]
        task = asyncio.create_task(self._carry_out(operation, work), name=what)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await asyncio.wait([task], timeout=PATIENCE_S)
        return operation

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _carry_out(self, operation: Operation, work: Work) -> None:
        try:
            with acting_as(operation.by):
                await work(operation)
        except SchedulerError as error:
            operation.error = str(error)
        except Exception as error:
            logging.getLogger(__name__).exception("%s failed", operation.what)
            operation.error = f"It failed, and the log says how: {type(error).__name__}: {error}"
        finally:
            operation.ended_at = self._clock.now()
            operation.version += 1
