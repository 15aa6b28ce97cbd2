"""`scheduler schedule`: setting the schedule of one loop, beside its code."""

import asyncio
import re
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from scheduler.app import Scheduler
from scheduler.cli.connecting import connected
from scheduler.cli.meanings import meaning_of, warn_of_doubts
from scheduler.cli.overrides import origin_of, row_of_override
from scheduler.cli.printing import print_json, print_line
from scheduler.cli.verbs import app_and_loop, print_report
from scheduler.control.acting import operator_here
from scheduler.control.loops import as_listed
from scheduler.control.reports import Report
from scheduler.errors import ScheduleError, UsageError
from scheduler.program import Program
from scheduler.tasks.loops import Loop
from scheduler.timing import schedules
from scheduler.timing.clock import SystemClock
from scheduler.timing.schedules import Recurring, describe

Operation = Callable[[Program, Loop], Coroutine[Any, Any, Report]]


def set_one(
    reference: str | None, loop: str | None, options: Mapping[str, Any], *, as_json: bool
) -> None:
    app, name = app_and_loop(reference, loop)
    schedule = _schedule(options)

    async def operation(program: Program, found: Loop) -> Report:
        return await program.verbs.set_schedule(found, schedule, by=operator_here())

    _do(app, name, operation, as_json)


def clear(reference: str | None, loop: str | None, *, as_json: bool) -> None:
    app, name = app_and_loop(reference, loop)
    _do(app, name, lambda program, found: program.verbs.clear_schedule(found), as_json)


def show(reference: str | None, loop: str | None, *, as_json: bool) -> None:
    app, name = app_and_loop(reference, loop)
    found, is_seeded = asyncio.run(_found(app, name))
    in_code = app.loops.get(found.id)
    code = in_code and describe(in_code.schedule)
    if as_json:
        seeded = describe(found.schedule) if is_seeded else None
        row = {"loop": str(found), "schedule": seeded, "code": code}
        return print_json(row | {"override": row_of_override(found)})
    words = _words(found)
    if not is_seeded:
        words += ", in the code; it is not seeded"
    elif in_code and not found.override and in_code.schedule != found.schedule:
        words += f"; code: {code}, which takes effect with `scheduler seed`"
    print_line(f"{name}: {words}")


async def _found(app: Scheduler, name: str) -> tuple[Loop, bool]:
    """The loop as it was seeded, and whether it was."""
    async with connected(app) as program:
        loop, listing = await program.loops.find(name), await program.survey.listing()
        listed = listing.get(loop.id)
        if listed is None or listed.is_gone:
            return loop, False
        return as_listed(loop, listing), True


def _do(app: Scheduler, name: str, operation: Operation, as_json: bool) -> None:
    async def done() -> Report:
        async with connected(app) as program:
            return await operation(program, await program.loops.find(name))

    report = asyncio.run(done())
    warn_of_doubts([report.loop])
    print_report(report, as_json)
    if not as_json:
        print_line(_words(report.loop))


def _words(loop: Loop) -> str:
    origin = origin_of(loop, SystemClock().now())
    return ", ".join(filter(None, [meaning_of(loop.schedule), origin]))


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
    """What is said of arguments in Python, of the options that they are here."""
    text = text.replace('mode="fixed_rate"', "--fixed-rate")
    text = re.sub(r'(\w+)="(\w+)"', lambda found: f"{_option(found[1])} {found[2]}", text)
    text = re.sub(r"\b(\w+)=(?!\w)", lambda found: _option(found[1]), text)
    return re.sub(r"^(\w+)(?=:)", lambda found: _option(found[1]), text)


def _option(name: str) -> str:
    return "--" + {"period": "every"}.get(name, name).replace("_", "-")
