"""Operate on loops and named one-offs: pause, resume, trigger, remove, sync, move."""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, TypeVar

import typer

from scheduler.app import Scheduler
from scheduler.cli.arguments import (
    AppArgument,
    DryRun,
    Json,
    LoopArgument,
    LoopOrTask,
    OneTask,
    app_and_loop,
    app_and_one,
    command,
    json_object,
    moment_of,
    new_group,
)
from scheduler.cli.connecting import ask
from scheduler.cli.loading import ready_app
from scheduler.cli.printing import Row, local, print_json, print_line
from scheduler.cli.tables import Table, show
from scheduler.cli.upcoming import row_of_loop
from scheduler.control.keyed import Synced
from scheduler.control.loop_files import loops_in, sync_all
from scheduler.control.reports import Did, Report, acting_as, user_here
from scheduler.errors import UnknownLoop, UsageError
from scheduler.program import Program
from scheduler.spelling import no_such
from scheduler.tasks.loops import Loop
from scheduler.timing.clock import SystemClock
from scheduler.timing.durations import parse_duration
from scheduler.timing.moments import exact
from scheduler.timing.once import Once
from scheduler.timing.schedules import zone_of

T = TypeVar("T")
Operation = Callable[[Program, Loop], Awaitable[Report]]
BulkOperation = Callable[[Program, Sequence[Loop]], Awaitable[Sequence[Report]]]
EveryLoop = Annotated[
    bool,
    typer.Option(
        "--all", help="Every loop of the app, keyed ones as well, instead of one; no one-offs."
    ),
]
OneOff = Annotated[
    str | None,
    typer.Argument(
        metavar="NAME",
        help="The one-off, as `scheduler scheduled list` names it: remind.order-7. Required.",
    ),
]
REFUSALS = (Did.IS_PAUSED, Did.RUNNING, Did.NOT_THERE)

cli = new_group()
scheduled = new_group("List, move and cancel named one-offs.")
cli.add_typer(scheduled, name="scheduled")


@command(cli, "pause")
def pause(
    reference: AppArgument = None,
    loop: LoopOrTask = None,
    every: EveryLoop = False,
    reason: Annotated[
        str, typer.Option(help="The reason, shown by `scheduler status`.")
    ] = "paused by an operator",
    as_json: Json = False,
) -> bool:
    """Pause a loop, or a task with all its calls and loops.

    Runs in progress end normally. When the command returns, no other run begins, unless it names
    processors that have not confirmed. Messages for a paused task wait.

    Example: scheduler pause jobs:app report --reason "database upgrade"
    """
    return _do(reference, loop, every, lambda it, loops: it.verbs.pause_all(loops, reason), as_json)


@command(cli, "resume")
def resume(
    reference: AppArgument = None,
    loop: LoopOrTask = None,
    every: EveryLoop = False,
    now: Annotated[
        bool, typer.Option("--now", help="Run at once, and not at the next nominal time.")
    ] = False,
    after: Annotated[
        str | None,
        typer.Option(
            metavar="MOMENT",
            help="Continue as after a run at this moment, such as 2026-06-01T09:00:00+02:00: the "
            "schedule's catch_up decides about ticks since then.",
        ),
    ] = None,
    as_json: Json = False,
) -> bool:
    """Resume a loop at its next nominal time, or a whole task.

    A loop that was paused itself stays paused when its task is resumed.

    Example: scheduler resume jobs:app report --now
    """
    if now and after is not None:
        raise UsageError("--now and --after cannot be combined.")
    moment = None if after is None else moment_of("--after", after)

    def resumed(program: Program, loops: Sequence[Loop]) -> Awaitable[Sequence[Report]]:
        return program.verbs.resume_all(loops, at_once=now, after=moment)

    return _do(reference, loop, every, resumed, as_json)


