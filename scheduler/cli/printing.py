"""Print the output of all commands: lines and moments for people, JSON for programs."""

import json
import sys
from collections.abc import Iterable
from contextvars import ContextVar
from datetime import datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic_core import to_jsonable_python

from scheduler.errors import SchedulerError
from scheduler.protocol.messages import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

AS_JSON = ContextVar("as_json", default=False)
"""The --json of a command."""


class Output(NamedTuple):
    """Hold the output of a command: data for programs, lines for people, and its success."""

    data: object
    lines: "Iterable[str | Text]" = ()
    is_fine: bool = True


def print_output(output: Output) -> None:
    if AS_JSON.get():
        print_json(output.data)
    else:
        print_lines(output.lines)


def print_json(value: Any) -> None:
    """Print a JSON document; durations are in seconds, moments in ISO 8601."""
    sys.stdout.write(json_of(value) + "\n")


def json_of(value: Any) -> str:
    """Format a value as JSON that stdout can encode, and that does not control a terminal."""
    text = json.dumps(value, default=plain, indent=2, ensure_ascii=False)
    if _is_plain(text.replace("\n", "")):
        return text
    # JSON escapes text that is not UTF-8, or may control a terminal.
    return "".join(
        char if char == "\n" or _is_plain(char) else json.dumps(char)[1:-1] for char in text
    )


def _is_plain(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return text.isprintable()


def plain(value: Any) -> Any:
    """Return the JSON form of a value without one."""
    return to_jsonable_python(value, timedelta_mode="float", fallback=str, bytes_mode="base64")


def print_lines(lines: "Iterable[str | Text]") -> None:
    terminal = console() if sys.stdout.isatty() else None
    for line in lines:
        if isinstance(line, str):
            print_line(line)
        elif terminal is None:
            sys.stdout.write(f"{line.plain}\n")
        else:
            terminal.print(line, soft_wrap=True)


def print_line(line: str) -> None:
    sys.stdout.write(f"{printable(line)}\n")


def console() -> "Console":
    """Return the console: without colors if output is piped, or NO_COLOR is set."""
    from rich.console import Console  # not loaded by commands that print plain lines

    # Programs and grep read piped output: a line is a line.
    width = None if sys.stdout.isatty() else 1000
    return Console(width=width, highlight=False, markup=False)


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
