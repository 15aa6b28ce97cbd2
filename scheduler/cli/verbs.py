"""What operators do to one loop: pause, resume, trigger, remove."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import typer

from scheduler.app import Scheduler
from scheduler.cli.arguments import app_and_one
from scheduler.cli.connecting import connected
from scheduler.cli.loading import ready_app
from scheduler.cli.printing import exact, print_json, print_line
from scheduler.cli.rows import row_of_report
from scheduler.control.acting import acting_as, user_here
from scheduler.control.reports import Did, Report
from scheduler.program import Program
from scheduler.protocol.rights import Rights, rights_to_start
from scheduler.tasks.loops import Loop
from scheduler.timing.schedules import zone_of

Operation = Callable[[Program, Loop], Coroutine[Any, Any, Report]]
NOT_CONFIRMED = (
    "Not confirmed by {names}: until they answer, or their connections end, they may begin one "
    "more run. Do it again to see whether all know."
)
REFUSALS = (Did.IS_PAUSED, Did.RUNNING, Did.NOT_THERE)


def pause(reference: str | None, loop: str | None, *, reason: str, as_json: bool) -> None:
    app, name = app_and_loop(reference, loop)
    report = _done(app, name, lambda program, found: program.verbs.pause(found, reason))
    print_report(report, as_json)


def resume(reference: str | None, loop: str | None, *, at_once: bool, as_json: bool) -> None:
    app, name = app_and_loop(reference, loop)
    report = _done(app, name, lambda program, found: program.verbs.resume(found, at_once=at_once))
    print_report(report, as_json)


def trigger(reference: str | None, loop: str | None, *, as_json: bool) -> None:
    app, name = app_and_loop(reference, loop)
    print_report(_done(app, name, lambda program, found: program.verbs.trigger(found)), as_json)


def remove(reference: str | None, loop: str | None, *, as_json: bool) -> None:
    app, name = app_and_loop(reference, loop)
    rights = rights_to_start(app.names)
    report = _done(app, name, lambda program, found: program.removal.remove(found), rights)
    print_report(report, as_json)


def app_and_loop(reference: str | None, loop: str | None) -> tuple[Scheduler, str]:
    """The app, and the name of a loop, of what was typed."""
    reference, name = app_and_one(reference, loop, "the name of a LOOP")
    return ready_app(reference), name


def _done(app: Scheduler, name: str, operation: Operation, rights: Rights | None = None) -> Report:
    async def done() -> Report:
        async with connected(app, rights) as program:
            with acting_as(user_here()):
                return await operation(program, await program.loops.find(name))

    return asyncio.run(done())


def print_report(report: Report, as_json: bool) -> None:
    """Print what was done; exits with 1 where it was not."""
    row = row_of_report(report)
    if as_json:
        print_json(row | {"not_confirmed_by": list(report.silent)})
    else:
        due_at = exact(row["due_at"], zone_of(report.loop.schedule))
        due = f", due {due_at}" if due_at else ""
        print_line(f"{row['loop']}: {row['did']}{due}")
        if report.silent:
            print_line(NOT_CONFIRMED.format(names=", ".join(report.silent)))
    if report.did in REFUSALS or report.silent:
        raise typer.Exit(1)
