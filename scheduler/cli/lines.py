"""What the log says of each event, in words: one line each."""

import logging
from datetime import datetime, timedelta

from scheduler.cli.printing import counted
from scheduler.events import (
    CallEvent,
    CensusTaken,
    Connected,
    ConnectionLost,
    ConnectionRetried,
    ConsumerInterrupted,
    ConsumerResumed,
    EpochHeard,
    Escalated,
    Event,
    EventLoopBlocked,
    HatchedEarly,
    LoopRepaired,
    LoopReported,
    LoopSeeded,
    MessageConfirmed,
    MessageParked,
    MessageStored,
    PlaceLost,
    PolicyReported,
    ProcessorStarted,
    ProcessorStopped,
    ProcessorStopping,
    QueueDeclared,
    RunEvent,
    RunFinished,
    RunLost,
    RunReturned,
    RunSettled,
    RunStarted,
    SettlementDelayed,
    StoredDelayed,
    StoredSent,
    SuccessorConfirmed,
    SupervisionDelayed,
    TicksSkipped,
    TimerStuck,
    TokenDelayed,
    TokenSuperseded,
)
from scheduler.protocol.messages import summary_of
from scheduler.protocol.tokens import Ending, State
from scheduler.timing.durations import format_duration

DEBUG, INFO, WARNING, ERROR = logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR
SILENT = CallEvent, MessageConfirmed, QueueDeclared, RunSettled, SuccessorConfirmed
ONLY_FOR_DEBUGGING = LoopSeeded, EpochHeard, CensusTaken, RunStarted
EARLY = {
    "expired": "let go by {} too soon (a policy's message-ttl, or clocks that differ)",
    "maxlen": "dropped by {}, which is full (a policy's max-length)",
    "unrouted": "as its timer found no queue for it",
}


Line = tuple[int, str]
"""The level of a line of the log, and its words."""


def line_of(event: Event) -> Line | None:
    """The line for an event; None: it is not worth one. Those of runs leave out which run it is."""
    return _of_run(event) if isinstance(event, RunEvent) else _of_processor(event)


def _of_run(event: RunEvent) -> Line | None:
    match event:
        case RunFinished():
            return _of_end(event)
        case RunStarted():
            again = ", redelivered" if event.redelivered else ""
            return DEBUG, f"started {_span(event.late)} after its time{again}"
        case RunLost():
            if event.left_behind:
                why = "left behind in its thread: this processor ends"
                return WARNING, f"{why}, another one runs it"
            return WARNING, "cancelled: its connection went, another processor runs it"
        case RunReturned():
            return INFO, "cancelled and given back: this processor is stopping"
        case TicksSkipped():
            late = event.reason == "late"
            why = "no processor was there in time" if late else "the run took longer than a tick"
            return WARNING, f"{counted(event.count, 'tick')} skipped: {why}"
        case TokenSuperseded():
            if event.reason == "settled":
                return INFO, "was settled before: not run again"
            return INFO, "skipped: the loop was paused, rescheduled or repaired in the meantime"
        case HatchedEarly():
            left = EARLY.get(event.reason, "came past its timers").format(event.queue)
            early = timedelta(seconds=round(event.early.total_seconds()))
            then = "it waits on. `scheduler doctor` names policies that cut waits short"
            return WARNING, f"{format_duration(early)} before its time, {left}: {then}"
        case Escalated():
            then = ", the loop is paused" if event.paused else ", the loop goes on"
            then = "" if event.seq is None else then
            return ERROR, f"failed for the last time: parked for replay{then}"
        case _:
            return None


def _of_end(event: RunFinished) -> Line:
    if event.ending is Ending.SUCCEEDED:
        return INFO, f"succeeded in {_span(event.duration)}{_then(event)}"
    took = f"in {_span(event.duration)}"
    error = summary_of(event.error) if event.error else ""
    match event.ending:
        case Ending.SKIPPED:
            return WARNING, f"skipped: {event.skipped}{_then(event)}"
        case Ending.CANCELLED:
            return WARNING, f"{event.error} after {_span(event.duration)}{_then(event)}"
        case Ending.STOPPED:
            return WARNING, f"stopped its loop {took}: {error}"
        case Ending.RETRIED:
            return WARNING, f"failed {took}, attempt {event.attempt + 1}: {error}{_then(event)}"
        case Ending.ESCALATED:
            return ERROR, f"failed {took}, attempt {event.attempt + 1}: {error}"


