"""Print the output of all commands: lines and moments for people, JSON for programs."""

import json
import sys
from collections.abc import Iterable
from datetime import datetime, timedelta, tzinfo
from typing import Any

from pydantic_core import to_jsonable_python

from scheduler.errors import SchedulerError
from scheduler.protocol.messages import printable

Row = dict[str, Any]  # the JSON form of a value


def print_json(value: Any) -> None:
    """Print a JSON document; durations are in seconds, moments in ISO 8601."""
    sys.stdout.write(_json(value) + "\n")


def print_json_list(values: Iterable[Any]) -> None:
    """Print a JSON list that need not fit into memory."""
    separator = "[\n  "
    for value in values:
        sys.stdout.write(separator + _json(value).replace("\n", "\n  "))
        separator = ",\n  "
    sys.stdout.write("[]\n" if separator.startswith("[") else "\n]\n")


def _json(value: Any) -> str:
    text = json.dumps(value, default=plain, indent=2, ensure_ascii=False)
    if text.replace("\n", "").isprintable():
        return text
    # JSON escapes text that is not UTF-8, or may control a terminal.
    return "".join(
        char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1] for char in text
    )


def plain(value: Any) -> Any:
    """Return the JSON form of a value without one."""
    return to_jsonable_python(value, timedelta_mode="float", fallback=str, bytes_mode="base64")


def print_line(line: str) -> None:
    sys.stdout.write(f"{printable(line)}\n")


def print_error(error: SchedulerError, as_json: bool) -> None:
    """Print an error, in a paragraph on stderr, or as JSON on stdout."""
    message = " ".join([str(error), *getattr(error, "__notes__", [])])
    if as_json:
        print_json({"error": type(error).__name__, "message": message})
    else:
        sys.stderr.write(f"scheduler: {printable(message)}\n")


def local(moment: datetime | None, zone: tzinfo | None = None) -> datetime | None:
    """Convert a moment to a zone; default: that of this machine."""
    return None if moment is None else moment.astimezone(zone)


def relative(moment: datetime | None, now: datetime) -> str:
    """Format the time to or since a moment, roughly: "in 12 s", "3 m ago"."""
    if moment is None:
        return ""
    away = moment - now
    words = rough(abs(away))
    return f"in {words}" if away > timedelta(0) else f"{words} ago"


def rough(span: timedelta) -> str:
    """Format a length of time in one unit, or in hours and minutes."""
    whole = int(span.total_seconds())
    if whole < 120:
        return f"{whole} s"
    minutes = whole // 60
    if minutes < 120:
        return f"{minutes} m"
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60} m"
    return f"{minutes // 60} h" if minutes < 100 * 60 else f"{minutes // 60 // 24} d"


def seconds(span: timedelta) -> str:
    return f"{span.total_seconds():.3f} s"


LEFTOVERS = (
    "tasks in the broker, but not in this code: {} (`scheduler seed --prune` parks their "
    "messages, and removes their queues; aliases= of a renamed task takes over what it left)"
)


def no_loops(namespace: str) -> str:
    return f"The app of namespace {namespace!r} has no loops"
