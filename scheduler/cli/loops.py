"""Operate on loops and named one-offs, list their next runs, and describe schedules in words."""

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any, TypeVar

import typer

from scheduler.app import Scheduler
from scheduler.cli.arguments import (
    DryRun,
    LoopArgument,
    OneLoopOrTask,
    OneTask,
    command,
    new_group,
)
from scheduler.cli.connecting import ask
from scheduler.cli.printing import Output, local
from scheduler.cli.schedules import meaning_of, origin_of, warn_of_doubts
from scheduler.cli.tables import Table
from scheduler.control.loop_files import loops_in, sync_all
from scheduler.control.reports import Effect, Report, acting_as, operator_here, user_here
from scheduler.control.rows import Row, row_of_effect, whole_row_of_report
from scheduler.errors import ScheduleError, UnknownLoop, UsageError
from scheduler.program import Program
from scheduler.spelling import no_such
from scheduler.tasks import registration
from scheduler.tasks.loops import Loop
from scheduler.tasks.tasks import parse_arguments
from scheduler.timing.durations import parse_duration
from scheduler.timing.moments import SystemClock, exact, parse_moment
from scheduler.timing.schedules import Once, Recurring, zone_of

cli = new_group()

T = TypeVar("T")
Operation = Callable[[Program, Loop], Awaitable[Report]]
BulkOperation = Callable[[Program, Sequence[Loop]], Awaitable[Sequence[Report]]]
EveryLoop = Annotated[
    bool,
    typer.Option(
        "--all", help="Select all loops of the app, keyed loops included, but no one-offs."
    ),
]
OneOff = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="The one-off, as `scheduler scheduled list` names it: remind.order-7. Required.",
    ),
]
REFUSALS = (Effect.IS_PAUSED, Effect.RUNNING, Effect.NOT_THERE)
scheduled = new_group("List, move and cancel named one-offs.")
cli.add_typer(scheduled, name="scheduled")
schedule = new_group("Override a loop's schedule without changing code.")
cli.add_typer(schedule, name="schedule")


@command(cli, "pause")
def pause(
    app: Scheduler,
    loop: OneLoopOrTask = None,
    every: EveryLoop = False,
    reason: Annotated[
        str, typer.Option(help="The reason, shown by `scheduler status`.")
    ] = "paused by an operator",
) -> Output:
    """Pause a loop, or a task with all its calls and loops.

    Runs in progress end normally. When the command returns, no other run begins, unless it names
    processors that have not confirmed. Messages for a paused task wait.

    Example: scheduler pause jobs:app report --reason "database upgrade"
    """
    return _do(app, loop, every, lambda it, loops: it.verbs.pause_all(loops, reason))


@command(cli, "resume")
def resume(
    app: Scheduler,
    loop: OneLoopOrTask = None,
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
) -> Output:
    """Resume a loop at its next nominal time, or a whole task.

    A loop that was paused itself stays paused when its task is resumed.

    Example: scheduler resume jobs:app report --now
    """
    if now and after is not None:
        raise UsageError("--now and --after cannot be combined.")
    moment = None if after is None else parse_moment(after, "--after")

    def resumed(program: Program, loops: Sequence[Loop]) -> Awaitable[Sequence[Report]]:
        return program.verbs.resume_all(loops, at_once=now, after=moment)

    return _do(app, loop, every, resumed)


@command(cli, "trigger")
def trigger(
    app: Scheduler,
    loop: LoopArgument,
    args: Annotated[
        str | None,
        typer.Option(
            "--args",
            help="Run it once with these arguments, a JSON object, instead of its own. The loop "
            "and its next run are unchanged, and a failed run is parked.",
        ),
    ] = None,
) -> Output:
    """Run a loop now, in addition to its schedule.

    Example: scheduler trigger jobs:app report --args '{"day": "2026-06-01"}'
    """
    edited = None if args is None else parse_arguments(args, "--args")

    def operation(program: Program, found: Loop) -> Awaitable[Report]:
        if edited is None:
            return program.verbs.trigger(found)
        return program.verbs.run_beside(found, edited)

    return _output(_done_to(app, loop, operation))


@command(cli, "remove")
def remove(app: Scheduler, loop: LoopArgument) -> Output:
    """Remove a loop that is not in the code.

    Use it for a loop that was started at run time, or that the code no longer has.

    Example: scheduler remove jobs:app digest.user-42
    """
    return _output(_done_to(app, loop, lambda it, found: it.removal.remove(found)))


