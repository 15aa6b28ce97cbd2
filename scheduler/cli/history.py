"""`scheduler history`."""

import asyncio
from collections import deque
from collections.abc import Sequence
from datetime import timedelta

from scheduler.app import Scheduler
from scheduler.cli.arguments import span_of
from scheduler.cli.connecting import connected
from scheduler.cli.loading import names_app, ready_app
from scheduler.cli.printing import local, print_json, seconds
from scheduler.cli.rows import row_of_entry
from scheduler.cli.tables import print_table
from scheduler.errors import QueueNotFound
from scheduler.queues.journal import JournalEntry
from scheduler.tasks.tasks import SUPERVISION
from scheduler.timing.clock import SystemClock


def show(reference: str | None, loop: str | None, *, since: str, limit: int, as_json: bool) -> None:
    if reference is not None and not names_app(reference):
        reference, loop = None, reference
    app, span = ready_app(reference), span_of("--since", since)
    try:
        entries = asyncio.run(_entries(app, loop, span, limit))
    except QueueNotFound as error:
        raise QueueNotFound(
            f"The namespace {app.namespace!r} has no journal yet: run `scheduler seed` first."
        ) from error
    if as_json:
        print_json([row_of_entry(entry) for entry in entries])
    else:
        _print(entries)


async def _entries(
    app: Scheduler, loop: str | None, span: timedelta, limit: int
) -> list[JournalEntry]:
    last = deque[JournalEntry](maxlen=limit)
    async with connected(app) as program:
        since = SystemClock().now() - span
        async for entry in program.journal.entries(since=since, loop=loop):
            if loop is not None or entry.loop != SUPERVISION.task:
                last.append(entry)
        if not last and loop is not None:
            await program.loops.find(loop)  # one that was removed may have a history still
    return list(last)


def _print(entries: Sequence[JournalEntry]) -> None:
    print_table(
        ("AT", "LOOP", "SEQ", "WHAT", "ATTEMPT", "LATE", "TOOK", "DUE", "NOTE"),
        [
            (
                local(entry.at),
                entry.loop,
                "" if entry.seq is None else f"#{entry.seq}",
                entry.what,
                str(entry.attempt) if entry.attempt else "",
                "" if entry.run is None else seconds(entry.run.late),
                "" if entry.run is None else seconds(entry.run.duration),
                local(entry.due_at),
                entry.note,
            )
            for entry in entries
        ],
    )
