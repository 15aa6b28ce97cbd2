"""Manage parked messages: `scheduler failed list`, `show`, `replay` and `purge`."""

import base64
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import replace
from datetime import datetime, tzinfo
from functools import partial
from tempfile import TemporaryFile
from typing import IO, Annotated, Any

import typer

from scheduler.app import Scheduler
from scheduler.cli.arguments import (
    AppArgument,
    OneTask,
    Yes,
    command,
    json_object,
    new_group,
    tasks_to_complete,
)
from scheduler.cli.connecting import Zones, ask, zones_of_loops
from scheduler.cli.loading import names_app, ready_app
from scheduler.cli.printing import (
    AS_JSON,
    Output,
    Row,
    local,
    plain,
    print_error,
    print_json_list,
    print_line,
    print_lines,
)
from scheduler.cli.tables import CellForms, Table, Work, shortened
from scheduler.errors import InvalidArguments, NotAllSeen, QueueNotFound, UsageError
from scheduler.program import Program
from scheduler.protocol.tokens import LOOP_KEY
from scheduler.queues.failed import EVERYTHING, FailedQueues, ParkedMessage, Selection
from scheduler.spelling import no_such
from scheduler.timing.moments import exact
from scheduler.timing.pacing import parse_rate

OF_PARKED = (
    *("id", "task", "loop", "queue", "routing_key", "reason", "error", "attempts"),
    *("first_failed_at", "parked_at", "traceback"),
)
Ids = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="ID",
        help="The messages, as `scheduler failed list` names them; a unique prefix of an ID is "
        "enough.",
    ),
]
OneReason = Annotated[
    str | None,
    typer.Option("--reason", help="Select by reason, such as exhausted."),
]
All = Annotated[bool, typer.Option("--all", help="All parked messages, instead of IDs.")]

cli = new_group("List, show, replay and purge parked messages.")


@command(cli, "list")
def failed_list(
    app: Scheduler,
    task: OneTask = None,
    reason: OneReason = None,
    limit: Annotated[int, typer.Option(min=1, help="The maximum number of messages.")] = 100,
) -> None:
    """List the parked messages.

    On a terminal, IDs are cut to the prefix that the other commands need.

    Example: scheduler failed list jobs:app --task send_mail
    """
    which, as_json = Selection(reason=reason, task=task), AS_JSON.get()
    with TemporaryFile("w+", encoding="ascii") as file:
        rows = Spool(file)

        async def listed(program: Program) -> tuple[int, NotAllSeen | None, Zones]:
            tasks = await _tasks(app, program, task)
            seen = await _laid_out(program.failed, tasks, which, limit, rows)
            has_ticks = not as_json and any(map(_is_tick, rows))
            return *seen, await zones_of_loops(app, program) if has_ticks else {}

        more, interrupted, zones = ask(app, listed, is_long=True)
        if as_json:
            print_json_list(rows)
        else:
            print_lines(_table(rows, zones).shown(rows))
    if more and not as_json:
        print_line(f"{more} more: raise --limit to see them")
    if interrupted is not None:
        print_error(interrupted, as_json=False)
        raise typer.Exit(1)


@command(cli, "show")
def failed_show(
    app: Scheduler,
    message: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="The message, as `scheduler failed list` names it; a unique prefix of its ID is "
            "enough. Required.",
        ),
    ],
) -> Output:
    """Show one parked message, whole: headers, body, traceback.

    Example: scheduler failed show jobs:app 0195f3a2
    """

    async def found(program: Program) -> tuple[Row | None, tzinfo | None]:
        tasks = await _tasks(app, program, None)
        which = await _whole(program.failed, tasks, Selection(ids=frozenset([message])))
        async with aclosing(program.failed.look(tasks, which)) as looked_at:
            parked = await anext(looked_at, None)
        row = parked and row_of_parked(parked)
        if AS_JSON.get() or row is None or not _is_tick(row):
            return row, None
        return row, (await zones_of_loops(app, program)).get(row["loop"])

    row, zone = ask(app, found)
    if row is None:
        raise QueueNotFound(f"There is no parked message {message!r}: see `scheduler failed list`.")
    return Output(row, _lines(row, zone))


