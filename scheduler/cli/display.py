"""What commands print: tables for people, JSON for programs."""

import base64
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from pydantic_core import to_json
from rich.console import Console
from rich.table import Table
from rich.tree import Tree

from scheduler.app import Scheduler
from scheduler.control.backlog import Backlog
from scheduler.control.doctor import Finding
from scheduler.control.reports import Report
from scheduler.control.status import Status
from scheduler.errors import SchedulerError
from scheduler.protocol.messages import printable
from scheduler.protocol.tokens import LastRun, State
from scheduler.protocol.topology import Topology
from scheduler.queues.failed import Parked
from scheduler.queues.journal import JournalEntry
from scheduler.tasks.loops import Loop
from scheduler.timing.schedules import describe

MARKS = {"ok": "ok       ", "warning": "warning  ", "problem": "PROBLEM  "}


def print_json(value: Any) -> None:
    """One JSON document on stdout; durations are in seconds, moments in ISO 8601."""
    text = to_json(value, indent=2, timedelta_mode="float", fallback=str, bytes_mode="base64")
    sys.stdout.write(f"{text.decode()}\n")


def say(line: str) -> None:
    """One line on stdout."""
    sys.stdout.write(f"{printable(line)}\n")


def error(problem: SchedulerError, as_json: bool) -> None:
    """An error, in a paragraph on stderr, or as JSON on stdout."""
    if as_json:
        print_json({"error": type(problem).__name__, "message": str(problem)})
    else:
        sys.stderr.write(f"scheduler: {problem}\n")


def live(lives: bool, why: str, as_json: bool) -> None:
    if as_json:
        return print_json({"live": lives, "why": why})
    say("the processor lives" if lives else f"the processor does not live: {why}")


def reports(app: Scheduler, found: Iterable[Report], as_json: bool, *, dry_run: bool) -> None:
    rows = [_report(report) for report in found]
    if as_json:
        return print_json(rows)
    if not rows:
        are = "would be" if dry_run else "are"
        return say(f"{_no_loops(app)}; the queues of its tasks {are} declared: {_tasks(app)}.")
    _table(
        ("LOOP", "SCHEDULE", "SEED", "DUE"),
        [(row["loop"], row["schedule"], row["did"], _local(row["due_at"])) for row in rows],
    )


def report(done: Report, as_json: bool) -> None:
    row = _report(done)
    if as_json:
        return print_json(row)
    due = f", due {_local(row['due_at'])}" if row["due_at"] else ""
    say(f"{row['loop']}: {row['did']}{due}")


def statuses(
    app: Scheduler, found: Sequence[Status], waiting: Sequence[Backlog], as_json: bool
) -> None:
    if as_json:
        loops = [_status(status) for status in found]
        return print_json({"loops": loops, "tasks": [asdict(each) for each in waiting]})
    if found:
        _loops(found)
    else:
        say(f"{_no_loops(app)}.")
    if waiting:
        say("")
        _table(
            ("TASK", "READY", "PROCESSORS", "PARKED"),
            [
                (
                    each.task,
                    "unseeded" if each.ready is None else str(each.ready),
                    str(each.processors),
                    str(each.parked),
                )
                for each in waiting
            ],
        )


def _loops(found: Sequence[Status]) -> None:
    _table(
        ("LOOP", "STATE", "SEQ", "DUE", "LAST", "STARTED", "LATE", "TOOK", "PROCESSORS", "NOTE"),
        [
            (
                str(status.loop),
                status.where.value,
                "" if status.seq is None else f"#{status.seq}",
                _local(status.due_at),
                *_last(status.last),
                str(status.processors),
                status.reason or (status.last.error if status.last else None) or "",
            )
            for status in found
        ],
    )


def history(entries: Iterable[JournalEntry], as_json: bool) -> None:
    if as_json:
        return print_json([asdict(entry) | {"run": _last_run(entry.run)} for entry in entries])
    _table(
        ("AT", "LOOP", "SEQ", "WHAT", "ATTEMPT", "LATE", "TOOK", "DUE", "NOTE"),
        [
            (
                _local(entry.at),
                entry.loop,
                "" if entry.seq is None else f"#{entry.seq}",
                entry.what,
                str(entry.attempt) if entry.attempt else "",
                "" if entry.run is None else _seconds(entry.run.late),
                "" if entry.run is None else _seconds(entry.run.duration),
                _local(entry.due_at),
                entry.note,
            )
            for entry in entries
        ],
    )


def upcoming(app: Scheduler, found: Iterable[tuple[Loop, list[datetime]]], as_json: bool) -> None:
    rows = [(str(loop), describe(loop.schedule), ticks) for loop, ticks in found]
    if as_json:
        return print_json(
            [{"loop": name, "schedule": phrase, "times": ticks} for name, phrase, ticks in rows]
        )
    if not rows:
        return say(f"{_no_loops(app)}; its tasks run when they are sent messages: {_tasks(app)}.")
    for name, phrase, ticks in rows:
        say(f"{name}  ({phrase})")
        for tick in ticks:
            say(f"  {_local(tick)}")


