"""`scheduler history`."""

from collections import deque
from dataclasses import asdict
from typing import Annotated

import typer

from scheduler.cli.arguments import (
    AppArgument,
    Json,
    OneLoop,
    app_and_loop,
    command,
    new_group,
    span_of,
)
from scheduler.cli.connecting import Zones, ask, zones_of_loops
from scheduler.cli.loading import ready_app
from scheduler.cli.printing import Row, local, print_json
from scheduler.cli.status import row_of_last
from scheduler.cli.tables import Table, print_table
from scheduler.errors import QueueNotFound
from scheduler.program import Program
from scheduler.queues.journal import JournalEntry
from scheduler.tasks.tasks import SUPERVISION
from scheduler.timing.clock import SystemClock

cli = new_group()


@command(cli, "history")
def history(
    reference: AppArgument = None,
    loop: OneLoop = None,
    since: Annotated[str, typer.Option(help="How far to look back, such as 30m or 2d.")] = "1h",
    limit: Annotated[int, typer.Option(min=1, help="Only the last so many entries.")] = 1000,
    as_json: Json = False,
) -> None:
    """List what became of the loops: runs, repairs, operations.

    Parked messages are among it. All is read from the journal: no processor needs to run.
    """
    reference, name = app_and_loop(reference, loop)
    app, span = ready_app(reference), span_of("--since", since)

    async def found(program: Program) -> tuple[list[JournalEntry], Zones]:
        last = deque[JournalEntry](maxlen=limit)
        beginning = SystemClock().now() - span
        async for entry in program.journal.entries(since=beginning, loop=name):
            if name is not None or entry.loop != SUPERVISION.task:
                last.append(entry)
        if not last and name is not None:
            await program.loops.find(name)  # one that was removed may have a history still
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
    """Return the reason or the error, and who acted."""
    by = f"by {entry.by}" if entry.by else ""
    return ", ".join(filter(None, [entry.note, by]))
