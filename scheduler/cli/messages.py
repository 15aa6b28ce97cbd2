"""Send calls, and manage messages that could not be sent, or run: `send`, `unsent`, `failed`."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import replace
from datetime import tzinfo
from functools import partial
from typing import Annotated, Any

import typer
from rich.text import Text

from scheduler.app import Scheduler
from scheduler.cli.arguments import (
    LIMIT,
    AppArgument,
    OneTask,
    Yes,
    app_and_next,
    command,
    new_group,
    require_confirmation,
    tasks_to_complete,
)
from scheduler.cli.connecting import Zones, ask, require_remote, zones_of_loops
from scheduler.cli.loading import names_app, ready_app
from scheduler.cli.printing import AS_JSON, Output, local, print_error, print_line
from scheduler.cli.tables import CellForms, Table, Work, shortened
from scheduler.control.reports import Effect
from scheduler.control.rows import Row, row_of_parked, whole_row_of_parked
from scheduler.errors import (
    NotAllSeen,
    QueueNotFound,
    SchedulerError,
    UnknownLoop,
    UsageError,
)
from scheduler.program import Program
from scheduler.protocol.messages import summary_of
from scheduler.protocol.tokens import LOOP_KEY
from scheduler.queues.failed import EVERYTHING, FailedQueues, ParkedMessage, Selection
from scheduler.queues.outbox import Posting
from scheduler.queues.unsent import MessageId, Unsent, UnsentStore
from scheduler.spelling import no_such
from scheduler.tasks.loops import check_arguments
from scheduler.tasks.tasks import parse_arguments
from scheduler.timing.durations import ZERO, parse_duration
from scheduler.timing.moments import exact, parse_moment
from scheduler.timing.pacing import parse_rate

cli = new_group()
unsent = new_group("List, send and purge messages that could not be sent.")
cli.add_typer(unsent, name="unsent")


@command(cli, "send", more=True)
def send(
    context: typer.Context,
    reference: AppArgument = None,
    task: Annotated[
        str | None,
        typer.Argument(metavar="TASK", autocompletion=tasks_to_complete, help="Required."),
    ] = None,
    args: Annotated[
        str, typer.Option("--args", help='The arguments, as JSON: \'{"to": "ada@example.com"}\'.')
    ] = "{}",
    delay: Annotated[
        str | None, typer.Option("--in", help="Run it after this delay, such as 5m.")
    ] = None,
    at: Annotated[
        str | None,
        typer.Option("--at", help="Run it at this time, such as 2026-06-01T09:00+02:00."),
    ] = None,
    unique: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Make it the one-off of this name: `scheduler scheduled` lists, moves and cancels "
            "it, and the same again changes nothing.",
        ),
    ] = None,
) -> Output:
    """Send a call to a task, and print its ID.

    The arguments are checked first; the broker has confirmed the call when the command ends.

    Examples: scheduler send jobs:app send_mail --args '{"to": "ada@example.com"}' --in 5m;
    scheduler send jobs:app remind --unique order-7 --at 2026-06-01T09:00+02:00
    """
    pairs = (each for each in (reference, task) if each and "=" in each)
    for each in (*pairs, *context.args):
        problem = "is no option: the arguments are one JSON object"
        raise UsageError(f"{each!r} {problem}, such as --args '{{\"n\": 1}}'.")
    reference, name = app_and_next(reference, task)
    require_remote(app := ready_app(reference))
    if name is None:
        raise UsageError("The command needs the argument TASK: see --help.")
    if delay is not None and at is not None:
        raise UsageError("A call has one time: give --in or --at, not both.")
    if name in app.tasks and name not in app.senders:
        raise UsageError(
            f"{name!r} gets no calls: it is a loop. To run it now: `scheduler trigger`."
        )
    if (called := app.senders.get(name)) is None:
        raise UsageError(no_such("task", name, app.senders))
    arguments = called.spec.arguments.load(parse_arguments(args, "--args"))
    moment = None if at is None else parse_moment(at, "--at")
    span = None if delay is None else parse_duration(delay, "--in")

    async def once(program: Program) -> Effect:
        with app.lending(program.broker, program.clock):
            return await called.once(unique or "", at=moment, after=span, args=arguments)

    async def posted() -> MessageId:
        # Over no connection that is opened before: a fallback needs none.
        spec, deadline = called.spec, LIMIT.get()
        posting = Posting(span or ZERO, moment, delay or at, spec.expires, deadline=deadline)
        try:
            return await app.outbox.send(name, spec.arguments.dump(arguments), posting)
        finally:
            await app.outbox.close()

    if unique is not None:
        id, outcome = f"{name}.{unique}", ask(app, once).value
    else:
        id = asyncio.run(posted())
        outcome = "stored: it is sent once the broker can be reached" if id.stored else "sent"
    return Output({"task": name, "id": id, "outcome": outcome}, [f"{id} {outcome}"])


@command(unsent, "list", asks=False)
def unsent_list(app: Scheduler) -> Output:
    """List the stored messages. The broker need not be running.

    Example: scheduler unsent list shop:app
    """
    with _opened_store(app) as store:
        stored = store.read()
    lines = OF_UNSENT.shown(stored) if stored else ["No message is stored."]
    return Output([_row(each) for each in stored], lines)


@command(unsent, "send")
def unsent_send(app: Scheduler) -> Output:
    """Send the stored messages now.

    Processors and connected programs do the same every 5 seconds. The command skips a message that
    one of them is sending. The exit code is 1 if messages are left.

    Example: scheduler unsent send shop:app
    """
    with _opened_store(app) as store:
        store.read()
    count = ask(app, lambda it: app.outbox.send_stored(it.broker), is_long=True)
    with _opened_store(app) as store:
        left = len(store.read())
    row = {"sent": count, "left": left}
    return Output(row, [f"{count} sent, {left} left"], is_fine=not left)


@command(unsent, "purge", asks=False)
def unsent_purge(app: Scheduler, yes: Yes = False) -> Output:
    """Delete the stored messages for good.

    Example: scheduler unsent purge shop:app
    """
    with _opened_store(app) as store:
        require_confirmation("Delete stored messages for good?", yes=yes)
        ids = [each.id for each in store.read()]
        store.remove(ids)
    return Output({"purged": ids}, [f"{len(ids)} purged"])


@contextmanager
def _opened_store(app: Scheduler) -> Generator[UnsentStore]:
    """Use the store of an app inside the block; report its errors in a line."""
    if app.fallback is None:
        raise UsageError(
            f"The app of namespace {app.namespace!r} stores no messages: give it "
            'Scheduler(..., fallback="sqlite:///unsent.db").'
        )
    try:
        yield app.fallback
    except (SchedulerError, typer.Abort):
        raise
    except Exception as error:  # the store may be the user's
        raise SchedulerError(f"The fallback store cannot be used: {summary_of(error)}.") from error


def _row(stored: Unsent) -> Row:
    is_call = stored.exchange is None
    return {
        "id": stored.id,
        "task": stored.key if is_call else None,
        "exchange": stored.exchange,
        "routing_key": None if is_call else stored.key,
        "due_at": stored.due_at,
        "stored_at": stored.stored_at,
    }


OF_UNSENT = Table[Unsent](
    {
        "ID": lambda each: each.id,
        "TO": lambda each: each.target,
        "DUE": lambda each: local(each.due_at),
        "STORED": lambda each: local(each.stored_at),
    },
    brief=("ID", "TO", "DUE"),
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

failures = new_group("List, show, replay, purge and restore parked messages.")
cli.add_typer(failures, name="failed")


@command(failures, "list")
def failed_list(
    app: Scheduler,
    task: OneTask = None,
    reason: OneReason = None,
    limit: Annotated[int, typer.Option(min=1, help="The maximum number of messages.")] = 100,
    trash: Annotated[
        bool, typer.Option("--trash", help="List deleted messages, which can be restored.")
    ] = False,
) -> Output:
    """List the parked messages.

    On a terminal, IDs are cut to the prefix that the other commands need.

    Example: scheduler failed list jobs:app --task send_mail
    """
    which = Selection(reason=reason, task=task)

    async def listed(program: Program) -> tuple[list[Row], int, NotAllSeen | None, Zones]:
        tasks = await _tasks(app, program, task, in_trash=trash)
        rows, more, interrupted = await _listed(program.failed, tasks, which, limit)
        has_ticks = not AS_JSON.get() and any(map(_is_tick, rows))
        zones: Zones = await zones_of_loops(app, program) if has_ticks else {}
        return rows, more, interrupted, zones

    rows, more, interrupted, zones = ask(app, listed, is_long=True)
    lines: list[str | Text] = [*_table_of_parked(rows, zones).shown(rows)]
    if more:
        says = f"{more} more: raise --limit to see them"
        lines.append(says)
        if AS_JSON.get():
            sys.stderr.write(f"scheduler: {says}\n")
    if interrupted is not None:
        print_error(interrupted, as_json=False)
    return Output(rows, lines, is_fine=interrupted is None)


@command(failures, "show")
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
        row = parked and whole_row_of_parked(parked)
        if AS_JSON.get() or row is None or not _is_tick(row):
            return row, None
        return row, (await zones_of_loops(app, program)).get(row["loop"])

    row, zone = ask(app, found)
    if row is None:
        raise QueueNotFound(f"There is no parked message {message!r}: see `scheduler failed list`.")
    return Output(row, _lines_of_parked(row, zone))


@command(failures, "replay")
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
    app, pace = ready_app(reference), None if rate is None else parse_rate(rate)
    edited = None if args is None else parse_arguments(args, "--args")
    if to is not None and to not in app.senders:
        raise UsageError(no_such("task", to, app.senders))

    check = partial(check_arguments, app)
    replay = partial(FailedQueues.replay, rate=pace, args=edited, to=to, check=check)
    return _do("replayed", app, which, replay)


@command(failures, "purge")
def failed_purge(
    reference: AppArgument = None,
    messages: Ids = None,
    everything: All = False,
    task: OneTask = None,
    reason: OneReason = None,
    yes: Yes = False,
) -> Output:
    """Delete parked messages. The trash keeps them for a day.

    Select messages by ID, --task, --reason or --all. `scheduler failed restore` takes them back.

    Example: scheduler failed purge jobs:app 0195f3a2
    """
    reference, which = _selection(reference, messages, everything, task, reason)
    app = ready_app(reference)
    require_confirmation("Delete parked messages?", yes=yes)
    return _do("purged", app, which, FailedQueues.purge)


@command(failures, "restore")
def failed_restore(
    reference: AppArgument = None,
    messages: Ids = None,
    everything: All = False,
    task: OneTask = None,
    reason: OneReason = None,
) -> Output:
    """Take deleted messages back from the trash, within a day.

    They are parked again as they were. Select messages by ID, --task, --reason or --all.

    Example: scheduler failed restore jobs:app 0195f3a2
    """
    reference, which = _selection(reference, messages, everything, task, reason)
    app = ready_app(reference)

    def restore(failed: FailedQueues, _: None, which: Selection, **on_each: Any) -> Awaitable[int]:
        return failed.restore(which, **on_each)

    return _do("restored", app, which, restore, in_trash=True)


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
    if "" in ids:  # a prefix of all IDs
        raise UsageError("An ID is empty: name a message as `scheduler failed list` does.")
    return reference, Selection(ids=frozenset(ids))


async def _listed(
    failed: FailedQueues, tasks: list[str] | None, which: Selection, limit: int
) -> tuple[list[Row], int, NotAllSeen | None]:
    """Return the rows of messages, and how many more there are."""
    row_of = whole_row_of_parked if AS_JSON.get() else row_of_parked
    there, rows, more = await failed.count(tasks), list[Row](), 0
    try:
        async with aclosing(failed.look(tasks, which)) as looked_at:
            async for parked in looked_at:
                if len(rows) < limit:
                    rows.append(row_of(parked))
                elif which == EVERYTHING:
                    return rows, there - limit, None  # without reading each
                else:
                    more += 1
    except NotAllSeen as error:
        return rows, more, error
    return rows, more, None


async def _whole(failed: FailedQueues, tasks: list[str] | None, which: Selection) -> Selection:
    if which.ids is None:
        return which
    named = await failed.named(tasks, which.ids)
    return replace(which, ids=frozenset(named.get(name, name) for name in which.ids))


def _do(
    done: str,
    app: Scheduler,
    which: Selection,
    verb: Callable[..., Awaitable[object]],
    *,
    in_trash: bool = False,
) -> Output:
    """Run an operation on messages, and report its effect, even if it is interrupted."""
    not_found, ids, error = set(which.ids or ()), list[str](), None

    def on_each(parked: ParkedMessage) -> None:
        ids.append(parked.id)
        work.advance()
        not_found.difference_update([name for name in not_found if parked.id.startswith(name)])
        if not AS_JSON.get():
            print_line(f"{done} {parked.id}")

    async def through(program: Program) -> None:
        failed, tasks = program.failed, await _tasks(app, program, which.task, in_trash=in_trash)
        whole = await _whole(failed, tasks, which)
        if whole.ids is not None:
            work.expect(len(whole.ids))
        elif whole == EVERYTHING:  # else unknown without reading each
            work.expect(await failed.count(tasks))
        await verb(failed, tasks, whole, on_each=on_each)

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


async def _tasks(
    app: Scheduler, program: Program, task: str | None, *, in_trash: bool = False
) -> list[str] | None:
    """Return the tasks to check: this one or all, including those that left the code.

    In the trash (None), messages of all tasks are together.
    """
    if task is not None and task in app.tasks:
        return None if in_trash else [task]
    known = await program.installation.tasks_with_failed_queues()
    if task is None or task in known:
        return None if in_trash else known if task is None else [task]
    # Without a failed queue, its messages are where those without a task are, or in the trash.
    tasks = None if in_trash else list[str]()
    async with aclosing(program.failed.look(tasks, Selection(task=task))) as found:
        if await anext(found, None) is None:
            raise UnknownLoop(no_such("task", task, known))
    return tasks


def _is_tick(row: Row) -> bool:
    return row["routing_key"].startswith(LOOP_KEY)


def _table_of_parked(rows: Sequence[Row], zones: Zones) -> Table[Row]:
    short = shortened(row["id"] for row in rows)
    return Table(
        {
            "ID": lambda row: CellForms(row["id"], short[row["id"]]),
            "TASK": lambda row: row["task"],
            "LOOP": lambda row: row["loop"] if _is_tick(row) else "-",
            "REASON": lambda row: row["reason"],
            "PARKED": lambda row: local(row["parked_at"], zones.get(row["loop"])),
            "ERROR": lambda row: row["error"],
        },
        brief=("ID", "TASK", "REASON", "PARKED", "ERROR"),
    )


def _lines_of_parked(row: Row, zone: tzinfo | None) -> Iterator[str]:
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
