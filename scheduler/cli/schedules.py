"""Override the schedules of loops: `scheduler schedule`."""

import re
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from scheduler.cli.arguments import AppArgument, Json, LoopArgument, app_and_one, command, new_group
from scheduler.cli.connecting import ask
from scheduler.cli.loading import ready_app
from scheduler.cli.loops import done_to, print_report
from scheduler.cli.printing import print_json, print_line
from scheduler.cli.upcoming import meaning_of, origin_of, row_of_loop, warn_of_doubts
from scheduler.control.loops import as_listed
from scheduler.control.reports import Report, operator_here
from scheduler.errors import ScheduleError, UsageError
from scheduler.program import Program
from scheduler.tasks.loops import Loop
from scheduler.timing import schedules
from scheduler.timing.schedules import Recurring, describe

cli = new_group("Override a loop's schedule without changing code.")


@command(cli, "set")
def schedule_set(
    reference: AppArgument = None,
    loop: LoopArgument = None,
    every: Annotated[
        str | None, typer.Option(help="The period, such as 5m, from the end of a run.")
    ] = None,
    fixed_rate: Annotated[
        bool,
        typer.Option("--fixed-rate", help="With --every: at the multiples of the period, instead."),
    ] = False,
    offset: Annotated[
        str | None, typer.Option(help="With --fixed-rate: later by this time, such as 10m.")
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
        typer.Option(help="What to do about missed times: latest, skip or all; else latest."),
    ] = None,
    grace: Annotated[
        str | None, typer.Option(help="With --catch-up skip: how late a run may start.")
    ] = None,
    as_json: Json = False,
) -> bool:
    """Override the schedule that the code gives a loop.

    The override holds, whatever is seeded, until it is cleared; `scheduler status` shows who set
    it. A loop that was started at run time keeps the schedule.

    Example: scheduler schedule set shop:app report --every 5m
    """
    mode = "fixed_rate" if fixed_rate else None
    options = {"every": every, "mode": mode, "offset": offset, "cron": cron, "tz": tz}
    schedule = _schedule(options | {"jitter": jitter, "catch_up": catch_up, "grace": grace})
    by = operator_here()
    report = done_to(
        reference, loop, lambda it, found: it.verbs.set_schedule(found, schedule, by=by)
    )
    return _print_set(report, as_json)


@command(cli, "clear")
def schedule_clear(
    reference: AppArgument = None, loop: LoopArgument = None, as_json: Json = False
) -> bool:
    """Return a loop to the schedule of the code.

    Example: scheduler schedule clear shop:app report
    """
    return _print_set(
        done_to(reference, loop, lambda it, found: it.verbs.clear_schedule(found)), as_json
    )


def _print_set(report: Report, as_json: bool) -> bool:
    warn_of_doubts([report.loop])
    is_done = print_report(report, as_json)
    if is_done and not as_json:
        print_line(_words(report.loop))
    return is_done


@command(cli, "show")
def schedule_show(
    reference: AppArgument = None, loop: LoopArgument = None, as_json: Json = False
) -> None:
    """Show a loop's schedule, its override, and the schedule in the code.

    Example: scheduler schedule show shop:app report
    """
    reference, name = app_and_one(reference, loop, "the name of a LOOP")
    app = ready_app(reference)

    async def seeded(program: Program) -> tuple[Loop, bool]:
        """Return the loop as it was seeded, and whether it was."""
        found, listing = await program.loops.find(name), await program.survey.listing()
        listed = listing.get(found.id)
        if listed is None or listed.is_gone:
            return found, False
        return as_listed(found, listing), True

    found, is_seeded = ask(app, seeded)
    in_code = app.loops.get(found.id)
    code = in_code and describe(in_code.schedule)
    if as_json:
        schedule = describe(found.schedule) if is_seeded else None
        return print_json(row_of_loop(found) | {"schedule": schedule, "code": code})
    words = _words(found)
    if not is_seeded:
        words += ", in the code; it is not seeded"
    elif in_code and not found.override and in_code.schedule != found.schedule:
        words += f"; code: {code}, which takes effect with `scheduler seed`"
    print_line(f"{name}: {words}")


def _words(loop: Loop) -> str:
    return ", ".join(filter(None, [meaning_of(loop.schedule), origin_of(loop)]))


def _schedule(options: Mapping[str, Any]) -> Recurring:
    if (options.get("every") is None) == (options.get("cron") is None):
        raise UsageError(
            "A schedule is --every or --cron, one of them: --every 5m, or --cron '0 9 * * MON-FRI'."
        )
    try:
        return schedules.schedule_of(**options)
    except ScheduleError as error:
        raise ScheduleError(_as_options(str(error))) from None


def _as_options(text: str) -> str:
    """Rename arguments in Python to the options of this command."""
    text = text.replace('mode="fixed_rate"', "--fixed-rate")
    text = re.sub(r'(\w+)="(\w+)"', lambda found: f"{_option(found[1])} {found[2]}", text)
    text = re.sub(r"\b(\w+)=(?!\w)", lambda found: _option(found[1]), text)
    return re.sub(r"^(\w+)(?=:)", lambda found: _option(found[1]), text)


def _option(name: str) -> str:
    return "--" + {"period": "every"}.get(name, name).replace("_", "-")
