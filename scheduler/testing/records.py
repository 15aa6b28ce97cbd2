"""Record for a kit: sent messages, ended runs, parked messages."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeVar, cast

from scheduler.app import Scheduler
from scheduler.errors import Undecodable, UnknownLoop
from scheduler.events import CallNotSent, CallSending, CallSent, Event, RunFinished
from scheduler.protocol.messages import Message, parsed_json
from scheduler.protocol.tokens import Ending
from scheduler.queues import failed
from scheduler.spelling import no_such
from scheduler.tasks.tasks import Task


@dataclass(frozen=True, slots=True, repr=False)
class Sent:
    """Record a message that was sent, and confirmed.

    Attributes:
        arguments: as they travel.
        due_at: when it is due.
    """

    task: str
    arguments: Mapping[str, Any]
    due_at: datetime
    headers: Mapping[str, Any]
    message_id: str

    @classmethod
    def of(cls, event: CallSending) -> "Sent":
        return cls(event.task, event.arguments, event.due_at, dict(event.headers), event.message_id)

    @property
    def loop(self) -> str:
        return self.task

    def __repr__(self) -> str:
        return f"Sent({_call(self.task, self.arguments)}, due {shown(self.due_at)})"


@dataclass(frozen=True, slots=True, repr=False)
class Ran:
    """Record an attempt to run a task, which has ended.

    Attributes:
        loop: the loop; for a message that was sent, its task.
        key: which of the task's loops it is; empty for the task's own.
        seq: which tick of the loop; None for a message that was sent.
        attempt: counted from 1.
        ending: succeeded, retried, escalated, stopped, skipped or cancelled.
        error: its exception; or who has cancelled it.
        skipped: why it was not run at all.
    """

    task: str
    loop: str
    key: str
    seq: int | None
    attempt: int
    scheduled_at: datetime
    started_at: datetime
    duration: timedelta
    ending: Ending
    error: Exception | None
    skipped: str | None
    message_id: str = field(repr=False)

    @classmethod
    def of(cls, event: RunFinished) -> "Ran":
        same = ("seq", "attempt", "scheduled_at", "started_at", "duration", "ending", "error")
        values = {name: getattr(event, name) for name in (*same, "skipped", "message_id")}
        return cls(event.loop.task, str(event.loop), event.loop.key, **values)

    def __repr__(self) -> str:
        return f"Ran({self.line})"

    @property
    def line(self) -> str:
        number = "" if self.seq is None else f" #{self.seq}"
        attempt = f", attempt {self.attempt}" if self.attempt > 1 else ""
        why = f": {self.error!r}" if self.error else f": {self.skipped}" if self.skipped else ""
        return f"{self.loop}{number}{attempt} at {shown(self.started_at)} {self.ending}{why}"


@dataclass(frozen=True, slots=True, repr=False)
class Parked:
    """Record a message that is parked.

    Attributes:
        task: empty if unknown.
        loop: the loop; for a message that was sent, its task.
        reason: one of `scheduler.queues.failed.Reason`.
        error: in a line.
        arguments: None if it has none.
    """

    task: str
    loop: str
    reason: str
    error: str
    arguments: Mapping[str, Any] | None
    attempts: int
    message: Message

    @classmethod
    def of(cls, parked: failed.ParkedMessage) -> "Parked":
        task, loop, message = parked.task, parked.loop, parked.message
        arguments = _arguments_of(message)
        return cls(task, loop, parked.reason, parked.error, arguments, parked.attempts, message)

    def __repr__(self) -> str:
        return f"Parked({_call(self.loop, self.arguments)}, {self.reason}: {self.error})"


class Recorder:
    """Collect sent messages and runs from the events of an app."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self.runs: list[Ran] = []
        self._sending: dict[str, CallSending] = {}

    def record(self, event: Event) -> None:
        match event:
            case CallSending():
                self._sending[event.message_id] = event
            case CallSent():
                self.sent.append(Sent.of(self._sending.pop(event.message_id)))
            case CallNotSent():
                self._sending.pop(event.message_id, None)
            case RunFinished():
                self.runs.append(Ran.of(event))
            case _:
                pass


R = TypeVar("R", Sent, Ran, Parked)


class Records(list[R]):
    """List records in their order, and filter them by task.

    Args:
        app: the app of the tasks and loops.
    """

    def __init__(self, app: Scheduler, records: Iterable[R]) -> None:
        super().__init__(records)
        self._app = app

    def of(self, task: Task[..., Any] | str) -> "Records[R]":
        """Return the records of a task, or of a loop by its name, such as "poll.berlin".

        Raises:
            UnknownLoop: there is none of this name; the message names the nearest.
        """
        name = task.spec.name if isinstance(task, Task) else task
        known = {*self._app.tasks, *map(str, self._app.loops), *(each.loop for each in self)}
        # A loop that was started at run time may not have run yet.
        if name not in known and name.partition(".")[0] not in self._app.tasks:
            raise UnknownLoop(no_such("task or loop", name, known))
        return Records(self._app, [each for each in self if name in (each.task, each.loop)])


def table_of(runs: Iterable[Ran]) -> str:
    return "\n".join(f"    {run.line}" for run in runs) or "    nothing"


def _arguments_of(message: Message) -> Mapping[str, Any] | None:
    try:
        body = parsed_json(message.body)
    except Undecodable:
        return None
    arguments = cast("dict[str, Any]", body).get("args") if isinstance(body, dict) else None
    return cast("dict[str, Any]", arguments) if isinstance(arguments, dict) else None


def _call(name: str, arguments: Mapping[str, Any] | None) -> str:
    if arguments is None:
        return name
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def shown(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S}.{moment.microsecond // 1000:03}"