def _of_processor(event: Event) -> Line | None:
    match event:
        case Connected():
            return INFO, f"connected to {event.address} (RabbitMQ {event.version})"
        case ConnectionRetried():
            return WARNING, f"{event.reason} Trying again in {_span(event.next_in)}."
        case ConnectionLost():
            return WARNING, f"connection to {event.address} lost ({event.reason}): reconnecting"
        case ConsumerInterrupted():
            return WARNING, f"{event.queue} delivers no more ({event.reason}): consuming again"
        case ConsumerResumed():
            return INFO, f"{event.queue} delivers again"
        case ProcessorStarted():
            few = len(event.tasks) <= 8
            what = ", ".join(event.tasks) if few else f"{len(event.tasks)} tasks"
            most = f"at most {event.concurrency} runs at once"
            return INFO, f"processing {what} of {event.namespace} from {event.address}, {most}"
        case ProcessorStopping():
            waiting = f"waiting up to {format_duration(event.grace)} for them"
            return INFO, f"stopping{_by(event.why)}: {event.running} running, {waiting}"
        case ProcessorStopped():
            given_back = counted(event.returned, "message")
            return INFO, f"stopped{_by(event.why)}, {given_back} given back"
        case LoopSeeded():
            due = f", due {_dated(event.due_at)}" if event.due_at else ""
            return DEBUG, f"{event.loop} {event.did}{due}"
        case LoopRepaired():
            return WARNING, f"{event.loop} was repaired ({event.kind}): {event.detail}"
        case PlaceLost():
            lost = "with its token, what the journal had heard of it is gone"
            then = "It goes on from now, at #0, and what its runs had carried is lost"
            return WARNING, f"{event.loop} has lost its place: {lost}. {then}"
        case TimerStuck():
            if event.was_recreated:
                return WARNING, f"{event.queue} did not hatch and was recreated. {event.cause}"
            check = (
                "Check whether a queue that it leads to rejects messages (a policy's max-length), "
                "or has no leader."
            )
            return ERROR, f"{event.queue} does not hatch. {event.cause} {check}"
        case PolicyReported():
            return ERROR, f"the {event.policy} {event.detail}. {event.advice}"
        case LoopReported():
            return WARNING, f"{event.loop} is {event.trouble}. {event.advice}"
        case EpochHeard():
            return DEBUG, f"{event.loop} is in epoch {event.epoch}, heard after {_span(event.lag)}"
        case CensusTaken():
            loops, took = counted(event.loops, "loop"), _span(event.took)
            return DEBUG, f"counted the tokens of {event.counted} of {loops} in {took}"
        case SupervisionDelayed():
            return WARNING, f"supervision is delayed: {event.reason}"
        case TokenDelayed():
            return WARNING, f"it is not known yet whether {event.routing_key} runs: {event.reason}"
        case SettlementDelayed():
            why = f"{event.reason} Trying again in {_span(event.next_in)}."
            return WARNING, f"the settlement of {event.routing_key} is not confirmed: {why}"
        case EventLoopBlocked():
            place = f"{event.by}, at {event.place}"
            return WARNING, f"the event loop was blocked for {_span(event.took)} by {place}"
        case MessageStored():
            why = f"to be sent later: {event.reason}"
            return WARNING, f"message {event.message_id} is stored, {why}"
        case StoredSent():
            return INFO, f"sent the stored message {event.message_id} to {event.target}"
        case StoredDelayed():
            what = counted(event.count, "stored message") if event.count else "stored messages"
            return WARNING, f"{what} could not be sent: {event.reason}"
        case MessageParked():
            escalated = event.reason in ("exhausted", "rejected", "cancelled")  # Escalated says so
            why = f"({event.reason}): {event.error}"
            level = DEBUG if escalated else ERROR
            return level, f"a message for {event.routing_key} was parked {why}"
        case _:
            return None


def clock(moment: datetime) -> str:
    """The time of day on the clock of this machine, to the millisecond."""
    return moment.astimezone().strftime("%H:%M:%S.%f")[:-3]


def _then(event: RunFinished) -> str:
    if event.retry_in is not None:
        return f", again in {_span(event.retry_in)}"
    token = event.successor
    if token is None:
        return ""
    if event.void:
        return ", and was paused, changed or repaired meanwhile"
    if token.state is State.PAUSED:
        return ", paused"
    if token.state is State.DONE:
        return ", which was its only run"
    ended_at = event.started_at + event.duration
    return f", {'again' if token.attempt else 'next'} at {_later(token.due_at, ended_at)}"


def _later(moment: datetime, now: datetime) -> str:
    """The time of day, if that is of the same day; else with its date and UTC offset."""
    is_today = moment.astimezone().date() == now.astimezone().date()
    return clock(moment) if is_today else _dated(moment)


def _dated(moment: datetime) -> str:
    return moment.astimezone().isoformat(" ", timespec="seconds")


def _by(why: str) -> str:
    return f" by {why}" if why else ""


def _span(span: timedelta) -> str:
    ms = span / timedelta(milliseconds=1)
    return f"{ms:.0f} ms" if abs(ms) < 10_000 else f"{ms / 1000:.1f} s"
