"""Format events as log lines, for people and for machines. Each line of a run names its loop and
seq.
"""

import json
import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, cast

from scheduler.events import Escalated, Event, RunEvent
from scheduler.protocol.messages import flat, printable, summary_of
from scheduler.protocol.tokens import LoopId, Token
from scheduler.tasks.context import current_run
from scheduler.tasks.tasks import SUPERVISION
from scheduler.timing.moments import time_of_day

logger = logging.getLogger("scheduler")
INDENT = "  "


def configure(level: str, style: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(FORMATTERS[style]())
    handler.addFilter(_mark_with_run)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def logged_events() -> list[type[Event]]:
    """Return the events that may have a line at the level of this process."""
    kinds = [*Event.__subclasses__(), *RunEvent.__subclasses__()]
    return [kind for kind in kinds if logger.isEnabledFor(kind.level)]


def log_event(event: Event) -> None:
    """Log an event: a listener."""
    if not logger.isEnabledFor(event.severity):
        return
    level, words = event.line
    if isinstance(event, RunEvent) and event.loop == SUPERVISION and level == logging.INFO:
        level = logging.DEBUG  # too frequent
    if level and logger.isEnabledFor(level):
        error = event.error if isinstance(event, Escalated) else None
        logger.log(level, flat(words), exc_info=error, extra={"event": event})


class TextFormatter(logging.Formatter):
    """Format a line: `10:46:08.320 INFO    heartbeat #12  succeeded in 3 ms, next at 10:46:09.320`

    Further lines, such as those of a traceback, are indented, so none looks like a log line.
    """

    def format(self, record: logging.LogRecord) -> str:
        name, mark = _run_of(record)
        # Enough of a message ID to tell a few apart; JSON has all of it.
        short = f"#{mark}" if isinstance(mark, int) else flat(mark)[:8]
        about = f"{name} {short}  " if name else ""
        line = f"{self.time_of(record)} {record.levelname:7} {about}{record.getMessage()}"
        text = "\n".join([line, *_details(self, record)])
        return printable(text).replace("\n", f"\n{INDENT}")

    def time_of(self, record: logging.LogRecord) -> str:
        """Return the time, as its line begins."""
        return time_of_day(_moment(record))


class DatedFormatter(TextFormatter):
    """Add the date and the UTC offset: `2026-11-23 10:46:08.320+01:00 INFO    ...`"""

    def time_of(self, record: logging.LogRecord) -> str:
        return _moment(record).astimezone().isoformat(" ", timespec="milliseconds")


class JsonFormatter(logging.Formatter):
    """Format one JSON object a line: at, level, logger, message, event and its fields.

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
        if details := _details(self, record):
            line["traceback"] = "\n".join(details)
        return json.dumps(line, default=_plain)


FORMATTERS: Mapping[str, Callable[[], logging.Formatter]] = {
    "text": TextFormatter,
    "dated": DatedFormatter,
    "json": JsonFormatter,
}


def _details(formatter: logging.Formatter, record: logging.LogRecord) -> list[str]:
    text = record.exc_text  # of one that was made in another process
    if record.exc_info and not text:
        text = formatter.formatException(record.exc_info)
    return [each for each in (text, record.stack_info) if each]


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
        for already_there in ("loop", "seq", "message_id"):
            del values[already_there]
    return {
        f"{name}_ms" if isinstance(value, timedelta) else name: _plain(value)
        for name, value in values.items()
    }


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
