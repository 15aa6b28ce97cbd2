"""`scheduler scheduled`: named one-offs, listed, moved and taken back."""

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Annotated

import typer

from scheduler.cli.arguments import (
    AppArgument,
    Json,
    OneTask,
    app_and_one,
    command,
    moment_of,
    new_group,
    span_of,
)
from scheduler.cli.connecting import ask
from scheduler.cli.loading import ready_app
from scheduler.cli.loops import is_done, operated, print_did
from scheduler.cli.printing import Row, local, print_json, print_line
from scheduler.cli.tables import Table, print_table
from scheduler.control.reports import Report
from scheduler.errors import UnknownLoop, UsageError
from scheduler.program import Program
from scheduler.spelling import no_such
from scheduler.tasks.loops import Loop
from scheduler.timing.clock import SystemClock
from scheduler.timing.once import Once

OneOff = Annotated[
    str | None,
    typer.Argument(
        metavar="NAME",
        help="The one-off, as `scheduler scheduled list` names it: remind.order-7. Required.",
    ),
]

cli = new_group("List, move and cancel named one-offs.")


@command(cli, "list")
def scheduled_list(
    reference: AppArgument = None, task: OneTask = None, as_json: Json = False
) -> None:
    """List named one-offs, soonest first.

    A running one is among them, and one that has run while its name is kept.
    """
    found = ask(ready_app(reference), _one_offs)
    loops = [loop for loop in found if task in (None, loop.id.task)]
    if as_json:
        print_json([_row(loop) for loop in loops])
    elif loops:
        print_table(loops, OF_ONE_OFFS)
    else:
        print_line("No named one-off is scheduled.")


@command(cli, "move")
def scheduled_move(
    reference: AppArgument = None,
    name: OneOff = None,
    at: Annotated[
        str | None,
        typer.Option(help="The moment, such as 2026-06-01T09:00+02:00; without an offset, here."),
    ] = None,
    after: Annotated[str | None, typer.Option(help="How long from now, such as 10m.")] = None,
    as_json: Json = False,
) -> bool:
    """Move a one-off to another time. A running one runs again then."""
    if (at is None) == (after is None):
        raise UsageError("A one-off is moved to a moment or by a delay: give --at or --after.")
    now = SystemClock().now()
    moment = moment_of("--at", at) if at is not None else now + span_of("--after", after or "")

    def moved(program: Program, loop: Loop) -> Awaitable[Report]:
        # Kept for longer than its run, the name would be taken, for whoever moves it as well.
        return program.seeding.start(Loop(loop.id, loop.task, Once(moment), loop.args))

    return _do(reference, name, moved, as_json)


@command(cli, "cancel")
def scheduled_cancel(
    reference: AppArgument = None, name: OneOff = None, as_json: Json = False
) -> bool:
    """Cancel a one-off. A current run ends by itself."""
    return _do(reference, name, lambda program, loop: program.removal.remove(loop), as_json)


def _do(
    reference: str | None,
    name: str | None,
    operation: Callable[[Program, Loop], Awaitable[Report]],
    as_json: bool,
) -> bool:
    reference, wanted = app_and_one(reference, name, "the NAME of a one-off")

    async def done(program: Program) -> Report:
        known = {str(loop): loop for loop in await _one_offs(program)}
        if wanted not in known:
            raise UnknownLoop(no_such("named one-off", wanted, known))
        return await operation(program, known[wanted])

    report = operated(ready_app(reference), done)
    if as_json:
        row = _row(report.loop) | {"did": report.did.value}
        print_json(row | {"not_confirmed_by": list(report.silent)})
    else:
        print_did(report)
    return is_done(report)


async def _one_offs(program: Program) -> list[Loop]:
    found = [loop for loop in await program.loops.all() if isinstance(loop.schedule, Once)]
    return sorted(found, key=lambda loop: (_at(loop), str(loop)))


def _at(loop: Loop) -> datetime:
    assert isinstance(loop.schedule, Once)
    return loop.schedule.at


def _row(loop: Loop) -> Row:
    return {"name": str(loop), "task": loop.id.task, "at": _at(loop), "args": dict(loop.args)}


OF_ONE_OFFS = Table[Loop](
    {"NAME": str, "AT": lambda loop: local(_at(loop)), "ARGS": lambda loop: ", ".join(loop.args)},
    brief=("NAME", "AT"),
)
