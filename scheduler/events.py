"""Define the typed events that logs, metrics and tests listen to.

Each event has its line in the log: its `words`, at its `severity`. Usually, these are `text` with
its fields filled in, and `level`.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import Field, dataclass, field, replace
from datetime import datetime, timedelta
from logging import DEBUG, ERROR, INFO, NOTSET, WARNING
from typing import Any, ClassVar, dataclass_transform

from scheduler.protocol.calls import Call
from scheduler.protocol.messages import lead_of, summary_of, unshared
from scheduler.protocol.tokens import Ending, LoopId, State, Token
from scheduler.spelling import counted
from scheduler.timing.durations import LONGEST, format_duration
from scheduler.timing.moments import exact, time_of_day


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Event:
    """Report something that happened. Each kind is a frozen dataclass.

    Attributes:
        level: of its log line; of several levels, the highest; NOTSET: it has no line.
        text: the words of the line; for events of runs, without the run.
    """

    level: ClassVar[int] = NOTSET
    text: ClassVar[str] = ""
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)

    @property
    def severity(self) -> int:
        """Return the level of the log line."""
        return self.level

    @property
    def line(self) -> tuple[int, str]:
        """Return the log line: its level, and its words."""
        return self.severity, self.words

    @property
    def words(self) -> str:
        """Return the words of the log line."""
        values = vars(self)
        spans = {name: _span(each) for name, each in values.items() if isinstance(each, timedelta)}
        return self.text.format_map(values | spans)


def _span(span: timedelta) -> str:
    ms = span / timedelta(milliseconds=1)
    return f"{ms:.0f} ms" if abs(ms) < 10_000 else f"{ms / 1000:.1f} s"


Emit = Callable[[Event], None]


class Connected(Event):
    """The processor connected to the broker."""

    level, text = INFO, "connected to {address} (RabbitMQ {version})"
    address: str
    version: str
    after: timedelta


class ConnectionRetried(Event):
    """The broker could not be reached; the next attempt is scheduled."""

    level, text = WARNING, "{reason} Trying again in {next_in}."
    address: str
    reason: str
    attempt: int
    next_in: timedelta


class ConnectionLost(Event):
    """The connection to the broker was lost; the package reconnects."""

    level, text = WARNING, "connection to {address} lost ({reason}): reconnecting"
    address: str
    reason: str


class ConsumerInterrupted(Event):
    """The broker stopped delivering from a queue; the package retries."""

    level, text = WARNING, "{queue} stopped delivering ({reason}): consuming again"
    queue: str
    reason: str


class ConsumerResumed(Event):
    """The broker delivers from the queue again."""

    level, text = INFO, "{queue} delivers again"
    queue: str


class ProcessorStarted(Event):
    """A processor consumes messages of these tasks."""

    level = INFO
    namespace: str
    address: str
    tasks: tuple[str, ...]
    concurrency: int

    @property
    def words(self) -> str:
        what = ", ".join(self.tasks) if len(self.tasks) <= 8 else f"{len(self.tasks)} tasks"
        most = f"at most {self.concurrency} runs at once"
        return f"processing {what} of {self.namespace} from {self.address}, {most}"


class TaskPaused(Event):
    """The processor stopped consuming messages of a task that was paused."""

    level, text = INFO, "{task} is paused by {by}: {reason}; its messages wait"
    task: str
    by: str
    reason: str


class TaskResumed(Event):
    """The processor consumes messages of a task again."""

    level, text = INFO, "{task} is resumed"
    task: str


class ProcessorStopping(Event):
    """The processor takes no more messages, and lets its runs finish.

    Attributes:
        why: the cause, such as a signal; empty: unknown.
    """

    level = INFO
    running: int
    grace: timedelta
    why: str = ""

    @property
    def words(self) -> str:
        waiting = f"waiting up to {format_duration(self.grace)} for them"
        return f"stopping{_by(self.why)}: {self.running} running, {waiting}"


class ProcessorStopped(Event):
    """The processor has ended.

    Attributes:
        why: as for `ProcessorStopping`.
    """

    level = INFO
    returned: int
    why: str = ""

    @property
    def words(self) -> str:
        return f"stopped{_by(self.why)}, {counted(self.returned, 'message')} requeued"


def _by(why: str) -> str:
    return f" by {why}" if why else ""


class QueueDeclared(Event):
    """The broker has a queue that was declared, or had it already."""

    queue: str


class LoopSeeded(Event):
    """A loop was seeded.

    Attributes:
        did: created, unchanged, rescheduled or repaired.
    """

    level = DEBUG
    loop: LoopId
    did: str
    due_at: datetime | None

    @property
    def words(self) -> str:
        due = f", due {exact(self.due_at)}" if self.due_at else ""
        return f"{self.loop} {self.did}{due}"


class LoopRepaired(Event):
    """A loop had no token, or two, and has one again.

    Attributes:
        kind: lost, doubled or adopted.
    """

    level, text = WARNING, "{loop} was repaired ({kind}): {detail}"
    loop: LoopId
    kind: str
    detail: str


class PlaceLost(Event):
    """The progress of a repaired loop is lost: it restarts without carried data.

    The journal history was gone with its token.
    """

    level = WARNING
    text = (
        "{loop} lost its state: token and journal history are gone; restarting at #0 without "
        "carried data"
    )
    loop: LoopId


class CallEvent(Event):
    """Something happened to a call at its sender."""

    task: str
    message_id: str


class CallSending(CallEvent):
    """A call is about to be published.

    Attributes:
        headers: travel with the call; a listener may add some, as text.
    """

    headers: dict[str, Any]
    arguments: Mapping[str, Any] = field(repr=False)  # they may be long, and private
    due_at: datetime


class CallSent(CallEvent):
    """The broker has confirmed the call."""


class CallNotSent(CallEvent):
    """The call was not confirmed."""

    error: BaseException


class MessageStored(Event):
    """The fallback store has a message that was not confirmed.

    Attributes:
        target: the task, or the exchange and the routing key.
    """

    level, text = WARNING, "message {message_id} is stored, to be sent later: {reason}"
    message_id: str
    target: str
    reason: str


class StoredSent(Event):
    """The broker has confirmed a message that had been stored."""

    level, text = INFO, "sent the stored message {message_id} to {target}"
    message_id: str
    target: str


class StoredDelayed(Event):
    """Some messages that are stored could not be sent; they are tried again.

    Attributes:
        count: how many; 0: the store has failed, or the broker could not be reached.
    """

    level = WARNING
    count: int
    reason: str

    @property
    def words(self) -> str:
        what = counted(self.count, "stored message") if self.count else "stored messages"
        return f"{what} could not be sent: {self.reason}"


class RunEvent(Event):
    """Something happened to one run.

    Attributes:
        loop: the loop of the run; for a one-off call, its task.
        seq: which tick of the loop; None for a one-off call.
        attempt: counted from 1.
        message_id: of its message; for a one-off call the same through all its attempts.
    """

    loop: LoopId
    seq: int | None
    attempt: int
    message_id: str


class RunStarted(RunEvent):
    """A run began. Its three delays are the parts of `late`.

    Attributes:
        hatch_delay: how late the broker delivered the message after its wait, from the whole
            seconds that it reports: up to a second of it is counted as ready_delay. None: unknown.
        ready_delay: the wait in the queue of the task, also for its turn. None: unknown.
        start_delay: the wait in the processor: for a free slot, or its loop.
        headers: those of its message.
    """

    level = DEBUG
    scheduled_at: datetime
    due_at: datetime
    started_at: datetime
    redelivered: bool
    hatch_delay: timedelta | None
    ready_delay: timedelta | None
    start_delay: timedelta
    headers: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def late(self) -> timedelta:
        """Return how long after the end of its wait the run started."""
        return self.started_at - self.due_at

    @property
    def lead(self) -> timedelta:
        """Return how long before the end of its wait its message had left the broker's timers."""
        return lead_of(self.headers)

    @property
    def words(self) -> str:
        again = ", redelivered" if self.redelivered else ""
        return f"started {_span(self.late)} after its time{again}"


