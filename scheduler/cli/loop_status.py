"""All that is known of one loop: a field a line."""

from collections.abc import Iterator
from datetime import datetime, tzinfo
from itertools import islice

from rich.text import Text

from scheduler.cli.overrides import origin_of
from scheduler.cli.printing import exact, print_line, relative, seconds
from scheduler.cli.tables import STYLES, console
from scheduler.control.status import Status
from scheduler.control.where import Where
from scheduler.protocol.messages import flat
from scheduler.timing.clock import SystemClock
from scheduler.timing.schedules import Schedule, describe, zone_of

TICKS = 3
MEANINGS = {
    Where.WAITING: "its time has not come",
    Where.PAUSED: "until it is resumed",
    Where.DONE: "its run has ended, and it is removed soon",
    Where.READY: "it waits for a processor",
    Where.RUNNING: "a processor has it",
    Where.LOST: "overdue, and no processor has its token; supervision repairs it",
    Where.UNATTENDED: "due, and no processor takes messages of its task: start one",
    Where.LATE: "overdue for longer than its task may take, and not all processors respond",
    Where.UNHEARD: "no activity found in the journal",
    Where.UNSEEDED: "run `scheduler seed`",
}


def print_loop(status: Status) -> None:
    """Print a status, whole."""
    terminal = console()
    for name, value in _fields(status, SystemClock().now()):
        line = Text(f"{name:12} {flat(value)}")
        if name == "state":
            style = STYLES.get(status.where.value, "")
            line.stylize(style, 13, 13 + len(status.where.value))
        terminal.print(line, soft_wrap=True)
    if status.last is not None and status.last.error:
        print_line(f"{'error':12} {status.last.error}")


def _fields(status: Status, now: datetime) -> Iterator[tuple[str, str]]:
    schedule = status.loop.schedule
    zone = zone_of(schedule)
    yield "loop", str(status.loop)
    yield "schedule", _in_words(schedule)
    if origin := origin_of(status.loop, now):
        yield "", origin
    yield "state", f"{status.where.value}: {MEANINGS[status.where]}"
    if status.reason:
        yield "reason", status.reason
    if status.seq is not None:
        yield "seq", f"#{status.seq}"
    if status.attempt:
        yield "attempt", f"{status.attempt + 1}, as {status.attempt} failed"
    if status.due_at is not None:
        yield "due", _moment(status.due_at, zone, now)
    for tick in islice(_ticks(status, now), TICKS):
        yield "next", _moment(tick, zone, now)
    yield from _of_last_run(status, zone, now)
    yield "processors", str(status.processors)
    if status.by:
        yield "epoch", str(status.epoch)
        yield "  begun", "" if status.since is None else _moment(status.since, zone, now)
        yield "  by", status.by


def _of_last_run(status: Status, zone: tzinfo | None, now: datetime) -> Iterator[tuple[str, str]]:
    if (run := status.last) is None:
        return
    yield "last run", run.ending.value
    yield "  planned", _moment(run.scheduled_at, zone, now)
    yield "  started", f"{_moment(run.started_at, zone, now)}, {seconds(run.late)} late"
    yield "  took", seconds(run.duration)


def _in_words(schedule: Schedule) -> str:
    return describe(schedule) + ("" if schedule.has_grid else ", from the end of a run")


def _ticks(status: Status, now: datetime) -> Iterator[datetime]:
    """The times after the one that it is due at, where they do not hang on how long runs take."""
    moment, schedule = max(now, status.due_at or now), status.loop.schedule
    while schedule.has_grid and status.where not in (Where.PAUSED, Where.UNSEEDED):
        moment = schedule.next_after(moment)
        yield moment


def _moment(moment: datetime, zone: tzinfo | None, now: datetime) -> str:
    return f"{exact(moment, zone)}  ({relative(moment, now)})"
