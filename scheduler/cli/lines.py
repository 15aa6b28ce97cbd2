"""What the log says of each event, in words: one line each."""

import logging
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import singledispatch
from typing import NamedTuple

from scheduler.events import (
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
    LoopRepaired,
    LoopReported,
    LoopSeeded,
    MessageParked,
    PlaceLost,
    ProcessorStarted,
    ProcessorStopped,
    ProcessorStopping,
    RunFinished,
    RunLost,
    RunReturned,
    RunStarted,
    SettlementDelayed,
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
ONLY_FOR_DEBUGGING = LoopSeeded, EpochHeard, CensusTaken, RunStarted


class Line(NamedTuple):
    """A line of the log.

    Attributes:
        says: its words, or what finds them if it is read; nothing: it is not worth one.
    """

    level: int
    says: str | Callable[[], str]

    @property
    def words(self) -> str:
        return self.says if isinstance(self.says, str) else self.says()


@singledispatch
def line_of(event: Event) -> Line:
    """The line for an event; those of runs leave out which run it is."""
    return Line(DEBUG, "")


@line_of.register
def _(event: Connected) -> Line:
    return Line(INFO, f"connected to {event.address} (RabbitMQ {event.version})")


@line_of.register
def _(event: ConnectionRetried) -> Line:
    return Line(WARNING, f"{event.reason} Trying again in {_span(event.next_in)}.")


@line_of.register
def _(event: ConnectionLost) -> Line:
    return Line(WARNING, f"connection to {event.address} lost ({event.reason}): reconnecting")


@line_of.register
def _(event: ConsumerInterrupted) -> Line:
    return Line(WARNING, f"{event.queue} delivers no more ({event.reason}): consuming again")


@line_of.register
def _(event: ConsumerResumed) -> Line:
    return Line(INFO, f"{event.queue} delivers again")


@line_of.register
def _(event: ProcessorStarted) -> Line:
    few = len(event.tasks) <= 8
    what = ", ".join(event.tasks) if few else f"{len(event.tasks)} tasks"
    return Line(
        INFO,
        f"processing {what} of {event.namespace} from {event.address}, "
        f"at most {event.concurrency} runs at once",
    )


@line_of.register
def _(event: ProcessorStopping) -> Line:
    return Line(
        INFO,
        f"stopping{_by(event.why)}: {event.running} running, "
        f"waiting up to {format_duration(event.grace)} for them",
    )


@line_of.register
def _(event: ProcessorStopped) -> Line:
    given_back = _counted(event.returned, "message")
    return Line(INFO, f"stopped{_by(event.why)}, {given_back} given back")


@line_of.register
def _(event: LoopSeeded) -> Line:
    due = f", due {_dated(event.due_at)}" if event.due_at else ""
    return Line(DEBUG, f"{event.loop} {event.did}{due}")


@line_of.register
def _(event: LoopRepaired) -> Line:
    return Line(WARNING, f"{event.loop} was repaired ({event.kind}): {event.detail}")


@line_of.register
def _(event: PlaceLost) -> Line:
    return Line(
        WARNING,
        f"{event.loop} has lost its place: with its token, what the journal had heard of it is "
        "gone. It goes on from now, at #0, and what its runs had carried is lost",
    )


@line_of.register
def _(event: TimerStuck) -> Line:
    if event.was_recreated:
        return Line(WARNING, f"{event.queue} did not hatch and was recreated. {event.cause}")
    return Line(
        ERROR,
        f"{event.queue} does not hatch. {event.cause} Check whether a queue that it leads to "
        "rejects messages (a policy's max-length), or has no leader.",
    )


@line_of.register
def _(event: LoopReported) -> Line:
    return Line(WARNING, f"{event.loop} is {event.trouble}. {event.advice}")


@line_of.register
def _(event: EpochHeard) -> Line:
    return Line(DEBUG, f"{event.loop} is in epoch {event.epoch}, heard after {_span(event.lag)}")


@line_of.register
def _(event: CensusTaken) -> Line:
    return Line(
        DEBUG,
        f"counted the tokens of {event.counted} of {_counted(event.loops, 'loop')} "
        f"in {_span(event.took)}",
    )


@line_of.register
def _(event: SupervisionDelayed) -> Line:
    return Line(WARNING, f"supervision is delayed: {event.reason}")


@line_of.register
def _(event: TokenDelayed) -> Line:
    return Line(WARNING, f"it is not known yet whether {event.routing_key} runs: {event.reason}")


@line_of.register
def _(event: SettlementDelayed) -> Line:
    return Line(
        WARNING,
        f"the settlement of {event.routing_key} is not confirmed: {event.reason} "
        f"Trying again in {_span(event.next_in)}.",
    )


@line_of.register
def _(event: EventLoopBlocked) -> Line:
    return Line(
        WARNING,
        f"the event loop was blocked for {_span(event.took)} by {event.by}, at {event.place}",
    )


@line_of.register
def _(event: MessageParked) -> Line:
    escalated = event.reason in ("exhausted", "rejected", "cancelled")  # Escalated says so
    return Line(
        DEBUG if escalated else ERROR,
        f"a message for {event.routing_key} was parked ({event.reason}): {event.error}",
    )


@line_of.register
def _(event: RunStarted) -> Line:
    again = ", redelivered" if event.redelivered else ""
    return Line(DEBUG, lambda: f"started {_span(event.late)} after its time{again}")


@line_of.register
def _(event: RunLost) -> Line:
    if event.left_behind:
        return Line(WARNING, "left behind in its thread: this processor ends, another one runs it")
    return Line(WARNING, "cancelled: its connection went, another processor runs it")


@line_of.register
def _(event: RunReturned) -> Line:
    return Line(INFO, "cancelled and given back: this processor is stopping")


@line_of.register
def _(event: TicksSkipped) -> Line:
    late = event.reason == "late"
    why = "no processor was there in time" if late else "the run took longer than a tick"
    return Line(WARNING, f"{_counted(event.count, 'tick')} skipped: {why}")


@line_of.register
def _(event: TokenSuperseded) -> Line:
    if event.reason == "settled":
        return Line(INFO, "was settled before: not run again")
    return Line(INFO, "skipped: the loop was paused, rescheduled or repaired in the meantime")


@line_of.register
def _(event: Escalated) -> Line:
    then = ", the loop is paused" if event.paused else ", the loop goes on"
    return Line(
        ERROR,
        f"failed for the last time: parked for replay{'' if event.seq is None else then}",
    )


@line_of.register
def _(event: RunFinished) -> Line:
    if event.ending is Ending.SUCCEEDED:
        return Line(INFO, lambda: f"succeeded in {_span(event.duration)}{_then(event)}")
    took = f"in {_span(event.duration)}"
    error = summary_of(event.error) if event.error else ""
    match event.ending:
        case Ending.SKIPPED:
            return Line(WARNING, f"skipped: {event.skipped}{_then(event)}")
        case Ending.CANCELLED:
            return Line(WARNING, f"{event.error} after {_span(event.duration)}{_then(event)}")
        case Ending.STOPPED:
            return Line(WARNING, f"stopped its loop {took}: {error}")
        case Ending.RETRIED:
            return Line(
                WARNING, f"failed {took}, attempt {event.attempt + 1}: {error}{_then(event)}"
            )
        case Ending.ESCALATED:
            return Line(ERROR, f"failed {took}, attempt {event.attempt + 1}: {error}")


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


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _span(span: timedelta) -> str:
    ms = span / timedelta(milliseconds=1)
    return f"{ms:.0f} ms" if abs(ms) < 10_000 else f"{ms / 1000:.1f} s"
