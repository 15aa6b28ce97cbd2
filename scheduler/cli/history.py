"""Show the history of loops, and of calls: `scheduler history`."""

from collections import deque
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Annotated

import typer

from scheduler.app import Scheduler
from scheduler.cli.arguments import (
    AppArgument,
    Json,
    OneLoop,
    app_and_loop,
    command,
    new_group,
)
from scheduler.cli.connecting import Zones, ask, zones_of_loops
from scheduler.cli.loading import ready_app
from scheduler.cli.printing import Row, local, print_json
from scheduler.cli.status import row_of_last
from scheduler.cli.tables import Table, print_table
from scheduler.errors import QueueNotFound
from scheduler.program import Program
from scheduler.protocol.tokens import Ending
from scheduler.queues.history import COUNTED, Attempt, Summary
from scheduler.queues.journal import PARKED, JournalEntry
from scheduler.tasks.tasks import SUPERVISION
from scheduler.timing.clock import SystemClock
from scheduler.timing.durations import parse_duration

FAILED = frozenset({Ending.RETRIED, Ending.ESCALATED, Ending.CANCELLED, PARKED})

cli = new_group()


@command(cli, "history")
def history(
    reference: AppArgument = None,
    loop: OneLoop = None,
    since: Annotated[str, typer.Option(help="How far to look back, such as 30m or 2d.")] = "1h",
    limit: Annotated[
        int, typer.Option(min=1, help="Only the last entries, up to this number.")
    ] = 1000,
    id: Annotated[str, typer.Option(help="List the attempts at the call with this ID.")] = "",
    failed: Annotated[
        bool, typer.Option("--failed", help="List failed attempts at calls.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List the history of loops, or of the calls of a task.

    For loops: runs, repairs, operations and parked messages. For calls: a summary every ten
    seconds, and each attempt that failed; for a task with history=True, every attempt. No processor
    needs to run.

    Examples: scheduler history jobs:app send_mail --failed;
    scheduler history jobs:app --id 0195f3a2
    """
    reference, name = app_and_loop(reference, loop)
    app, span = ready_app(reference), parse_duration(since, "--since")
    task = app.tasks.get(name or "")
    if id or failed or (task is not None and task.called):
        _show_calls(app, Calls(name, id, failed), span, limit, as_json=as_json)
    else:
        _show_loops(app, name, span, limit, as_json=as_json)


def _show_loops(
    app: Scheduler, name: str | None, span: timedelta, limit: int, *, as_json: bool
) -> None:
    async def found(program: Program) -> tuple[list[JournalEntry], Zones]:
        last = deque[JournalEntry](maxlen=limit)
        beginning = SystemClock().now() - span
        async for entry in program.journal.entries(since=beginning, loop=name):
            if name is not None or entry.loop != SUPERVISION.task:
                last.append(entry)
        if not last and name is not None:
            await program.loops.find(name)  # a removed one may still have a history
        return list(last), await zones_of_loops(app, program) if last else {}

    try:
        entries, zones = ask(app, found)
    except QueueNotFound as error:
        raise QueueNotFound(
            f"The namespace {app.namespace!r} has no journal yet: run `scheduler seed` first."
        ) from error
    if as_json:
        print_json([row_of_entry(entry) for entry in entries])
    else:
        print_table(entries, _table(zones))


@dataclass(frozen=True, slots=True)
class Calls:
    """Select calls: by task, by ID, or by failure."""

    task: str | None
    id: str
    failed: bool

    def include(self, record: Summary | Attempt) -> bool:
        """Return whether a record of the history is selected."""
        if self.task not in (None, record.task):
            return False
        if isinstance(record, Summary):
            return not (self.id or self.failed)
        return record.id.startswith(self.id) and (not self.failed or record.outcome in FAILED)


def _show_calls(
    app: Scheduler, calls: Calls, span: timedelta, limit: int, *, as_json: bool
) -> None:
    async def found(program: Program) -> list[Summary | Attempt]:
        last = deque[Summary | Attempt](maxlen=limit)
        beginning = SystemClock().now() - span
        async for record in program.history.read(since=beginning, containing=calls.id):
            if calls.include(record):
                last.append(record)
        return list(last)

    try:
        listed = ask(app, found)
    except QueueNotFound as error:
        raise QueueNotFound(
            f"The namespace {app.namespace!r} has no history of calls: no task gets calls, or "
            "`scheduler seed` has not run yet."
        ) from error
    if as_json:
        print_json([row_of_call(record) for record in listed])
    else:
        print_table(listed, OF_CALLS)


def row_of_call(record: Summary | Attempt) -> Row:
    """Return the records of calls, for programs."""
    if isinstance(record, Summary):
        return {"at": record.until, "what": "summary", **asdict(record)}
    fields = "task", "id", "key", "attempt", "sent_at", "due_at", "started_at", "late", "took"
    row = {name: getattr(record, name) for name in (*fields, "error", "by")}
    return {"at": record.ended_at, "what": record.outcome, **row}


def _note_on_call(record: Summary | Attempt) -> str:
    if isinstance(record, Attempt):
        return record.error
    counts = [f"{count} {name}" for name in COUNTED if (count := getattr(record, name))]
    return ", ".join([*counts, *(f"{each.count} x {each.error}" for each in record.errors)])


OF_CALLS = Table[Summary | Attempt](
    {
        "AT": lambda each: local(each.until if isinstance(each, Summary) else each.ended_at),
        "TASK": lambda each: each.task,
        "WHAT": lambda each: "summary" if isinstance(each, Summary) else each.outcome,
        "ID": lambda each: "" if isinstance(each, Summary) else each.id,
        "ATTEMPT": lambda each: None if isinstance(each, Summary) else each.attempt,
        "SENT": lambda each: None if isinstance(each, Summary) else local(each.sent_at),
        "LATE": lambda each: each.late,
        "TOOK": lambda each: each.took,
        "BY": lambda each: each.by,
        "NOTE": _note_on_call,
    },
    brief=("AT", "TASK", "WHAT", "ID", "TOOK", "NOTE"),
)


def row_of_entry(entry: JournalEntry) -> Row:
    return asdict(entry) | {"run": row_of_last(entry.run)}


def _table(zones: Zones) -> Table[JournalEntry]:
    return Table(
        {
            "AT": lambda entry: local(entry.at, zones.get(entry.loop)),
            "LOOP": lambda entry: entry.loop,
            "SEQ": lambda entry: None if entry.seq is None else f"#{entry.seq}",
            "WHAT": lambda entry: entry.what,
            "ATTEMPT": lambda entry: entry.attempt or None,
            "LATE": lambda entry: entry.run and entry.run.late,
            "TOOK": lambda entry: entry.run and entry.run.duration,
            "DUE": lambda entry: local(entry.due_at, zones.get(entry.loop)),
            "NOTE": _note,
        },
        brief=("AT", "LOOP", "SEQ", "WHAT", "TOOK", "NOTE"),
    )


def _note(entry: JournalEntry) -> str:
    """Return the reason or the error, and the actor."""
    by = f"by {entry.by}" if entry.by else ""
    return ", ".join(filter(None, [entry.note, by]))
