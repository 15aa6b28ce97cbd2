"""What happened: one stream of typed events that logs, metrics and tests listen to.

=====================  ==========================================================================
event                  says
=====================  ==========================================================================
Connected              the broker can be reached
ConnectionRetried      it could not be reached; the next try is due
ConnectionLost         it cannot be reached any more; we keep trying
ConsumerInterrupted    the broker stopped delivering from a queue; we keep trying
ConsumerResumed        it delivers again
ProcessorStarted       a processor takes messages of these tasks
ProcessorStopping      it takes no more, and lets its runs finish
ProcessorStopped       it has ended
QueueDeclared          the broker has a queue that was declared
LoopSeeded             what seeding found or did for a loop
LoopRepaired           a loop had no token, and has one again
CallSending            a call is about to be published
CallSent               the broker has confirmed it
CallNotSent            it was not confirmed
MessageStored          the fallback store has a message that was not confirmed
StoredSent             the broker has confirmed one that had been stored
StoredDelayed          some that are stored could not be sent; they are tried again
RunStarted             a run began
RunFinished            it ended, and this is what its settlement will do
SuccessorConfirmed     the broker has confirmed what comes after the run; the ack is next
RunSettled             its message is acked: the run is over
RunLost                its delivery went with the connection: somebody else runs it
RunReturned            its processor is stopping: the message goes back to its queue
TicksSkipped           nominal times that no run stood for, and why
TokenSuperseded        a token that is void, or was settled before: acked without a run
HatchedEarly           a message came before its time, and goes back for the rest of its wait
TokenDelayed           it is not known yet whether a token is to be run; it is asked again
Escalated              a run failed for the last time
MessageParked          a message is in a failed queue, with the reason
LoopReported           supervision found a problem that it cannot repair
TimerStuck             a timer of the broker holds messages past their time
PolicyReported         a policy of the broker's operators changes the queues
PlaceLost              nothing tells how far a loop had come that was repaired: it begins anew
EpochHeard             a processor that follows the roster has heard of an epoch that began
CensusTaken            supervision has counted tokens
SupervisionDelayed     supervision could not do its work; it tries again
SettlementDelayed      the broker did not confirm a settlement; it is tried again
MessageConfirmed       the broker has confirmed a message that was published
EventLoopBlocked       the event loop goes on, after a task had held it up
=====================  ==========================================================================
"""

