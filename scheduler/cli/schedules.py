"""List the next runs, `scheduler next`, and describe schedules in words."""

import sys
from collections.abc import Iterable
from itertools import islice
from typing import Annotated

import typer

from scheduler.cli.arguments import AppArgument, command, new_group
from scheduler.cli.loading import app_with_tasks
from scheduler.cli.printing import Output, no_loops, relative
from scheduler.tasks.loops import Loop
from scheduler.timing.crontab import in_words, seconds_first
from scheduler.timing.moments import SystemClock
from scheduler.timing.schedules import Cron, Schedule, describe, ticks_after, zone_of

cli = new_group()


@command(cli, "next", asks=False)
def upcoming(
    reference: AppArgument = None,
    count: Annotated[
        int, typer.Option("-n", min=1, max=1000, help="The number of times per loop.")
    ] = 5,
) -> Output:
    """List the next times of each loop, without asking the broker.

    The times follow the schedules in the code. `scheduler status` shows overrides.

    Example: scheduler next shop:app -n 3
    """
    app = app_with_tasks(reference)
    warn_of_doubts(app.loops.values())
    now, lines, rows = SystemClock().now(), list[str](), list[dict[str, object]]()
    for loop in app.loops.values():
        ticks, zone = islice(ticks_after(loop.schedule, now), count), zone_of(loop.schedule)
        times = [tick.astimezone(zone) for tick in ticks]
        rows.append({"loop": str(loop), "schedule": describe(loop.schedule), "times": times})
        lines.append(f"{loop}  ({meaning_of(loop.schedule)})")
        lines += [f"  {time.isoformat(' ', timespec='seconds')}" for time in times]
    if not rows:
        tasks, text = ", ".join(app.tasks), no_loops(app.namespace)
        lines = [f"{text}; its tasks run when they are sent messages: {tasks}."]
    return Output(rows, lines)


def meaning_of(schedule: Schedule) -> str:
    """Describe a schedule in one phrase, with the meaning of a cron expression."""
    if not isinstance(schedule, Cron):
        return describe(schedule)
    return f"{describe(schedule)}: {in_words(schedule.expression)}"


def warn_of_doubts(loops: Iterable[Loop]) -> None:
    """Warn on stderr of cron expressions whose first field may have been meant as seconds."""
    for loop in loops:
        written = loop.schedule.expression if isinstance(loop.schedule, Cron) else ""
        if (meant := seconds_first(written)) is not None:
            sys.stderr.write(
                f"scheduler: Warning: of the six fields of {loop.id}, {written!r}, the last is the "
                f"second: {in_words(written)}. If you meant the first one, write "
                f"{meant!r}: {in_words(meant)}.\n"
            )


def schedule_of(loop: Loop) -> str:
    """Describe the schedule of a loop in one phrase, with the author and time of an override."""
    return ", ".join(filter(None, [describe(loop.schedule), origin_of(loop)]))


def origin_of(loop: Loop) -> str:
    """Describe the override of a loop's schedule, and the schedule in the code."""
    if (override := loop.override) is None:
        return ""
    code = f"; code: {describe(loop.of_code)}" if loop.of_code else ""
    return f"set by {override.by} {relative(override.at, SystemClock().now())}{code}"