@command(cli, "replay")
def failed_replay(
    reference: AppArgument = None,
    messages: Ids = None,
    everything: All = False,
    task: OneTask = None,
    reason: OneReason = None,
    rate: Annotated[str | None, typer.Option(help="The maximum rate, such as 10/s.")] = None,
    args: Annotated[
        str | None, typer.Option(help="New arguments for them, as a JSON object.")
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="TASK",
            autocompletion=tasks_to_complete,
            help="Send calls to this task, instead of their own.",
        ),
    ] = None,
) -> Output:
    """Run parked messages again.

    Each message is sent to its task and confirmed before it leaves the failed queue. Select
    messages by ID, --task, --reason or --all.

    Example: scheduler failed replay jobs:app --task send_mail --rate 10/s
    """
    reference, which = _selection(reference, messages, everything, task, reason)
    app, pace = ready_app(reference), parse_rate(rate) if rate else None
    edited = json_object("--args", args) if args else None
    if to is not None and to not in app.senders:
        raise UsageError(no_such("task", to, app.senders))

    def check(name: str, args: Mapping[str, Any]) -> None:
        if (spec := app.tasks.get(name)) is not None:
            try:
                spec.arguments.load(args)
            except InvalidArguments as error:
                raise UsageError(f"--args: {error} The messages stay parked.") from None

    replay = partial(FailedQueues.replay, rate=pace, args=edited, to=to, check=check)
    return _do("replayed", app, which, replay)


@command(cli, "purge")
def failed_purge(
    reference: AppArgument = None,
    messages: Ids = None,
    everything: All = False,
    task: OneTask = None,
    reason: OneReason = None,
    yes: Yes = False,
) -> Output:
    """Delete parked messages for good.

    Select messages by ID, --task, --reason or --all.

    Example: scheduler failed purge jobs:app 0195f3a2
    """
    reference, which = _selection(reference, messages, everything, task, reason)
    app = ready_app(reference)
    if not yes:
        typer.confirm("Delete parked messages for good?", abort=True, err=True)
    return _do("purged", app, which, FailedQueues.purge)


class Spool:
    """Spool rows to disk, so that a slow reader does not hold messages unacked.

    They are in a file, in their order, as JSON.
    """

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, row: Any) -> None:
        self._file.write(json.dumps(row, default=plain) + "\n")
        self._count += 1

    def __iter__(self) -> Iterator[Any]:
        self._file.seek(0)
        return map(json.loads, self._file)


def _selection(
    reference: str | None,
    messages: list[str] | None,
    everything: bool,
    task: str | None,
    reason: str | None,
) -> tuple[str | None, Selection]:
    """Split APP, which may be left out, from the selected messages; all of them only with --all."""
    ids = messages or []
    if reference is not None and not names_app(reference):
        reference, ids = None, [reference, *ids]
    if everything or task or reason:
        if ids:
            raise UsageError("--all, --task and --reason cannot be combined with IDs.")
        return reference, Selection(reason=reason, task=task)
    if not ids:
        raise UsageError(
            "The command needs the IDs of messages, --task, --reason or --all: see --help."
        )
    return reference, Selection(ids=frozenset(ids))


async def _laid_out(
    failed: FailedQueues,
    tasks: list[str],
    which: Selection,
    limit: int,
    rows: Spool,
) -> tuple[int, NotAllSeen | None]:
    there, more = await failed.count(tasks), 0
    try:
        async with aclosing(failed.look(tasks, which)) as looked_at:
            async for parked in looked_at:
                if len(rows) < limit:
                    rows.add(row_of_parked(parked))
                elif which == EVERYTHING:
                    return there - limit, None  # without reading each
                else:
                    more += 1
    except NotAllSeen as error:
        return more, error
    return more, None