@command(cli, "sync")
def sync(
    app: Scheduler,
    file: Annotated[
        str,
        typer.Argument(metavar="FILE", help="TOML, or JSON if it ends in .json. Required."),
    ],
    dry_run: DryRun = False,
) -> Output:
    """Make keyed loops match a file: start, reschedule, stop.

    FILE has a table for each loop, such as [digest."user-42"], with every or cron, the other
    options of a schedule, and args. Tasks that are not in FILE are left alone. The whole file is
    checked before any change.

    Example: scheduler sync jobs:app loops.toml --dry-run
    """
    wanted = loops_in(file, app.tasks)
    synced = ask(app, lambda it: sync_all(wanted, app.tasks, it, dry_run=dry_run), is_long=True)
    did = {task: asdict(what) for task, what in synced.items()}
    return Output(did, [*_lines(did), *(["Dry run: nothing was changed."] if dry_run else [])])


def _lines(synced: Mapping[str, Mapping[str, Sequence[str]]]) -> Iterator[str]:
    """Count the loops of each task, and name the changed ones."""
    for task, did in synced.items():
        yield f"{task}: {', '.join(f'{len(keys)} {done}' for done, keys in did.items())}"
        for done, keys in did.items():
            if done != "unchanged":
                yield from (f"  {done:11}  {task}.{key}" for key in keys)


@command(scheduled, "list")
def scheduled_list(app: Scheduler, task: OneTask = None) -> Output:
    """List named one-offs, soonest first.

    The list includes running ones, but none that have finished.

    Example: scheduler scheduled list jobs:app
    """
    if task is not None:
        app.select([task])
    found = [loop for loop in ask(app, _one_offs) if task in (None, loop.id.task)]
    lines = OF_ONE_OFFS.shown(found) if found else ["No named one-off is scheduled."]
    return Output([_row_of_one_off(loop) for loop in found], lines)


@command(scheduled, "move")
def scheduled_move(
    app: Scheduler,
    name: OneOff,
    at: Annotated[
        str | None,
        typer.Option(help="Move it to this time, such as 2026-06-01T09:00+02:00; else local time."),
    ] = None,
    after: Annotated[
        str | None, typer.Option(help="Move it to this long from now, such as 10m.")
    ] = None,
) -> Output:
    """Move a one-off to another time. A running one runs again then.

    Example: scheduler scheduled move jobs:app remind.order-7 --after 10m
    """
    if (at is None) == (after is None):
        raise UsageError("A one-off is moved to a moment or by a delay: give --at or --after.")
    if at is not None:
        moment = parse_moment(at, "--at")
    else:
        moment = SystemClock().now() + parse_duration(after or "", "--after")

    def moved(program: Program, loop: Loop) -> Awaitable[Report]:
        # A name kept for longer would be taken, even for this move.
        return program.seeding.start(Loop(loop.id, loop.task, Once(moment), loop.args))

    return _do_to_one_off(app, name, moved)


@command(scheduled, "cancel")
def scheduled_cancel(app: Scheduler, name: OneOff) -> Output:
    """Cancel a one-off. A run in progress ends normally.

    Example: scheduler scheduled cancel jobs:app remind.order-7
    """
    return _do_to_one_off(app, name, lambda it, loop: it.removal.remove(loop))


def _do_to_one_off(app: Scheduler, name: str, operation: Operation) -> Output:
    async def done(program: Program) -> Report:
        known = {str(loop): loop for loop in await _one_offs(program)}
        if name not in known:
            raise UnknownLoop(no_such("named one-off", name, known))
        return await operation(program, known[name])

    report = _operated(app, done)
    row = _row_of_one_off(report.loop) | row_of_effect(report)
    return Output(row, _lines_of(report), _is_done(report))


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
)


@command(schedule, "set")
def schedule_set(
    app: Scheduler,
    loop: LoopArgument,
    every: Annotated[
        str | None, typer.Option(help="Run this long after the end of each run, such as 5m.")
    ] = None,
    fixed_rate: Annotated[
        bool,
        typer.Option("--fixed-rate", help="With --every: run at multiples of the period instead."),
    ] = False,
    offset: Annotated[
        str | None, typer.Option(help="With --fixed-rate: shift all times by this, such as 10m.")
    ] = None,
    cron: Annotated[
        str | None, typer.Option(help="A cron expression, such as '0 9 * * MON-FRI'.")
    ] = None,
    tz: Annotated[
        str | None, typer.Option(help="With --cron: its zone, such as Europe/Berlin; else UTC.")
    ] = None,
    jitter: Annotated[
        str | None, typer.Option(help="Start each run up to this much later, such as 10s.")
    ] = None,
    catch_up: Annotated[
        str | None,
        typer.Option(help="Handle missed times: latest (the default), skip or all."),
    ] = None,
    grace: Annotated[
        str | None, typer.Option(help="With --catch-up skip: the greatest lateness of a run.")
    ] = None,
) -> Output:
    """Override the schedule that the code gives a loop.

    The override holds through all seeds, until you clear it; `scheduler status` shows who set it. A
    loop that was started at run time keeps the schedule.

    Example: scheduler schedule set shop:app report --every 5m
    """
    options = {"every": every, "offset": offset, "cron": cron, "tz": tz, "jitter": jitter}
    options |= {"mode": "fixed_rate" if fixed_rate else None, "catch_up": catch_up, "grace": grace}
    wanted, by = _schedule(options), operator_here()
    return _rescheduled(app, loop, lambda it, found: it.verbs.set_schedule(found, wanted, by=by))