def parked_list(found: Iterable[Parked], as_json: bool) -> None:
    if as_json:
        return print_json([_parked(each) for each in found])
    _table(
        ("ID", "LOOP", "REASON", "PARKED", "ERROR"),
        [(each.id, each.loop, each.reason, _local(each.parked_at), each.error) for each in found],
    )


def parked(each: Parked, as_json: bool) -> None:
    row = _parked(each)
    if as_json:
        return print_json(row)
    for name in ("id", "loop", "queue", "routing_key", "reason", "error", "attempts"):
        say(f"{name:12} {row[name]}")
    if each.first_failed_at is not None:
        say(f"{'first failed':12} {_local(each.first_failed_at)}")
    say(f"{'parked at':12} {_local(each.parked_at)}")
    for name, value in each.headers.items():
        say(f"{'header':12} {name} = {value!r}")
    say(f"{'body':12} {row.get('body', row.get('body_base64'))}")
    if each.traceback:
        say(f"\n{each.traceback.rstrip()}")


def taken(done: str, found: Sequence[Parked], missing: Sequence[str], as_json: bool) -> None:
    if as_json:
        return print_json({done: [each.id for each in found], "not_found": missing})
    for each in found:
        say(f"{done} {each.id}")
    for each in missing:
        say(f"not found: {each}")
    say(f"{len(found)} {done}")


def findings(found: Iterable[Finding], as_json: bool) -> None:
    if as_json:
        return print_json([asdict(finding) for finding in found])
    advice = ""
    for finding in found:
        say(f"{MARKS[finding.verdict]}{finding.about}: {finding.detail}")
        if finding.advice and finding.advice != advice:
            say(f"{'':9}{finding.advice}")
        advice = finding.advice


def topology(wanted: Topology, as_json: bool) -> None:
    if as_json:
        return print_json(asdict(wanted))
    tree = Tree("exchanges, and what is bound to them")
    arguments = {each.name: each.arguments for each in (*wanted.exchanges, *wanted.queues)}
    for exchange in wanted.exchanges:
        branch = tree.add(f"{exchange.name} ({exchange.type}){_arguments(exchange.arguments)}")
        for binding in wanted.bindings:
            if binding.source == exchange.name:
                bound = f"{binding.destination}{_arguments(arguments[binding.destination])}"
                branch.add(f"{binding.routing_key or '(all)'} → {bound}")
    _console().print(tree)


def _no_loops(app: Scheduler) -> str:
    return f"The app of namespace {app.namespace!r} has no loops"


def _tasks(app: Scheduler) -> str:
    return ", ".join(app.tasks)


def _console() -> Console:
    # Piped output is read by programs and by grep: no colour, and a line is a line.
    width = None if sys.stdout.isatty() else 1000
    return Console(width=width, highlight=False, markup=False)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    table = Table(*head, box=None, pad_edge=False)
    for column in table.columns:
        column.no_wrap = not sys.stdout.isatty()
    for row in rows:
        table.add_row(*map(printable, row))
    _console().print(table)


def _report(done: Report) -> dict[str, Any]:
    return {
        "loop": str(done.loop),
        "schedule": describe(done.loop.schedule),
        "did": done.did.value,
        # A paused token is due when it is resumed.
        "due_at": done.token.due_at
        if done.token and done.token.state is not State.PAUSED
        else None,
    }


def _status(status: Status) -> dict[str, Any]:
    return asdict(status) | {
        "loop": str(status.loop),
        "schedule": describe(status.loop.schedule),
        "where": status.where.value,
        "last": _last_run(status.last),
    }


def _last_run(last: LastRun | None) -> dict[str, Any] | None:
    if last is None:
        return None
    return asdict(last) | {"ending": last.ending.value, "late": last.late}


def _last(last: LastRun | None) -> tuple[str, str, str, str]:
    if last is None:
        return "", "", "", ""
    started = _local(last.started_at)
    return last.ending.value, started, _seconds(last.late), _seconds(last.duration)


def _seconds(span: timedelta) -> str:
    return f"{span.total_seconds():.3f} s"


def _parked(each: Parked) -> dict[str, Any]:
    row: dict[str, Any] = {
        "id": each.id,
        "loop": each.loop,
        "queue": each.queue,
        "routing_key": each.routing_key,
        "reason": each.reason,
        "error": each.error,
        "attempts": each.attempts,
        "first_failed_at": each.first_failed_at,
        "parked_at": each.parked_at,
        "traceback": each.traceback,
        "headers": dict(each.headers),
    }
    try:
        return row | {"body": each.message.body.decode()}
    except UnicodeDecodeError:
        return row | {"body_base64": base64.b64encode(each.message.body).decode()}


def _arguments(arguments: Any) -> str:
    told = ", ".join(f"{name}={value}" for name, value in arguments.items())
    return f"  [{told}]" if told else ""


def _local(moment: datetime | None) -> str:
    return "" if moment is None else f"{moment.astimezone():%Y-%m-%d %H:%M:%S}"
