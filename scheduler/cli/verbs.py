"""What operators do to a loop: pause, resume, trigger, remove; the first two to all as well."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

import typer

from scheduler.app import Scheduler
from scheduler.cli.arguments import app_and_one, moment_of
from scheduler.cli.connecting import connected
from scheduler.cli.loading import names_app, ready_app
from scheduler.cli.printing import exact, print_json, print_line
from scheduler.cli.rows import Row, row_of_report
from scheduler.control.acting import acting_as, user_here
from scheduler.control.reports import Did, Report
from scheduler.errors import UsageError
from scheduler.program import Program
from scheduler.tasks.loops import Loop
from scheduler.timing.once import Once
from scheduler.timing.schedules import zone_of

Operation = Callable[[Program, Loop], Coroutine[Any, Any, Report]]
BulkOperation = Callable[[Program, Sequence[Loop]], Coroutine[Any, Any, Sequence[Report]]]
NOT_CONFIRMED = (
    "Not confirmed by {names}: until they answer, or their connections end, they may begin one "
    "more run. Do it again to see whether all know."
)
REFUSALS = (Did.IS_PAUSED, Did.RUNNING, Did.NOT_THERE)


def pause(
    reference: str | None, loop: str | None, *, every: bool, reason: str, as_json: bool
) -> None:
    def paused(program: Program, loops: Sequence[Loop]) -> Coroutine[Any, Any, Sequence[Report]]:
        return program.verbs.pause_all(loops, reason)

    _do(reference, loop, paused, every=every, as_json=as_json)


def resume(
    reference: str | None,
    loop: str | None,
    *,
    every: bool,
    at_once: bool,
    after: str | None,
    as_json: bool,
) -> None:
    if at_once and after is not None:
        raise UsageError("A loop goes on at once, or as after a moment: give --now or --after.")
    moment = None if after is None else moment_of("--after", after)

    def resumed(program: Program, loops: Sequence[Loop]) -> Coroutine[Any, Any, Sequence[Report]]:
        return program.verbs.resume_all(loops, at_once=at_once, after=moment)

    _do(reference, loop, resumed, every=every, as_json=as_json)


def trigger(reference: str | None, loop: str | None, *, as_json: bool) -> None:
    app, name = app_and_loop(reference, loop)
    print_report(_done(app, name, lambda program, found: program.verbs.trigger(found)), as_json)


def remove(reference: str | None, loop: str | None, *, as_json: bool) -> None:
    app, name = app_and_loop(reference, loop)
    print_report(_done(app, name, lambda program, found: program.removal.remove(found)), as_json)


def app_and_loop(reference: str | None, loop: str | None) -> tuple[Scheduler, str]:
    """The app, and the name of a loop, of what was typed."""
    reference, name = app_and_one(reference, loop, "the name of a LOOP")
    return ready_app(reference), name


def _do(
    reference: str | None, loop: str | None, operation: BulkOperation, *, every: bool, as_json: bool
) -> None:
    """Do it to one loop, or to all loops of the app at once."""

    async def one(program: Program, loop: Loop) -> Report:
        return (await operation(program, [loop]))[0]

    if not every:
        app, name = app_and_loop(reference, loop)
        print_report(_done(app, name, one), as_json)
        return
    if loop is not None or (reference is not None and not names_app(reference)):
        raise UsageError(f"Either a LOOP or --all, got both: {loop or reference}.")
    _print_all(asyncio.run(_done_to_all(ready_app(reference), operation)), as_json)


async def _done_to_all(app: Scheduler, operation: BulkOperation) -> Sequence[Report]:
    async with connected(app) as program:
        loops = [each for each in await program.loops.all() if not isinstance(each.schedule, Once)]
        with acting_as(user_here()):
            return await operation(program, loops) if loops else []


def _done(app: Scheduler, name: str, operation: Operation) -> Report:
    async def done() -> Report:
        async with connected(app) as program:
            with acting_as(user_here()):
                return await operation(program, await program.loops.find(name))

    return asyncio.run(done())


def print_report(report: Report, as_json: bool) -> None:
    """Print what was done; exits with 1 where it was not."""
    if as_json:
        print_json(_row(report))
    else:
        _print_lines(report)
    _exit_if_not_done([report])


def _print_all(reports: Sequence[Report], as_json: bool) -> None:
    if as_json:
        print_json([_row(report) for report in reports])
    else:
        for report in reports:
            _print_lines(report)
    _exit_if_not_done(reports)


def _row(report: Report) -> Row:
    return row_of_report(report) | {"not_confirmed_by": list(report.silent)}


def _print_lines(report: Report) -> None:
    row = row_of_report(report)
    due_at = exact(row["due_at"], zone_of(report.loop.schedule))
    due = f", due {due_at}" if due_at else ""
    print_line(f"{row['loop']}: {row['did']}{due}")
    if report.silent:
        print_line(NOT_CONFIRMED.format(names=", ".join(report.silent)))


def _exit_if_not_done(reports: Iterable[Report]) -> None:
    if any(report.did in REFUSALS or report.silent for report in reports):
        raise typer.Exit(1)
