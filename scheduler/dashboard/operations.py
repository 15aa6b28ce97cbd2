"""Run operations of visitors: with progress, results and undo.

Each process of a dashboard records in the journal how its operations proceed. So all processes show
them, and stop them, wherever a request arrives.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from secrets import token_urlsafe
from typing import Any

from pydantic import AwareDatetime, BaseModel, ValidationError

from scheduler.control.reports import acting_as
from scheduler.errors import BrokerError, SchedulerError
from scheduler.protocol.messages import Message
from scheduler.timing.moments import Clock, milliseconds_since_epoch, moment_of

RECORD_TYPE = RECORD_KEY = "scheduler.operation"
REMEMBERED = 50
LINES = 50
PATIENCE_S = 2.0  # then its progress is shown
HEARD_WITHIN_S = 5.0
RECENT = timedelta(minutes=1)
TELL_EVERY_S = 1.0
LOST_AFTER = timedelta(seconds=15)
LOST = "The process of the dashboard that did it has stopped responding. It may be done in part."
INTERRUPTED = "The process of the dashboard that did it has stopped. It may be done in part."


class Stopped(Exception):
    """A visitor has stopped the operation."""


@dataclass(slots=True)
class OperationRecord:
    """Describe an action, until it has ended and after, in any process.

    Attributes:
        right: the action whose right its visitor needed.
        told_at: when its process recorded it last.
        total: the number of its messages or loops; None: not known in advance.
        count: how many of them are done, failures included.
        lines: the results of the first of them, failures first.
        undo: the action that reverts it, and its fields; None: there is none.
    """

    id: str
    what: str
    by: str
    right: str
    begun_at: AwareDatetime
    told_at: AwareDatetime | None = None
    ended_at: AwareDatetime | None = None
    total: int | None = None
    count: int = 0
    failed: int = 0
    lines: list[str] = field(default_factory=list[str])
    error: str = ""
    undo: tuple[str, Mapping[str, str]] | None = None
    is_stopped: bool = False

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


@dataclass(slots=True)
class Operation(OperationRecord):
    """Track an operation of this process."""

    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    def add_line(self, line: str) -> None:
        self._add(len(self.lines), line)

    def fail(self, line: str) -> None:
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
Publish = Callable[[Message], Awaitable[None]]


class OperationNews(BaseModel):
    """Tell other processes how an operation proceeds, or which one to stop."""

    operation: OperationRecord | None = None
    stop: str = ""


class DashboardOperations:
    """Manage the operations in progress, and the last ones that have ended, of all processes.

    Args:
        publish: publishes a record to the journal.
    """

    def __init__(self, clock: Clock, publish: Publish) -> None:
        self._clock = clock
        self._publish = publish
        self._known: dict[str, OperationRecord] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._reports = set[asyncio.Task[None]]()
        self._heard = asyncio.Event()

    def get(self, name: str) -> OperationRecord | None:
        operation = self._known.get(name)
        if operation is not None and operation.ended_at is None and name not in self._tasks:
            at = operation.told_at
            if at is not None and self._clock.now() - at > LOST_AFTER:
                operation.ended_at, operation.error = at, LOST
        return operation

    async def find(self, name: str) -> OperationRecord | None:
        """Return an operation; wait a while for one that was recorded a moment ago."""
        if self._is_recent(name):
            await self._until(lambda: name in self._known, HEARD_WITHIN_S)
        return self.get(name)

    def hear(self, record: Message) -> None:
        """Note the record of an operation in another process, or stop one of this process."""
        try:
            news = OperationNews.model_validate_json(record.body)
        except ValidationError:
            return  # of another version
        if (operation := news.operation) is not None and operation.id not in self._tasks:
            known = self._known.get(operation.id)
            if known is None or _moment(known) < _moment(operation):
                self._note(operation)
        if isinstance(stopped := self._known.get(news.stop), Operation):
            stopped.stopping.set()
        self._heard.set()
        self._heard = asyncio.Event()

    async def begin(self, what: str, by: str, right: str, work: Work) -> Operation:
        """Begin an operation, and wait a while for its end."""
        now = self._clock.now()
        id = f"{milliseconds_since_epoch(now)}-{token_urlsafe(6)}"
        operation = Operation(id, what, by, right, now)
        self._note(operation)
        task = asyncio.create_task(self._carry_out(operation, work), name=what)
        self._tasks[operation.id] = task
        await asyncio.wait([task], timeout=PATIENCE_S)
        await self._tell(operation)  # any process may be asked for it next
        if operation.ended_at is None:
            report = asyncio.create_task(self._report(operation, task), name=f"{what}: progress")
            self._reports.add(report)
            report.add_done_callback(self._reports.discard)
        return operation

    async def stop(self, operation: OperationRecord) -> None:
        """Stop an operation before its next loop or message."""
        await self._publish(_record(OperationNews(stop=operation.id)))

        def has_ended() -> bool:
            known = self.get(operation.id)
            return known is None or known.ended_at is not None

        await self._until(has_ended, HEARD_WITHIN_S)

    async def close(self) -> None:
        tasks = [*self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *self._reports, return_exceptions=True)

    def _is_recent(self, name: str) -> bool:
        at = name.partition("-")[0]
        is_moment = at.isdecimal() and len(at) < 15
        return is_moment and abs(self._clock.now() - moment_of(int(at))) < RECENT

    def _note(self, operation: OperationRecord) -> None:
        self._known[operation.id] = operation
        while len(self._known) > REMEMBERED:
            del self._known[min(self._known, key=lambda each: self._known[each].begun_at)]

    async def _until(self, is_so: Callable[[], bool], within_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while not is_so():
                    await self._heard.wait()

    async def _tell(self, operation: Operation) -> None:
        operation.told_at = self._clock.now()
        # Without the broker, this process still shows it; other processes report that it is away.
        with suppress(BrokerError):
            await self._publish(_record(OperationNews(operation=operation)))

    async def _report(self, operation: Operation, task: asyncio.Task[None]) -> None:
        """Record the progress of an operation until it has ended."""
        while operation.ended_at is None:
            await asyncio.wait([task], timeout=TELL_EVERY_S)
            await self._tell(operation)

    async def _carry_out(self, operation: Operation, work: Work) -> None:
        try:
            with acting_as(operation.by):
                await work(operation)
        except Stopped:
            operation.is_stopped = True
        except asyncio.CancelledError:
            operation.error = INTERRUPTED
            raise
        except SchedulerError as error:
            operation.error = str(error)
        except Exception as error:
            logging.getLogger(__name__).exception("%s failed", operation.what)
            operation.error = f"Failed, see the log: {type(error).__name__}: {error}"
        finally:
            operation.ended_at = self._clock.now()
            del self._tasks[operation.id]


def _record(news: OperationNews) -> Message:
    body = news.model_dump_json().encode()
    return Message(body, content_type="application/json", type=RECORD_TYPE)


def _moment(operation: OperationRecord) -> datetime:
    return operation.told_at or operation.begun_at