async def _whole(failed: FailedQueues, tasks: list[str], which: Selection) -> Selection:
    if which.ids is None:
        return which
    named = await failed.named(tasks, which.ids)
    return replace(which, ids=frozenset(named.get(name, name) for name in which.ids))


def _do(
    done: str, app: Scheduler, which: Selection, verb: Callable[..., Awaitable[object]]
) -> Output:
    """Run an operation on messages, and report its effect, even if it is interrupted."""
    not_found, ids, error = set(which.ids or ()), list[str](), None

    def tell(parked: ParkedMessage) -> None:
        ids.append(parked.id)
        work.advance()
        not_found.difference_update([name for name in not_found if parked.id.startswith(name)])
        if not AS_JSON.get():
            print_line(f"{done} {parked.id}")

    async def through(program: Program) -> None:
        failed, tasks = program.failed, await _tasks(app, program, which.task)
        whole = await _whole(failed, tasks, which)
        if whole.ids is not None:
            work.expect(len(whole.ids))
        elif whole == EVERYTHING:  # else unknown without reading each
            work.expect(await failed.count(tasks))
        await verb(failed, tasks, whole, tell=tell)

    try:
        with Work(done, counted=True) as work:
            ask(app, through, is_long=True)
    except NotAllSeen as interrupted:
        error = interrupted
        if not AS_JSON.get():
            print_error(error, as_json=False)
    failure = {"error": type(error).__name__, "message": str(error)} if error else {}
    lines = [*(f"not found: {name}" for name in sorted(not_found)), f"{len(ids)} {done}"]
    row = {done: ids, "not_found": sorted(not_found), **failure}
    return Output(row, lines, is_fine=error is None and not not_found)


async def _tasks(app: Scheduler, program: Program, task: str | None) -> list[str]:
    """Return the tasks to check: this one or all, including those that left the code."""
    left = [each.task for each in await program.leftovers.found() if each.parked is not None]
    if task in left:
        return [task]
    if task is not None:
        return [spec.name for spec in app.select([task])]
    return [*app.tasks, *left]


def _is_tick(row: Row) -> bool:
    return row["routing_key"].startswith(LOOP_KEY)


def _table(rows: Spool, zones: Zones) -> Table[Row]:
    short = shortened(row["id"] for row in rows)
    return Table(
        {
            "ID": lambda row: CellForms(row["id"], short[row["id"]]),
            "TASK": lambda row: row["task"],
            "LOOP": lambda row: row["loop"] if _is_tick(row) else "-",
            "REASON": lambda row: row["reason"],
            "PARKED": lambda row: (
                row["parked_at"]
                and local(datetime.fromisoformat(row["parked_at"]), zones.get(row["loop"]))
            ),
            "ERROR": lambda row: row["error"],
        },
        brief=("ID", "TASK", "REASON", "PARKED", "ERROR"),
    )


def _lines(row: Row, zone: tzinfo | None) -> Iterator[str]:
    for name in ("id", "loop", "queue", "routing_key", "reason", "error", "attempts"):
        yield f"{name:12} {row[name]}"
    if row["first_failed_at"] is not None:
        yield f"{'first failed':12} {exact(row['first_failed_at'])}"
    yield f"{'parked at':12} {exact(row['parked_at'], zone)}"
    for name, value in row["headers"].items():
        yield f"{'header':12} {name} = {value!r}"
    yield f"{'body':12} {row.get('body', row.get('body_base64'))}"
    if row["traceback"]:
        yield f"\n{row['traceback'].rstrip()}"


def row_of_parked(parked: ParkedMessage) -> Row:
    row: Row = {name: getattr(parked, name) for name in OF_PARKED}
    row["headers"] = dict(parked.headers)
    try:
        return row | {"body": parked.message.body.decode()}
    except UnicodeDecodeError:
        return row | {"body_base64": base64.b64encode(parked.message.body).decode()}