@command(schedule, "clear")
def schedule_clear(app: Scheduler, loop: LoopArgument) -> Output:
    """Return a loop to the schedule of the code.

    Example: scheduler schedule clear shop:app report
    """
    return _rescheduled(app, loop, lambda it, found: it.verbs.clear_schedule(found))


def _rescheduled(app: Scheduler, name: str, operation: Operation) -> Output:
    report = _done_to(app, name, operation)
    warn_of_doubts([report.loop])
    row, lines, is_done = _output(report)
    words = ", ".join(filter(None, [meaning_of(report.loop.schedule), origin_of(report.loop)]))
    return Output(row, [*lines, *([words] if is_done else [])], is_done)


def _schedule(options: Mapping[str, Any]) -> Recurring:
    if (options.get("every") is None) == (options.get("cron") is None):
        raise UsageError(
            "A schedule is --every or --cron, one of them: --every 5m, or --cron '0 9 * * MON-FRI'."
        )
    try:
        return registration.schedule_of(**options)
    except ScheduleError as error:
        raise ScheduleError(_as_options(str(error))) from None


def _as_options(text: str) -> str:
    """Rename arguments in Python to the options of this command."""
    text = text.replace('mode="fixed_rate"', "--fixed-rate")
    text = re.sub(r"""(\w+)=["'](\w+)["']""", lambda found: f"{_option(found[1])} {found[2]}", text)
    text = re.sub(r"\b(\w+)=(?!\w)", lambda found: _option(found[1]), text)
    return re.sub(r"^(\w+)(?=:)", lambda found: _option(found[1]), text)


def _option(name: str) -> str:
    own = {"period": "every", "expression": "cron", "mode": "fixed_rate"}
    return "--" + own.get(name, name).replace("_", "-")


def _done_to(app: Scheduler, name: str, operation: Operation) -> Report:
    async def done(program: Program) -> Report:
        return await operation(program, await program.loops.find(name))

    return _operated(app, done)


def _operated(app: Scheduler, operation: Callable[[Program], Awaitable[T]]) -> T:
    """Run an operation as the user of this program."""
    with acting_as(user_here()):
        return ask(app, operation, is_long=True)


def _do(app: Scheduler, name: str | None, every: bool, operation: BulkOperation) -> Output:
    """Run an operation on one loop or task, or on all loops of the app at once."""
    if name is None and not every:
        raise UsageError("The command needs the argument LOOP_OR_TASK, or --all: see --help.")
    if name is not None and every:
        raise UsageError(f"LOOP and --all cannot be combined, got: {name}.")

    async def done(program: Program) -> Sequence[Report]:
        if name is not None:
            loops = [await program.loops.find(name, or_whole=True)]
        else:
            known = await program.loops.all()
            loops = [each for each in known if not isinstance(each.schedule, Once)]
        return await operation(program, loops) if loops else []

    reports = _operated(app, done)
    if not every:
        return _output(reports[0])
    lines = [line for report in reports for line in _output(report).lines]
    return Output(
        [whole_row_of_report(report) for report in reports], lines, all(map(_is_done, reports))
    )


def _output(report: Report) -> Output:
    due_at = exact(report.due_at, zone_of(report.loop.schedule))
    lines = _lines_of(report, due_at and f", due {due_at}")
    return Output(whole_row_of_report(report), lines, _is_done(report))


def _lines_of(report: Report, due: str = "") -> Iterator[str]:
    yield f"{report.loop}: {report.did.value}{due}"
    if report.silent:
        yield (
            f"Not confirmed by {', '.join(report.silent)}; they may start one more run. Repeat "
            "the command to check."
        )


def _is_done(report: Report) -> bool:
    """Return whether the operation had its effect, and all processors know."""
    return report.did not in REFUSALS and not report.silent