LEVELS = dict.fromkeys(Ending, WARNING) | {Ending.SUCCEEDED: INFO, Ending.ESCALATED: ERROR}


class RunFinished(RunEvent):
    """A run has ended; its settlement follows.

    Attributes:
        error: the exception it raised, or who cancelled it; None: neither.
        successor: the loop's next token.
        retry_in: when a call is tried again.
        skipped: why it was not run at all.
        trace: headers for the loop's next token; a listener may add some.
        void: whether the loop was paused, changed or repaired in the meantime: then the successor
            is not used.
        call: the call; None: it was the run of a loop.
    """

    level = ERROR
    scheduled_at: datetime
    started_at: datetime
    duration: timedelta
    ending: Ending
    error: Exception | None
    successor: Token | None
    retry_in: timedelta | None = None
    skipped: str | None = None
    trace: dict[str, str] = field(default_factory=dict[str, str])
    void: bool = False
    call: Call | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Copy the dicts of the successor, which is not yet published, for its listeners."""
        if (token := self.successor) is not None and (token.args or token.carry or token.trace):
            args, carry, trace = map(unshared, (token.args, token.carry, token.trace))
            copy = replace(token, args=args, carry=carry, trace=trace)
            object.__setattr__(self, "successor", copy)

    @property
    def severity(self) -> int:
        return LEVELS[self.ending]

    @property
    def words(self) -> str:
        took, then = _span(self.duration), self._then()
        error = summary_of(self.error) if self.error else ""
        match self.ending:
            case Ending.SUCCEEDED:
                return f"succeeded in {took}{then}"
            case Ending.SKIPPED:
                return f"skipped: {self.skipped}{then}"
            case Ending.CANCELLED:
                return f"{self.error} after {took}{then}"
            case Ending.STOPPED:
                return f"stopped its loop in {took}: {error}"
            case Ending.RETRIED:
                return f"failed in {took}, attempt {self.attempt}: {error}{then}"
            case Ending.ESCALATED:
                return f"failed in {took}, attempt {self.attempt}: {error}"

    def _then(self) -> str:
        if self.retry_in is not None:
            return f", again in {_span(self.retry_in)}"
        token = self.successor
        if token is None:
            return ""
        if self.void:
            return ", and was paused, changed or repaired in the meantime"
        if token.state is State.PAUSED:
            return ", paused"
        if token.state is State.DONE:
            return ", which was its only run"
        due_at, ended_at = token.due_at.astimezone(), self.started_at + self.duration
        is_today = due_at.date() == ended_at.astimezone().date()
        shown = time_of_day(due_at) if is_today else exact(due_at)
        return f", {'again' if token.attempt else 'next'} at {shown}"


class SuccessorConfirmed(RunEvent):
    """The broker has confirmed the successor of the run; the ack is next."""


class RunSettled(RunEvent):
    """The run is over: its message is acked with all others of this turn of the event loop."""


class RunLost(RunEvent):
    """The delivery of the run was lost with the connection: another processor runs it.

    Attributes:
        left_behind: the processor ends while the run continues in its thread until the process
        ends.
    """

    level = WARNING
    left_behind: bool = False

    @property
    def words(self) -> str:
        if self.left_behind:
            why = "abandoned: the thread outlived shutdown"
            return f"{why}; another processor runs it again"
        return "cancelled: connection lost; another processor runs it again"


class RunReturned(RunEvent):
    """The processor of the run is stopping: the message is requeued."""

    level, text = INFO, "cancelled and requeued: this processor is stopping"


class TicksSkipped(RunEvent):
    """Nominal times had no run of their own.

    Attributes:
        reason: late (no processor was running) or overrun (a run took too long).
    """

    level = WARNING
    count: int
    reason: str

    @property
    def words(self) -> str:
        late = self.reason == "late"
        why = "no processor was running in time" if late else "the run took longer than a tick"
        return f"{counted(self.count, 'tick')} skipped: {why}"


class TokenSuperseded(RunEvent):
    """A token was acked without a run.

    Attributes:
        reason: void (a later epoch of its loop has begun) or settled (its successor was put).
    """

    level = INFO
    reason: str

    @property
    def words(self) -> str:
        if self.reason == "settled":
            return "was settled before: not run again"
        return "skipped: the loop was paused, rescheduled or repaired in the meantime"


class HatchedEarly(RunEvent):
    """A message came before its time, and returns to its timers for the rest of its wait.

    Attributes:
        reason: how it left its timer. expired: the timer expired it too soon (a policy's
            message-ttl, or clocks that differ); maxlen: its timer was full (a policy's max-length);
            unrouted: its timer had no queue for it; early: it did not pass the timers.
        queue: the timer that it left; empty: none.
        early: how long before its time it came.
        is_repeated: whether a message of this task came early for this reason a short time ago.
    """

    level = WARNING
    reason: str
    queue: str
    early: timedelta
    is_repeated: bool = False

    @property
    def severity(self) -> int:
        return DEBUG if self.is_repeated else WARNING

    @property
    def words(self) -> str:
        left = {
            "expired": f"released too early by {self.queue} (a policy's message-ttl, or clocks "
            "that differ)",
            "maxlen": f"dropped by {self.queue}, which is full (a policy's max-length)",
            "unrouted": "as its timer found no queue for it",
        }.get(self.reason, "bypassed its timers")
        early = timedelta(seconds=round(self.early.total_seconds()))
        rest = format_duration(early) if early <= LONGEST else f"{early.days}d"
        then = "it waits again. `scheduler doctor` lists policies that shorten waits"
        return f"{rest} before its time, {left}: {then}"


class Escalated(RunEvent):
    """A run failed for the last time; or (for hooks only) its message could not be run at all.

    Attributes:
        seq: also None for a loop whose token could not be run.
        paused: whether the loop now waits for an operator.
        reason: why its message was parked: exhausted, rejected, invalid-arguments, undecodable...
    """

    level = ERROR
    error: Exception
    paused: bool
    reason: str = "exhausted"

    @property
    def words(self) -> str:
        then = ", the loop is paused" if self.paused else ", the loop continues"
        then = "" if self.seq is None else then
        return f"failed for the last time: parked for replay{then}"


EscalationHook = Callable[[Escalated], Awaitable[None] | None]
"""A function, plain or coroutine, that is called when a message was parked."""


class MessageParked(Event):
    """A message is in a failed queue, with the reason."""

    level, text = ERROR, "a message for {routing_key} was parked ({reason}): {error}"
    routing_key: str
    message_id: str | None
    reason: str
    error: str

    @property
    def task(self) -> str:
        """Return the task of the failed queue, by its routing key."""
        return self.routing_key.partition(".")[2].partition(".")[0]

    @property
    def severity(self) -> int:
        is_escalated = self.reason in ("exhausted", "rejected", "cancelled")
        return DEBUG if is_escalated else ERROR  # Escalated reports it


class EpochHeard(Event):
    """A processor that follows the roster has heard of an epoch that began.

    Attributes:
        lag: the time since it began, between the clocks of two machines.
    """

    level, text = DEBUG, "{loop} is in epoch {epoch}, heard after {lag}"
    loop: LoopId
    epoch: int
    lag: timedelta


class CensusTaken(Event):
    """Supervision has checked the loops of the namespace."""

    level = DEBUG
    loops: int
    took: timedelta

    @property
    def words(self) -> str:
        return f"checked {counted(self.loops, 'loop')} in {_span(self.took)}"


class LoopReported(Event):
    """Supervision found a problem that it cannot repair.

    Attributes:
        loop: without a key for all loops of a task.
        trouble: orphaned, removed or unattended.
    """

    level, text = WARNING, "{loop} is {trouble}. {advice}"
    loop: LoopId
    trouble: str
    advice: str


class TimerStuck(Event):
    """A timer of the broker holds messages past their time.

    Attributes:
        was_recreated: whether supervision has deleted it and declared it again.
    """

    level = ERROR
    queue: str
    cause: str
    was_recreated: bool

    @property
    def severity(self) -> int:
        return WARNING if self.was_recreated else ERROR

    @property
    def words(self) -> str:
        if self.was_recreated:
            return f"{self.queue} did not hatch and was recreated. {self.cause}"
        check = (
            "Check whether a queue that it leads to rejects messages (a policy's max-length), or "
            "has no leader."
        )
        return f"{self.queue} does not hatch. {self.cause} {check}"


class QueuesMissing(Event):
    """Queues of the app did not exist: they have expired, or an operator deleted them.

    Attributes:
        were_declared: whether supervision has declared them again.
    """

    level = ERROR
    queues: tuple[str, ...]
    were_declared: bool

    @property
    def words(self) -> str:
        more = f" and {counted(len(self.queues) - 1, 'other queue')}" if self.queues[1:] else ""
        then = (
            "and were declared again: their messages are lost"
            if self.were_declared
            else "and this user may not declare queues: run `scheduler seed`"
        )
        return f"{self.queues[0]}{more} did not exist, {then}"


class PolicyReported(Event):
    """A policy of the broker's operators changes the queues.

    Attributes:
        detail: the changed queues and settings.
        advice: the command that shields the namespace from it.
    """

    level, text = ERROR, "the {policy} {detail}. {advice}"
    policy: str
    detail: str
    advice: str


class SupervisionDelayed(Event):
    """Supervision failed; it tries again."""

    level, text = WARNING, "supervision is delayed: {reason}"
    reason: str


class TokenDelayed(Event):
    """A token is held until its state is verified."""

    level, text = WARNING, "{routing_key}: run delayed while its state is verified: {reason}"
    routing_key: str
    reason: str


class SettlementDelayed(Event):
    """The broker did not confirm a settlement; it is tried again."""

    level, text = (
        WARNING,
        "the settlement of {routing_key} is not confirmed: {reason} Trying again in {next_in}.",
    )
    routing_key: str
    reason: str
    next_in: timedelta


class MessageConfirmed(Event):
    """The broker has confirmed a message that was published.

    Attributes:
        took: the time from publishing it until the broker's answer.
    """

    exchange: str
    took: timedelta


class EventLoopBlocked(Event):
    """The event loop was blocked by a task.

    Attributes:
        by: the name of the asyncio task, such as "run report #7".
        place: the line that it was in after a second, with its file and function.
    """

    level, text = WARNING, "the event loop was blocked for {took} by {by}, at {place}"
    by: str
    place: str
    took: timedelta