import inspect
import logging
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from scheduler.errors import RegistrationError
from scheduler.protocol.calls import Call
from scheduler.protocol.messages import lead_of
from scheduler.protocol.tokens import Ending, LoopId, Token
from scheduler.user_code import UserCode


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened."""


Emit = Callable[[Event], None]


def require_one_parameter(kind: str, function: Callable[[Any], object]) -> None:
    """Refuse what could not be called with an event.

    Raises:
        RegistrationError: it cannot.
    """
    try:
        inspect.signature(function).bind(None)
    except TypeError as error:
        raise RegistrationError(
            f"The {kind} {function!r} cannot be called with one argument, the event: {error}."
        ) from None
    except ValueError:
        return  # something built in, which does not tell its parameters


class EventStream:
    """Hands each event to every listener, at once and in order.

    A listener runs inside the scheduler: it should be quick. What it raises is logged and goes no
    further.
    """

    def __init__(self) -> None:
        self._listeners: list[tuple[Emit, tuple[type[Event], ...]]] = []
        self._of_kind: dict[type[Event], list[Emit]] = {}

    def listen(self, listener: Emit, *kinds: type[Event]) -> Emit:
        """Add a listener. Usable as a decorator.

        Args:
            kinds: what it is told of; none are named: of everything.

        Raises:
            RegistrationError: it cannot be called with an event, or is a coroutine function.
        """
        require_one_parameter("listener", listener)
        if inspect.iscoroutinefunction(listener):
            raise RegistrationError(
                f"The listener {listener!r} is a coroutine function, and nobody would await it: "
                "write `def`, and start tasks of your own in it."
            )
        self._listeners.append((listener, kinds or (Event,)))
        self._of_kind.clear()
        return listener

    def forget(self, listener: Emit) -> None:
        """Remove a listener."""
        del self._listeners[[each for each, _ in self._listeners].index(listener)]
        self._of_kind.clear()

    @contextmanager
    def listening(self, listener: Emit, *kinds: type[Event]) -> Generator[None]:
        """Have a listener inside the block."""
        self.listen(listener, *kinds)
        try:
            yield
        finally:
            self.forget(listener)

    def has_listeners(self, kind: type[Event]) -> bool:
        """Whether anybody is told of such events."""
        return bool(self._listeners_of(kind))

    def emit(self, event: Event) -> None:
        """Hand an event to every listener that is told of its kind."""
        for listener in self._listeners_of(type(event)):
            try:
                with UserCode("the listener"):
                    listener(event)
            except Exception:
                logging.getLogger(__name__).exception("The listener %r failed", listener)

    def _listeners_of(self, kind: type[Event]) -> list[Emit]:
        if (found := self._of_kind.get(kind)) is None:
            found = [each for each, kinds in self._listeners if issubclass(kind, kinds)]
            self._of_kind[kind] = found
        return found


@dataclass(frozen=True, slots=True)
class Connected(Event):
    """The broker can be reached."""

    address: str
    version: str
    after: timedelta


@dataclass(frozen=True, slots=True)
class ConnectionRetried(Event):
    """It could not be reached; the next try is due."""

    address: str
    reason: str
    attempt: int
    next_in: timedelta


@dataclass(frozen=True, slots=True)
class ConnectionLost(Event):
    """It cannot be reached any more; we keep trying."""

    address: str
    reason: str


@dataclass(frozen=True, slots=True)
class ConsumerInterrupted(Event):
    """The broker stopped delivering from a queue; we keep trying."""

    queue: str
    reason: str


@dataclass(frozen=True, slots=True)
class ConsumerResumed(Event):
    """It delivers again."""

    queue: str


@dataclass(frozen=True, slots=True)
class ProcessorStarted(Event):
    """A processor takes messages of these tasks."""

    namespace: str
    address: str
    tasks: tuple[str, ...]
    concurrency: int


@dataclass(frozen=True, slots=True)
class ProcessorStopping(Event):
    """It takes no more, and lets its runs finish.

    Attributes:
        why: what told it to, such as a signal; empty: nobody said.
    """

    running: int
    grace: timedelta
    why: str = ""


@dataclass(frozen=True, slots=True)
class ProcessorStopped(Event):
    """It has ended.

    Attributes:
        why: as of `ProcessorStopping`.
    """

    returned: int
    why: str = ""


@dataclass(frozen=True, slots=True)
class QueueDeclared(Event):
    """The broker has a queue that was declared, or had it already."""

    queue: str


@dataclass(frozen=True, slots=True)
class LoopSeeded(Event):
    """Attributes: did is created, unchanged, rescheduled or repaired."""

    loop: LoopId
    did: str
    due_at: datetime | None


@dataclass(frozen=True, slots=True)
class LoopRepaired(Event):
    """Attributes: kind is lost, doubled or adopted."""

    loop: LoopId
    kind: str
    detail: str


@dataclass(frozen=True, slots=True)
class PlaceLost(Event):
    """Nothing tells how far a loop had come that was repaired: it begins anew, carrying nothing.

    With its token, what the journal had heard of it was gone.
    """

    loop: LoopId


@dataclass(frozen=True, slots=True)
class CallEvent(Event):
    """Something that happened to a call where it is sent."""

    task: str
    message_id: str


@dataclass(frozen=True, slots=True)
class CallSending(CallEvent):
    """Attributes: headers travel with the call; a listener may add some, as text."""

    headers: dict[str, Any]
    arguments: Mapping[str, Any] = field(repr=False)  # they may be long, and nobody else's business
    due_at: datetime


@dataclass(frozen=True, slots=True)
class CallSent(CallEvent):
    """The broker has confirmed it."""


@dataclass(frozen=True, slots=True)
class CallNotSent(CallEvent):
    """It was not confirmed."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class MessageStored(Event):
    """The fallback store has a message that was not confirmed.

    Attributes:
        target: the task, or the exchange and the routing key.
    """

    message_id: str
    target: str
    reason: str


@dataclass(frozen=True, slots=True)
class StoredSent(Event):
    """The broker has confirmed a message that had been stored."""

    message_id: str
    target: str


@dataclass(frozen=True, slots=True)
class StoredDelayed(Event):
    """Some messages that are stored could not be sent; they are tried again.

    Attributes:
        count: how many; 0: the store itself has failed.
    """

    count: int
    reason: str


@dataclass(frozen=True, slots=True)
class RunEvent(Event):
    """Something that happened to one run.

    Attributes:
        loop: whose run it is; for a one-off call, its task.
        seq: which tick of the loop; None for a one-off call.
        attempt: how many attempts had failed before.
        message_id: of its message; for a one-off call the same through all its attempts.
    """

    loop: LoopId
    seq: int | None
    attempt: int
    message_id: str


@dataclass(frozen=True, slots=True)
class RunStarted(RunEvent):
    """Attributes: the three delays are the parts of `late`; None: that part is not known.

    hatch_delay is how late the broker handed the message on after its wait, from the whole seconds
    that it tells: up to a second of it is counted as ready_delay. ready_delay is the wait in the
    queue of the task, for its turn too; start_delay that in the processor: for a free place, or its
    loop.
    headers are those of its message.
    """

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
        """How long after the end of its wait the run started."""
        return self.started_at - self.due_at

    @property
    def lead(self) -> timedelta:
        """How long before the end of its wait its message had left the broker's timers."""
        return lead_of(self.headers)


