"""The parked messages: `scheduler failed list`, `show`, `replay` and `purge`."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any, cast

import typer

from scheduler.app import Scheduler
from scheduler.cli.arguments import app_and_one, app_and_rest
from scheduler.cli.connecting import connected
from scheduler.cli.loading import ready_app
from scheduler.cli.printing import local, print_json, print_line
from scheduler.cli.rows import row_of_parked
from scheduler.cli.tables import print_table
from scheduler.errors import QueueNotFound, UsageError
from scheduler.queues.failed import Parked, Selection
from scheduler.timing.rates import Rate, parse_rate


def browse(
    reference: str | None, *, task: str | None, reason: str | None, limit: int, as_json: bool
) -> None:
    app = ready_app(reference)
    found = asyncio.run(_browsed(app, task, Selection(reason=reason, task=task), limit))
    if as_json:
        print_json([row_of_parked(parked) for parked in found])
    else:
        _print_table(found)


def show(reference: str | None, message: str | None, *, as_json: bool) -> None:
    reference, name = app_and_one(reference, message, "the ID of a message")
    which = Selection(ids=frozenset([name]))
    found = asyncio.run(_browsed(ready_app(reference), None, which, limit=65_535))
    if not found:
        raise QueueNotFound(f"There is no parked message {name!r}: see `scheduler failed list`.")
    if as_json:
        print_json(row_of_parked(found[0]))
    else:
        _print_whole(found[0])


def replay(
    reference: str | None,
    messages: list[str] | None,
    *,
    everything: bool,
    task: str | None,
    reason: str | None,
    rate: str | None,
    args: str | None,
    as_json: bool,
) -> None:
    reference, which = _selection(reference, messages, everything, task, reason)
    app, pace = ready_app(reference), parse_rate(rate) if rate else None
    edited = _json_object(args) if args else None
    replayed = asyncio.run(_replayed(app, task, which, pace, edited))
    _print_taken("replayed", replayed, which, as_json)


def purge(
    reference: str | None,
    messages: list[str] | None,
    *,
    everything: bool,
    task: str | None,
    reason: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    reference, which = _selection(reference, messages, everything, task, reason)
    app = ready_app(reference)
    if not yes:
        typer.confirm("Delete parked messages for good?", abort=True, err=True)
    _print_taken("purged", asyncio.run(_purged(app, task, which)), which, as_json)


def _selection(
    reference: str | None,
    messages: list[str] | None,
    everything: bool,
    task: str | None,
    reason: str | None,
) -> tuple[str | None, Selection]:
    """Which messages a command means; all of them only if that was said."""
    if everything or task or reason:
        if messages or (reference is not None and ":" not in reference):
            raise UsageError("--all, --task and --reason go without IDs: leave out one of the two.")
        return reference, Selection(reason=reason, task=task)
    what = "the IDs of messages, --task, --reason or --all"
    reference, ids = app_and_rest(reference, messages or [], what)
    return reference, Selection(ids=frozenset(ids))


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise UsageError(f"--args is a JSON object, such as '{{\"n\": 1}}': {error}.") from None
    if not isinstance(value, dict):
        raise UsageError(f"--args is a JSON object, such as '{{\"n\": 1}}', got {text!r}.")
    return cast(dict[str, Any], value)


async def _browsed(app: Scheduler, task: str | None, which: Selection, limit: int) -> list[Parked]:
    async with connected(app) as program:
        return await program.failed.browse(_tasks(app, task), which, limit=limit)


async def _replayed(
    app: Scheduler,
    task: str | None,
    which: Selection,
    rate: Rate | None,
    args: dict[str, Any] | None,
) -> list[Parked]:
    async with connected(app) as program:
        queues = program.failed
        return await queues.replay(_tasks(app, task), which, rate=rate, args=args)


async def _purged(app: Scheduler, task: str | None, which: Selection) -> list[Parked]:
    async with connected(app) as program:
        return await program.failed.purge(_tasks(app, task), which)


def _tasks(app: Scheduler, task: str | None) -> list[str]:
    return [spec.name for spec in app.select(None if task is None else [task])]


def _print_table(found: Sequence[Parked]) -> None:
    print_table(
        ("ID", "LOOP", "REASON", "PARKED", "ERROR"),
        [(each.id, each.loop, each.reason, local(each.parked_at), each.error) for each in found],
    )


def _print_whole(parked: Parked) -> None:
    row = row_of_parked(parked)
    for name in ("id", "loop", "queue", "routing_key", "reason", "error", "attempts"):
        print_line(f"{name:12} {row[name]}")
    if parked.first_failed_at is not None:
        print_line(f"{'first failed':12} {local(parked.first_failed_at)}")
    print_line(f"{'parked at':12} {local(parked.parked_at)}")
    for name, value in parked.headers.items():
        print_line(f"{'header':12} {name} = {value!r}")
    print_line(f"{'body':12} {row.get('body', row.get('body_base64'))}")
    if parked.traceback:
        print_line(f"\n{parked.traceback.rstrip()}")


def _print_taken(done: str, taken: Sequence[Parked], which: Selection, as_json: bool) -> None:
    missing = sorted((which.ids or frozenset()) - {parked.id for parked in taken})
    if as_json:
        print_json({done: [parked.id for parked in taken], "not_found": missing})
    else:
        for parked in taken:
            print_line(f"{done} {parked.id}")
        for name in missing:
            print_line(f"not found: {name}")
        print_line(f"{len(taken)} {done}")
    if missing:
        raise typer.Exit(1)
