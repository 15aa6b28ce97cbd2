"""Send a call by hand: `scheduler send`."""

import asyncio
from typing import Annotated, Any

import typer

from scheduler.app import Scheduler
from scheduler.cli.arguments import (
    LIMIT,
    AppArgument,
    Json,
    app_and_one,
    command,
    json_object,
    moment_of,
    new_group,
    tasks_to_complete,
)
from scheduler.cli.connecting import ask, require_remote
from scheduler.cli.loading import ready_app
from scheduler.cli.printing import print_json, print_line
from scheduler.control.reports import Did
from scheduler.errors import UsageError
from scheduler.program import Program
from scheduler.queues.outbox import Posting
from scheduler.queues.unsent import MessageId
from scheduler.sending import CallTask
from scheduler.spelling import no_such
from scheduler.timing.durations import ZERO, parse_duration

cli = new_group()


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
    as_json: Json = False,
) -> None:
    """Send a call to a task, and print its ID.

    The arguments are checked first; the broker has confirmed the call when the command ends.

    Examples: scheduler send jobs:app send_mail --args '{"to": "ada@example.com"}' --in 5m;
    scheduler send jobs:app remind --unique order-7 --at 2026-06-01T09:00+02:00
    """
    pairs = (each for each in (reference, task) if each and "=" in each)
    for each in (*pairs, *context.args):
        problem = "is no option: the arguments are one JSON object"
        raise UsageError(f"{each!r} {problem}, such as --args '{{\"n\": 1}}'.")
    reference, name = app_and_one(reference, task, "a TASK")
    if delay is not None and at is not None:
        raise UsageError("A call has one time: give --in or --at, not both.")
    require_remote(app := ready_app(reference))
    called = _sender_of(app, name)
    arguments = called.spec.arguments.load(json_object("--args", args))
    moment = None if at is None else moment_of("--at", at)
    span = None if delay is None else parse_duration(delay, "--in")

    async def once(program: Program) -> Did:
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
    if as_json:
        print_json({"task": name, "id": id, "outcome": outcome})
    else:
        print_line(f"{id} {outcome}")


def _sender_of(app: Scheduler, name: str) -> CallTask[..., ..., Any]:
    if name in app.senders:
        return app.senders[name]
    if name in app.tasks:
        raise UsageError(
            f"{name!r} gets no calls: it is a loop. To run it now: `scheduler trigger`."
        )
    raise UsageError(no_such("task", name, app.senders))
