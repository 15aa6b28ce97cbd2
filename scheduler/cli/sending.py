"""Send calls, and the messages that could not be sent: `scheduler send` and `scheduler unsent`."""

import asyncio
from typing import Annotated, Any

import typer

from scheduler.app import Scheduler
from scheduler.cli.arguments import (
    LIMIT,
    AppArgument,
    Yes,
    app_and_next,
    command,
    json_object,
    moment_of,
    new_group,
    tasks_to_complete,
)
from scheduler.cli.connecting import ask, require_remote
from scheduler.cli.loading import ready_app
from scheduler.cli.printing import Output, Row, local
from scheduler.cli.tables import Table
from scheduler.control.reports import Effect
from scheduler.errors import UsageError
from scheduler.program import Program
from scheduler.queues.outbox import Posting
from scheduler.queues.unsent import MessageId, Unsent, UnsentStore
from scheduler.sending import CallTask
from scheduler.spelling import no_such
from scheduler.timing.durations import ZERO, parse_duration

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
    called = _sender_of(app, name)
    arguments = called.spec.arguments.load(json_object("--args", args))
    moment = None if at is None else moment_of("--at", at)
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


def _sender_of(app: Scheduler, name: str) -> CallTask[..., ..., Any]:
    if name in app.senders:
        return app.senders[name]
    if name in app.tasks:
        raise UsageError(
            f"{name!r} gets no calls: it is a loop. To run it now: `scheduler trigger`."
        )
    raise UsageError(no_such("task", name, app.senders))


@command(unsent, "list", asks=False)
def unsent_list(app: Scheduler) -> Output:
    """List the stored messages. The broker need not be running.

    Example: scheduler unsent list shop:app
    """
    stored = _store(app).read()
    lines = OF_UNSENT.shown(stored) if stored else ["No message is stored."]
    return Output([_row(each) for each in stored], lines)


@command(unsent, "send")
def unsent_send(app: Scheduler) -> Output:
    """Send the stored messages now.

    Processors and connected programs do the same every 5 seconds. The command skips a message that
    one of them is sending. The exit code is 1 if messages are left.

    Example: scheduler unsent send shop:app
    """
    store = _store(app)
    count = ask(app, lambda it: app.outbox.send_stored(it.broker), is_long=True)
    left = len(store.read())
    row = {"sent": count, "left": left}
    return Output(row, [f"{count} sent, {left} left"], is_fine=not left)


@command(unsent, "purge", asks=False)
def unsent_purge(app: Scheduler, yes: Yes = False) -> Output:
    """Delete the stored messages for good.

    Example: scheduler unsent purge shop:app
    """
    store = _store(app)
    if not yes:
        typer.confirm("Delete stored messages for good?", abort=True, err=True)
    ids = [each.id for each in store.read()]
    store.remove(ids)
    return Output({"purged": ids}, [f"{len(ids)} purged"])


def _store(app: Scheduler) -> UnsentStore:
    if app.fallback is None:
        raise UsageError(
            f"The app of namespace {app.namespace!r} stores no messages: give it "
            'Scheduler(..., fallback="sqlite:///unsent.db").'
        )
    return app.fallback


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