@dataclass(frozen=True, slots=True)
class RunFinished(RunEvent):
    """How a run ended.

    Attributes:
        error: what it has raised; that it was cancelled, and by whom; None: neither.
        successor: the loop's next token.
        retry_in: when a call is tried again.
        skipped: why it was not run at all.
        trace: headers that the loop's next token takes along; a listener may add some.
        void: whether the loop was paused, changed or repaired meanwhile: it goes on, or waits, as
            that has left it, and not with the successor.
        call: the call; None: it was the run of a loop.
    """

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


@dataclass(frozen=True, slots=True)
class SuccessorConfirmed(RunEvent):
    """The broker has confirmed what comes after the run; the ack is next."""


@dataclass(frozen=True, slots=True)
class RunSettled(RunEvent):
    """Its message is acked: the run is over."""


@dataclass(frozen=True, slots=True)
class RunLost(RunEvent):
    """Its delivery went with the connection: somebody else runs it.

    Attributes:
        left_behind: the processor ends, and it goes on in its thread until the process ends, too.
    """

    left_behind: bool = False


@dataclass(frozen=True, slots=True)
class RunReturned(RunEvent):
    """Its processor is stopping: the message goes back to its queue."""


@dataclass(frozen=True, slots=True)
class TicksSkipped(RunEvent):
    """Attributes: reason is late (no processor was there) or overrun (a run took too long)."""

    count: int
    reason: str


@dataclass(frozen=True, slots=True)
class TokenSuperseded(RunEvent):
    """A token was acked without a run.

    Attributes:
        reason: void (a later epoch of its loop has begun) or settled (its successor was put).
    """

    reason: str


@dataclass(frozen=True, slots=True)
class HatchedEarly(RunEvent):
    """A message came before its time, and goes back to its timers for the rest of its wait.

    Attributes:
        reason: what took it out. expired: its timer let it go too soon (a policy's message-ttl, or
            clocks that differ); maxlen: its timer was full (a policy's max-length); unrouted: its
            timer had no queue for it; early: it came past the timers.
        queue: the timer that it left; empty: none.
        early: how long before its time it came.
    """

    reason: str
    queue: str
    early: timedelta


@dataclass(frozen=True, slots=True)
class Escalated(RunEvent):
    """A run failed for the last time; or, told to hooks only, its message could not be run at all.

    Attributes:
        seq: None also of a loop, if its token could not be run.
        paused: whether the loop waits for an operator now.
        reason: why its message was parked: exhausted, rejected, invalid-arguments, undecodable...
    """

    error: Exception
    paused: bool
    reason: str = "exhausted"


EscalationHook = Callable[[Escalated], Awaitable[None] | None]
"""A function, plain or coroutine, that is called when a message was parked."""


@dataclass(frozen=True, slots=True)
class MessageParked(Event):
    """A message is in a failed queue, with the reason."""

    routing_key: str
    message_id: str | None
    reason: str
    error: str

    @property
    def task(self) -> str:
        """Whose failed queue it is in, as its routing key tells."""
        return self.routing_key.partition(".")[2].partition(".")[0]


@dataclass(frozen=True, slots=True)
class EpochHeard(Event):
    """Attributes: lag is the time since it began, between the clocks of two machines."""

    loop: LoopId
    epoch: int
    lag: timedelta


@dataclass(frozen=True, slots=True)
class CensusTaken(Event):
    """Attributes: counted says of how many of the loops the tokens were counted."""

    counted: int
    loops: int
    took: timedelta


@dataclass(frozen=True, slots=True)
class LoopReported(Event):
    """Attributes: trouble is orphan, unattended or missing."""

    loop: LoopId
    trouble: str
    advice: str


@dataclass(frozen=True, slots=True)
class TimerStuck(Event):
    """A timer of the broker holds messages past their time.

    Attributes:
        was_recreated: whether supervision has deleted it and declared it again.
    """

    queue: str
    cause: str
    was_recreated: bool


@dataclass(frozen=True, slots=True)
class PolicyReported(Event):
    """A policy of the broker's operators changes the queues.

    Attributes:
        detail: which of them, and what it sets.
        advice: the command that shields the namespace from it.
    """

    policy: str
    detail: str
    advice: str


@dataclass(frozen=True, slots=True)
class SupervisionDelayed(Event):
    """Supervision could not do its work; it tries again."""

    reason: str


@dataclass(frozen=True, slots=True)
class TokenDelayed(Event):
    """It is not known yet whether a token is to be run; it is asked again."""

    routing_key: str
    reason: str


@dataclass(frozen=True, slots=True)
class SettlementDelayed(Event):
    """The broker did not confirm a settlement; it is tried again."""

    routing_key: str
    reason: str
    next_in: timedelta


@dataclass(frozen=True, slots=True)
class MessageConfirmed(Event):
    """Attributes: took is the time from publishing it until the broker's answer."""

    exchange: str
    took: timedelta


@dataclass(frozen=True, slots=True)
class EventLoopBlocked(Event):
    """The event loop goes on, after somebody had held it up.

    Attributes:
        by: the name of the asyncio task, such as "run report #7".
        place: the line that it was in after a second, with its file and function.
    """

    by: str
    place: str
    took: timedelta
