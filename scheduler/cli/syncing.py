"""`scheduler sync`: keyed loops from a file."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict

from scheduler.app import Scheduler
from scheduler.cli.arguments import app_and_one
from scheduler.cli.connecting import connected
from scheduler.cli.loading import ready_app
from scheduler.cli.printing import print_json, print_line
from scheduler.control.keyed import Synced
from scheduler.control.loop_files import sync_file
from scheduler.program import Program


def sync(reference: str | None, path: str | None, *, dry_run: bool, as_json: bool) -> None:
    reference, path = app_and_one(reference, path, "a FILE")
    synced = asyncio.run(_sync(ready_app(reference), path, dry_run))
    if as_json:
        return print_json({task: asdict(what) for task, what in synced.items()})
    for line in _lines(synced):
        print_line(line)
    if dry_run:
        print_line("Nothing was changed: this is what it would do.")


async def _sync(app: Scheduler, path: str, dry_run: bool) -> Mapping[str, Synced]:
    def connect() -> AbstractAsyncContextManager[Program]:
        return connected(app)

    return await sync_file(path, app.tasks, app.names, connect, dry_run=dry_run)


def _lines(synced: Mapping[str, Synced]) -> Iterator[str]:
    """How many loops of each task, then those that are not as they were."""
    for task, what in synced.items():
        did: Mapping[str, Sequence[str]] = asdict(what)
        yield f"{task}: {', '.join(f'{len(keys)} {done}' for done, keys in did.items())}"
        for done, keys in did.items():
            if done != "unchanged":
                yield from (f"  {done:11}  {task}.{key}" for key in keys)
