"""Events as log lines, for people and for machines. Each line of a run names its loop and seq."""

import json
import logging
import sys
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, Literal, cast

from scheduler.events import (
    CensusTaken,
    Connected,
    ConnectionLost,
    ConnectionRetried,
    ConsumerInterrupted,
    ConsumerResumed,
    Escalated,
    Event,
    LoopRepaired,
    LoopReported,
    LoopSeeded,
    MessageParked,
    ProcessorStarted,
    ProcessorStopped,
    ProcessorStopping,
    RunEvent,
    RunFinished,
    RunLost,
    RunReturned,
    RunStarted,
    SettlementDelayed,
    SupervisionDelayed,
    TicksSkipped,
    TokenMerged,
    TokenSuperseded,
)
from scheduler.protocol.messages import summary_of
from scheduler.protocol.tokens import Ending, LoopId, State, Token
from scheduler.tasks.context import current_run
from scheduler.tasks.tasks import SUPERVISION
from scheduler.timing.durations import format_duration

DEBUG, INFO, WARNING, ERROR = logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR
logger = logging.getLogger("scheduler")


def configure(level: str, style: Literal["text", "json"]) -> None:
    """Send all logging of this process to stderr, one line each."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    handler.addFilter(_mark_with_run)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def log_event(event: Event) -> None:
    """A listener that logs each event that is worth a line."""
    level, text = told(event)
    if isinstance(event, RunEvent) and event.loop == SUPERVISION and level <= INFO:
        level = DEBUG  # it goes on all the time
    if text and logger.isEnabledFor(level):
        error = event.error if isinstance(event, Escalated) else None
        logger.log(level, text, exc_info=error, extra={"event": event})


def told(event: Event) -> tuple[int, str]:
    """The level and the words for an event; no words: it is not worth a line."""
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
            return INFO, (
                f"processing {what} of {event.namespace} from {event.address}, "
                f"at most {event.concurrency} runs at once"
            )
        case ProcessorStopping():
            return INFO, (
                f"stopping: {event.running} running, "
                f"waiting up to {format_duration(event.grace)} for them"
            )
        case ProcessorStopped():
            return INFO, f"stopped, {_counted(event.returned, 'message')} given back"
        case LoopSeeded():
            due = f", due {_clock(event.due_at)}" if event.due_at else ""
            return DEBUG, f"{event.loop} {event.did}{due}"
        case LoopRepaired():
            return WARNING, f"{event.loop} was repaired ({event.kind}): {event.detail}"
        case LoopReported():
            return WARNING, f"{event.loop} is {event.trouble}. {event.advice}"
        case CensusTaken():
            return DEBUG, (
                f"counted the tokens of {event.counted} of {_counted(event.loops, 'loop')} "
                f"in {_span(event.took)}"
            )
        case SupervisionDelayed():
            return WARNING, f"supervision is delayed: {event.reason}"
        case SettlementDelayed():
            return WARNING, (
                f"the settlement of {event.routing_key} is not confirmed: {event.reason} "
                f"Trying again in {_span(event.next_in)}."
            )
        case MessageParked():
            escalated = event.reason in ("exhausted", "rejected")  # Escalated says so
            return DEBUG if escalated else ERROR, (
                f"a message for {event.routing_key} was parked ({event.reason}): {event.error}"
            )
        case RunEvent():
            return _told_of_run(event)
        case _:
            return DEBUG, ""


def _told_of_run(event: RunEvent) -> tuple[int, str]:
    match event:
        case RunStarted():
            again = ", redelivered" if event.redelivered else ""
            return DEBUG, f"started {_span(event.late)} after its time{again}"
        case RunFinished():
            return _told_of_ending(event)
        case RunLost():
            return WARNING, "cancelled: its connection went, another processor runs it"
        case RunReturned():
            return INFO, "cancelled and given back: this processor is stopping"
        case TicksSkipped():
            late = event.reason == "late"
            why = "no processor was there in time" if late else "the run took longer than a tick"
            return WARNING, f"{_counted(event.count, 'tick')} skipped: {why}"
        case TokenSuperseded():
            return INFO, "was settled before its processor died: not run again"
        case TokenMerged():
            return INFO, f"found another token in its slot: #{event.winner.seq} goes on"
        case Escalated():
            then = ", the loop is paused" if event.paused else ", the loop goes on"
            return ERROR, (
                f"failed for the last time: parked for replay{'' if event.seq is None else then}"
            )
        case _:
            return DEBUG, ""


def _told_of_ending(event: RunFinished) -> tuple[int, str]:
    took = f"in {_span(event.duration)}"
    then = _told_of_successor(event.successor)
    if event.retry_in is not None:
        then = f", again in {_span(event.retry_in)}"
    error = summary_of(event.error) if event.error else ""
    match event.ending:
        case Ending.SUCCEEDED:
            return INFO, f"succeeded {took}{then}"
        case Ending.SKIPPED:
            return WARNING, f"skipped: {event.skipped}{then}"
        case Ending.STOPPED:
            return WARNING, f"stopped its loop {took}: {error}"
        case Ending.RETRIED:
            return WARNING, f"failed {took}, attempt {event.attempt + 1}: {error}{then}"
        case Ending.ESCALATED:
            return ERROR, f"failed {took}, attempt {event.attempt + 1}: {error}"


def _told_of_successor(token: Token | None) -> str:
    if token is None:
        return ""
    if token.state is State.PAUSED:
        return ", paused"
    return f", {'again' if token.attempt else 'next'} at {_clock(token.due_at)}"


class TextFormatter(logging.Formatter):
    """`10:46:08.320 INFO    heartbeat #12  succeeded in 3 ms, next at 10:46:09.320`"""

    def format(self, record: logging.LogRecord) -> str:
        name, mark = _run_of(record)
        # Enough of a message id to tell a few apart; JSON has it whole.
        short = f"#{mark}" if isinstance(mark, int) else mark[:8]
        about = f"{name} {short}  " if name else ""
        line = f"{_clock(_moment(record))} {record.levelname:7} {about}{record.getMessage()}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """One JSON object a line: at, level, logger, message, event and its fields.

    Lines of a run have its loop and seq too, those of a one-off call its task and message_id.
    """

    def format(self, record: logging.LogRecord) -> str:
        name, mark = _run_of(record)
        line: dict[str, Any] = {
            "at": _moment(record).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        if name and isinstance(mark, int):
            line |= {"loop": name, "seq": mark}
        elif name:
            line |= {"task": name, "message_id": mark}
        line["message"] = record.getMessage()
        if (event := getattr(record, "event", None)) is not None:
            line |= {"event": type(event).__name__} | _fields(event)
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=_plain)


def _mark_with_run(record: logging.LogRecord) -> bool:
    record.run = current_run.get()
    return True


def _run_of(record: logging.LogRecord) -> tuple[str, int | str]:
    event = getattr(record, "event", None)
    if isinstance(event, RunEvent):
        return str(event.loop), event.message_id if event.seq is None else event.seq
    return getattr(record, "run", None) or ("", 0)


def _fields(event: Event) -> dict[str, Any]:
    values = {field.name: getattr(event, field.name) for field in fields(event)}
    if isinstance(event, RunEvent):
        for told_already in ("loop", "seq", "message_id"):
            del values[told_already]
    return {_with_unit(name, value): _plain(value) for name, value in values.items()}


def _with_unit(name: str, value: Any) -> str:
    return f"{name}_ms" if isinstance(value, timedelta) else name


def _plain(value: Any) -> Any:
    match value:
        case timedelta():
            return value / timedelta(milliseconds=1)
        case datetime():
            return value.isoformat(timespec="milliseconds")
        case BaseException():
            return summary_of(value)
        case Enum():
            return value.value
        case LoopId():
            return str(value)
        case Token():
            return {"seq": value.seq, "due_at": _plain(value.due_at)}
        case str() | int() | float() | tuple() | None:
            return cast(object, value)
        case _:
            return str(value)


def _moment(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


def _clock(moment: datetime) -> str:
    return moment.astimezone().strftime("%H:%M:%S.%f")[:-3]


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _span(span: timedelta) -> str:
    ms = span / timedelta(milliseconds=1)
    return f"{ms:.0f} ms" if abs(ms) < 10_000 else f"{ms / 1000:.1f} s"
