"""`scheduler history`."""

import asyncio
from collections import deque
from collections.abc import Sequence
from datetime import datetime, timedelta, tzinfo

from scheduler.app import Scheduler
from scheduler.cli.arguments import span_of
from scheduler.cli.connecting import connected
from scheduler.cli.loading import names_app, ready_app
from scheduler.cli.printing import exact, print_json, relative, seconds
from scheduler.cli.rows import row_of_entry
from scheduler.cli.tables import Columns, print_table
from scheduler.cli.zones import Zones, zones_of_loops
from scheduler.errors import QueueNotFound
from scheduler.queues.journal import JournalEntry
from scheduler.tasks.tasks import SUPERVISION
from scheduler.timing.clock import SystemClock


def show(reference: str | None, loop: str | None, *, since: str, limit: int, as_json: bool) -> None:
    if reference is not None and not names_app(reference):
        reference, loop = None, reference
    app, span = ready_app(reference), span_of("--since", since)
    try:
        entries, zones = asyncio.run(_entries(app, loop, span, limit))
    except QueueNotFound as error:
        raise QueueNotFound(
            f"The namespace {app.namespace!r} has no journal yet: run `scheduler seed` first."
        ) from error
    if as_json:
        print_json([row_of_entry(entry) for entry in entries])
    else:
        _print(entries, zones)


async def _entries(
    app: Scheduler, loop: str | None, span: timedelta, limit: int
) -> tuple[list[JournalEntry], Zones]:
    last = deque[JournalEntry](maxlen=limit)
    async with connected(app) as program:
        since = SystemClock().now() - span
        async for entry in program.journal.entries(since=since, loop=loop):
            if loop is not None or entry.loop != SUPERVISION.task:
                last.append(entry)
        if not last and loop is not None:
            await program.loops.find(loop)  # one that was removed may have a history still
        zones: Zones = await zones_of_loops(app, program) if last else {}
    return list(last), zones


def _print(entries: Sequence[JournalEntry], zones: Zones) -> None:
    now = SystemClock().now()
    print_table(
        entries,
        Columns(
            ("AT", "LOOP", "SEQ", "WHAT", "ATTEMPT", "LATE", "TOOK", "DUE", "NOTE"),
            lambda entry: _cells(entry, zones.get(entry.loop)),
        ),
        Columns(
            ("AT", "LOOP", "SEQ", "WHAT", "TOOK", "NOTE"), lambda entry: _brief_cells(entry, now)
        ),
    )


def _cells(entry: JournalEntry, zone: tzinfo | None) -> Sequence[str]:
    return (
        exact(entry.at, zone),
        entry.loop,
        _seq(entry),
        entry.what,
        str(entry.attempt) if entry.attempt else "",
        "" if entry.run is None else seconds(entry.run.late),
        "" if entry.run is None else seconds(entry.run.duration),
        exact(entry.due_at, zone),
        _note(entry),
    )


def _brief_cells(entry: JournalEntry, now: datetime) -> Sequence[str]:
    took = "" if entry.run is None else seconds(entry.run.duration)
    at = relative(entry.at, now)
    return at, entry.loop, _seq(entry), entry.what, took, _note(entry)


def _note(entry: JournalEntry) -> str:
    """The reason or the error, and who it was that acted."""
    by = f"by {entry.by}" if entry.by else ""
    return ", ".join(filter(None, [entry.note, by]))


def _seq(entry: JournalEntry) -> str:
    return "" if entry.seq is None else f"#{entry.seq}"
