"""Manage messages in the app's fallback store: `scheduler unsent`."""

from typing import Annotated

import typer

from scheduler.app import Scheduler
from scheduler.cli.arguments import AppArgument, Json, command, new_group
from scheduler.cli.connecting import ask
from scheduler.cli.loading import ready_app
from scheduler.cli.printing import Row, local, print_json, print_line
from scheduler.cli.tables import Table, show
from scheduler.errors import UsageError
from scheduler.queues.unsent import Unsent, UnsentStore

cli = new_group("List, send and purge messages that could not be sent.")


@command(cli, "list", asks=False)
def unsent_list(reference: AppArgument = None, as_json: Json = False) -> None:
    """List the stored messages. The broker need not be running.

    Example: scheduler unsent list shop:app
    """
    show(_store(ready_app(reference)).read(), OF_UNSENT, as_json)


@command(cli, "send")
def unsent_send(reference: AppArgument = None, as_json: Json = False) -> bool:
    """Send the stored messages now.

    Processors, and connected programs, do the same every 5 seconds. A message that one of them is
    sending is left to it; exit code 1: some are left.

    Example: scheduler unsent send shop:app
    """
    app = ready_app(reference)
    store = _store(app)
    count = ask(app, lambda it: app.outbox.send_stored(it.broker), is_long=True)
    left = len(store.read())
    if as_json:
        print_json({"sent": count, "left": left})
    else:
        print_line(f"{count} sent, {left} left")
    return not left


@command(cli, "purge", asks=False)
def unsent_purge(
    reference: AppArgument = None,
    yes: Annotated[bool, typer.Option("--yes", help="Delete without confirmation.")] = False,
    as_json: Json = False,
) -> None:
    """Delete the stored messages for good.

    Example: scheduler unsent purge shop:app
    """
    store = _store(ready_app(reference))
    if not yes:
        typer.confirm("Delete stored messages for good?", abort=True, err=True)
    ids = [each.id for each in store.read()]
    store.remove(ids)
    if as_json:
        print_json({"purged": ids})
    else:
        print_line(f"{len(ids)} purged")


def _store(app: Scheduler) -> UnsentStore:
    if app.fallback is None:
        raise UsageError(
            f"The app of namespace {app.namespace!r} stores no messages: give it "
            'Scheduler(..., fallback="sqlite:///unsent.db").'
        )
    return app.fallback


def _row(unsent: Unsent) -> Row:
    is_call = unsent.exchange is None
    return {
        "id": unsent.id,
        "task": unsent.key if is_call else None,
        "exchange": unsent.exchange,
        "routing_key": None if is_call else unsent.key,
        "due_at": unsent.due_at,
        "stored_at": unsent.stored_at,
    }


OF_UNSENT = Table[Unsent](
    {
        "ID": lambda each: each.id,
        "TO": lambda each: each.target,
        "DUE": lambda each: local(each.due_at),
        "STORED": lambda each: local(each.stored_at),
    },
    brief=("ID", "TO", "DUE"),
    row=_row,
    nothing="No message is stored.",
)