@command(cli, "trigger")
def trigger(
    reference: AppArgument = None,
    loop: LoopArgument = None,
    args: Annotated[
        str | None,
        typer.Option(
            "--args",
            help="Run it once with these arguments, a JSON object, instead of its own. The loop "
            "and its next run are unchanged, and a failed run is parked.",
        ),
    ] = None,
    as_json: Json = False,
) -> bool:
    """Run a loop now, in addition to its schedule.

    Example: scheduler trigger jobs:app report --args '{"day": "2026-06-01"}'
    """
    edited = None if args is None else json_object("--args", args)

    def operation(program: Program, found: Loop) -> Awaitable[Report]:
        if edited is None:
            return program.verbs.trigger(found)
        return program.verbs.run_beside(found, edited)

    return print_report(done_to(reference, loop, operation), as_json)


@command(cli, "remove")
def remove(reference: AppArgument = None, loop: LoopArgument = None, as_json: Json = False) -> bool:
    """Remove a loop that is not in the code.

    It was started at run time, or has left the code.

    Example: scheduler remove jobs:app digest.user-42
    """
    report = done_to(reference, loop, lambda it, found: it.removal.remove(found))
    return print_report(report, as_json)


@command(cli, "sync")
def sync(
    reference: AppArgument = None,
    file: Annotated[
        str | None,
        typer.Argument(metavar="FILE", help="TOML, or JSON if it ends in .json. Required."),
    ] = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Make keyed loops match a file: start, reschedule, stop.

    It has a table for each, such as [digest."user-42"], with every or cron, the other options of a
    schedule, and args. Other tasks are left alone. All is checked before anything is done.

    Example: scheduler sync jobs:app loops.toml --dry-run
    """
    reference, path = app_and_one(reference, file, "a FILE")
    app = ready_app(reference)
    wanted = loops_in(path, app.tasks)
    synced = ask(app, lambda it: sync_all(wanted, app.tasks, it, dry_run=dry_run), is_long=True)
    if as_json:
        return print_json({task: asdict(what) for task, what in synced.items()})
    for line in _lines(synced):
        print_line(line)
    if dry_run:
        print_line("Dry run: nothing was changed.")


def _lines(synced: Mapping[str, Synced]) -> Iterator[str]:
    """Count the loops of each task, and name the changed ones."""
    for task, what in synced.items():
        did: Mapping[str, Sequence[str]] = asdict(what)
        yield f"{task}: {', '.join(f'{len(keys)} {done}' for done, keys in did.items())}"
        for done, keys in did.items():
            if done != "unchanged":
                yield from (f"  {done:11}  {task}.{key}" for key in keys)


@command(scheduled, "list")
def scheduled_list(
    reference: AppArgument = None, task: OneTask = None, as_json: Json = False
) -> None:
    """List named one-offs, soonest first.

    The list includes running ones, and finished ones while their name is kept.

    Example: scheduler scheduled list jobs:app
    """
    found = ask(ready_app(reference), _one_offs)
    show([loop for loop in found if task in (None, loop.id.task)], OF_ONE_OFFS, as_json)


@command(scheduled, "move")
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
    """Move a one-off to another time. A running one runs again then.

    Example: scheduler scheduled move jobs:app remind.order-7 --after 10m
    """
    if (at is None) == (after is None):
        raise UsageError("A one-off is moved to a moment or by a delay: give --at or --after.")
    if at is not None:
        moment = moment_of("--at", at)
    else:
        moment = SystemClock().now() + parse_duration(after or "", "--after")

    def moved(program: Program, loop: Loop) -> Awaitable[Report]:
        # A name kept for longer would be taken, even for this move.
        return program.seeding.start(Loop(loop.id, loop.task, Once(moment), loop.args))

    return _do_to_one_off(reference, name, moved, as_json)


@command(scheduled, "cancel")
def scheduled_cancel(
    reference: AppArgument = None, name: OneOff = None, as_json: Json = False
) -> bool:
    """Cancel a one-off. A run in progress ends normally.

    Example: scheduler scheduled cancel jobs:app remind.order-7
    """
    return _do_to_one_off(reference, name, lambda it, loop: it.removal.remove(loop), as_json)


def _do_to_one_off(
    reference: str | None, name: str | None, operation: Operation, as_json: bool
) -> bool:
    reference, wanted = app_and_one(reference, name, "the NAME of a one-off")

    async def done(program: Program) -> Report:
        known = {str(loop): loop for loop in await _one_offs(program)}
        if wanted not in known:
            raise UnknownLoop(no_such("named one-off", wanted, known))
        return await operation(program, known[wanted])

    report = operated(ready_app(reference), done)
    if as_json:
        print_json(_row_of_one_off(report.loop) | _row_of_done(report))
    else:
        _print_done(report)
    return _is_done(report)


async def _one_offs(program: Program) -> list[Loop]:
    found = [loop for loop in await program.loops.look() if isinstance(loop.schedule, Once)]
    return sorted(found, key=lambda loop: (_at(loop), str(loop)))


def _at(loop: Loop) -> datetime:
    assert isinstance(loop.schedule, Once)
    return loop.schedule.at


def _row_of_one_off(loop: Loop) -> Row:
    return {"name": str(loop), "task": loop.id.task, "at": _at(loop), "args": dict(loop.args)}


OF_ONE_OFFS = Table[Loop](
    {"NAME": str, "AT": lambda loop: local(_at(loop)), "ARGS": lambda loop: ", ".join(loop.args)},
    brief=("NAME", "AT"),
    row=_row_of_one_off,
    nothing="No named one-off is scheduled.",
)


def done_to(reference: str | None, loop: str | None, operation: Operation) -> Report:
    """Run an operation on the loop of a command, whose app may be left out."""
    reference, name = app_and_one(reference, loop, "the name of a LOOP")

    async def done(program: Program) -> Report:
        return await operation(program, await program.loops.find(name))

    return operated(ready_app(reference), done)


def operated(app: Scheduler, operation: Callable[[Program], Awaitable[T]]) -> T:
    """Run an operation as the user of this program."""
    with acting_as(user_here()):
        return ask(app, operation, is_long=True)


def _do(
    reference: str | None, loop: str | None, every: bool, operation: BulkOperation, as_json: bool
) -> bool:
    """Run an operation on one loop or task, or on all loops of the app at once."""

    async def done_to_all(program: Program) -> Sequence[Report]:
        known = await program.loops.all()
        loops = [each for each in known if not isinstance(each.schedule, Once)]
        return await operation(program, loops) if loops else []

    if not every:
        reference, named = app_and_one(reference, loop, "the name of a LOOP or a TASK")

        async def done_to_one(program: Program) -> Report:
            return (await operation(program, [await program.loops.find_or_whole(named)]))[0]

        return print_report(operated(ready_app(reference), done_to_one), as_json)
    reference, name = app_and_loop(reference, loop)
    if name is not None:
        raise UsageError(f"Either a LOOP or --all, got both: {name}.")
    reports = operated(ready_app(reference), done_to_all)
    if as_json:
        print_json([_row(report) for report in reports])
    else:
        for report in reports:
            print_report(report, as_json=False)
    return all(map(_is_done, reports))


def print_report(report: Report, as_json: bool) -> bool:
    if as_json:
        print_json(_row(report))
    else:
        due_at = exact(report.due_at, zone_of(report.loop.schedule))
        _print_done(report, due_at and f", due {due_at}")
    return _is_done(report)


def _print_done(report: Report, due: str = "") -> None:
    print_line(f"{report.loop}: {report.did.value}{due}")
    if report.silent:
        print_line(
            f"Not confirmed by {', '.join(report.silent)}; they may start one more run. Repeat "
            "the command to check."
        )


def _is_done(report: Report) -> bool:
    """Return whether the operation had its effect, and all processors know."""
    return report.did not in REFUSALS and not report.silent


def row_of_report(report: Report) -> Row:
    if report.loop.id.is_whole:
        return {"task": str(report.loop), "did": report.did.value}
    return row_of_loop(report.loop) | {"did": report.did.value, "due_at": report.due_at}


def _row(report: Report) -> Row:
    return row_of_report(report) | _row_of_done(report)


def _row_of_done(report: Report) -> Row:
    return {"did": report.did.value, "not_confirmed_by": list(report.silent)}
