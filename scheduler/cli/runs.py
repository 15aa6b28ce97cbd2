"""The runs that are going on: `scheduler ps` and `scheduler cancel`."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

import typer

from scheduler.app import Scheduler
from scheduler.cli.arguments import app_and_one
from scheduler.cli.connecting import connected
from scheduler.cli.loading import ready_app
from scheduler.cli.printing import exact, print_json, print_line, relative, rough
from scheduler.cli.rows import row_of_run
from scheduler.cli.short_ids import shortened
from scheduler.cli.tables import Columns, print_table
from scheduler.control.cancellation import CancelReport
from scheduler.protocol.messages import printable
from scheduler.queues.running import Running, RunningRun
from scheduler.timing.clock import SystemClock

NOTHING = "Nothing runs."
NOT_ANSWERED = "Not answered by {names}: what they run is not known."
NOT_ENDED = {
    "coroutine": "it has not ended yet: it is cancelled, and takes its time to end",
    "thread": "it goes on: its thread cannot be stopped, and it is cancelled when that has ended",
    "process": "it has not ended yet: its process is killed",
}
OTHERWISE = {
    "succeeded": "it returned, though it was told to end",
    "lost": "its processor has died, or lost it: it is run again, unless it was settled before",
    "returned": "its processor stops, and has given it back: it is run again",
    "gone": "it had just ended",
}


def ps(reference: str | None, stack_of: str | None, *, as_json: bool) -> None:
    app = ready_app(reference)
    running = asyncio.run(_running(app, stack_of))
    if as_json:
        _print_json(running, stack_of)
    elif stack_of is not None:
        _print_stack(running)
    else:
        _print(running)
    if running.unheard:
        raise typer.Exit(1)


def cancel(reference: str | None, run: str | None, *, escalate: bool, as_json: bool) -> None:
    reference, name = app_and_one(reference, run, "the RUN, as `scheduler ps` names it")
    report = asyncio.run(_cancelled(ready_app(reference), name, escalate))
    if as_json:
        print_json(
            {
                "run": row_of_run(report.run),
                "ending": report.ending,
                "as_asked": report.as_asked,
            }
        )
    else:
        print_line(f"{report.run.id}: {_said(report)}")
    if not report.as_asked:
        raise typer.Exit(1)


async def _running(app: Scheduler, stack_of: str | None) -> Running:
    async with connected(app) as program:
        return await program.cancellation.running(stack_of=stack_of)


async def _cancelled(app: Scheduler, run: str, escalate: bool) -> CancelReport:
    async with connected(app) as program:
        return await program.cancellation.cancel(run, escalate=escalate)


def _said(report: CancelReport) -> str:
    if report.ending is None:
        return NOT_ENDED[report.run.executor]
    after = f"after {rough(SystemClock().now() - report.run.started_at)}"
    if not report.as_asked:
        return OTHERWISE.get(report.ending, f"it ended by itself: {report.ending}")
    if report.ending == "escalated":
        return f"cancelled {after}, and parked: see `scheduler failed list`"
    goes_on = "; its loop goes on, unless it is paused" if report.run.loop else ""
    return f"cancelled {after}{goes_on}"


def _print(running: Running) -> None:
    if running.runs:
        print_table(running.runs, *_columns(running, SystemClock().now()))
    for line in _remarks(running):
        print_line(line)


def _remarks(running: Running) -> Iterator[str]:
    if not running.runs and not running.unheard:
        yield NOTHING
    if running.more:
        yield f"{running.more} more: a processor names 1,000"
    if running.unheard:
        yield NOT_ANSWERED.format(names=", ".join(running.unheard))


def _print_json(running: Running, stack_of: str | None) -> None:
    runs = [run for run in running.runs if stack_of is None or run.stack is not None]
    print_json(
        {
            "runs": [row_of_run(run) for run in runs],
            "more": running.more,
            "not_answered_by": running.unheard,
        }
    )


def _print_stack(running: Running) -> None:
    found = [run for run in running.runs if run.stack is not None]
    if not found:
        print_line("It has just ended.")
    for run in found:
        since = exact(run.started_at)
        print_line(f"{run.id} in {run.processor}, since {since}, a {run.executor}:")
        print_line(printable(run.stack or "").rstrip())


def _columns(running: Running, now: datetime) -> tuple[Columns[RunningRun], Columns[RunningRun]]:
    short = shortened(run.id for run in running.runs if run.loop is None)
    return (
        Columns(
            ("RUN", "TASK", "ATTEMPT", "SINCE", "DEADLINE", "IN", "PROCESSOR", "PROGRESS", "NOTE"),
            _cells,
        ),
        Columns(
            ("RUN", "TASK", "SINCE", "DEADLINE", "PROGRESS", "NOTE"),
            lambda run: _brief(run, short, now),
        ),
    )


def _cells(run: RunningRun) -> Sequence[str]:
    return (
        run.id,
        run.task,
        str(run.attempt) if run.attempt else "",
        exact(run.started_at),
        exact(run.deadline),
        run.executor,
        run.processor,
        _progress(run),
        _note(run),
    )


def _brief(run: RunningRun, short: Mapping[str, str], now: datetime) -> Sequence[str]:
    return (
        run.id if run.loop else short[run.id],
        run.task,
        relative(run.started_at, now),
        relative(run.deadline, now),
        _progress(run),
        _note(run) or f"in {run.processor.rpartition(':')[0]}",
    )


def _progress(run: RunningRun) -> str:
    if run.progress is None:
        return ""
    return " ".join(filter(None, [f"{run.progress:.0%}", run.text]))


def _note(run: RunningRun) -> str:
    return f"is cancelled by {run.cancelled_by}" if run.cancelled_by else ""
