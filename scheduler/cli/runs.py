"""List and cancel runs: `scheduler ps` and `scheduler cancel`."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from scheduler.cli.arguments import (
    AppArgument,
    Json,
    RunArgument,
    app_and_one,
    command,
    new_group,
)
from scheduler.cli.connecting import ask
from scheduler.cli.loading import ready_app
from scheduler.cli.printing import Row, local, print_json, print_line, rough
from scheduler.cli.tables import CellForms, Table, print_table, shortened
from scheduler.control.cancellation import CancelReport
from scheduler.protocol.messages import printable
from scheduler.queues.running import Running, RunningRun
from scheduler.timing.clock import SystemClock
from scheduler.timing.moments import exact

NOT_ENDED = {
    "coroutine": "cancelled, but still running",
    "thread": "still running: its thread cannot be interrupted; the run ends with the thread",
    "process": "its process is being killed",
}
OTHERWISE = {
    "succeeded": "it returned despite the cancellation",
    "lost": "its processor has died, or lost it: it is run again, unless it was settled before",
    "returned": "its processor is stopping and requeued it: it is run again",
    "gone": "it had just ended",
}

cli = new_group()


@command(cli, "ps")
def ps(
    reference: AppArgument = None,
    stack: Annotated[
        str | None,
        typer.Option(
            "--stack",
            metavar="RUN",
            help="Show the stack of this run, without any values.",
        ),
    ] = None,
    as_json: Json = False,
) -> bool:
    """List the current runs: where, since when and how far.

    All processors are asked, and nothing is stored. A task reports its progress with ctx.progress.

    Example: scheduler ps shop:app --stack report#7
    """
    running = ask(
        ready_app(reference), lambda program: program.cancellation.running(stack_of=stack)
    )
    runs = [run for run in running.runs if stack is None or run.stack is not None]
    if as_json:
        rows = [_row(run) for run in runs]
        silent = {"not_answered_by": running.unheard, "alarm": running.alarm}
        print_json({"runs": rows, "more": running.more, **silent})
    elif stack is not None:
        _print_stacks(runs)
    else:
        if runs:
            print_table(runs, _table(runs))
        for line in _remarks(running):
            print_line(line)
    return running.complete


@command(cli, "cancel")
def cancel(
    reference: AppArgument = None,
    run: RunArgument = None,
    escalate: Annotated[
        bool,
        typer.Option(
            "--escalate",
            help="Count it as failed for the last time: it is parked, and hooks are called.",
        ),
    ] = False,
    as_json: Json = False,
) -> bool:
    """Cancel a run.

    It is not retried, and its loop continues with the next tick. The command waits up to 10 seconds
    for its end, and prints how it has ended. A thread cannot be stopped: such a run ends with its
    function.

    Example: scheduler cancel shop:app report#7
    """
    reference, name = app_and_one(reference, run, "the RUN, as `scheduler ps` names it")
    report = ask(ready_app(reference), lambda it: it.cancellation.cancel(name, escalate=escalate))
    if as_json:
        row = {"run": _row(report.run), "ending": report.ending, "as_asked": report.as_asked}
        print_json(row)
    else:
        print_line(f"{report.run.id}: {_said(report)}")
    return report.as_asked


def _said(report: CancelReport) -> str:
    if report.ending is None:
        return NOT_ENDED[report.run.executor]
    after = f"after {rough(SystemClock().now() - report.run.started_at)}"
    if not report.as_asked:
        return OTHERWISE.get(report.ending, f"it ended by itself: {report.ending}")
    if report.ending == "escalated":
        return f"cancelled {after}, and parked: see `scheduler failed list`"
    goes_on = "; its loop continues, unless it is paused" if report.run.loop else ""
    return f"cancelled {after}{goes_on}"


def _remarks(running: Running) -> Iterator[str]:
    if not running.runs and running.complete:
        yield "Nothing runs."
    if running.more:
        yield f"{running.more} more: a processor lists 1,000"
    if running.silence:
        yield f"Incomplete: {running.silence}."


def _print_stacks(runs: Sequence[RunningRun]) -> None:
    if not runs:
        print_line("It has just ended.")
    for run in runs:
        since = exact(run.started_at)
        print_line(f"{run.id} in {run.processor}, since {since}, a {run.executor}:")
        print_line(printable(run.stack or "").rstrip())


def _row(run: RunningRun) -> Row:
    return {k: v for k, v in asdict(run).items() if k != "stack" or v is not None}


def _table(runs: Sequence[RunningRun]) -> Table[RunningRun]:
    short = shortened(run.id for run in runs if run.loop is None)
    return Table(
        {
            "RUN": lambda run: CellForms(run.id, short.get(run.id, run.id)),
            "TASK": lambda run: run.task,
            "ATTEMPT": lambda run: run.attempt,
            "SINCE": lambda run: local(run.started_at),
            "DEADLINE": lambda run: local(run.deadline),
            "IN": lambda run: run.executor,
            "PROCESSOR": lambda run: run.processor,
            "PROGRESS": _progress,
            "NOTE": _note,
        },
        brief=("RUN", "TASK", "SINCE", "DEADLINE", "PROGRESS", "NOTE"),
    )


def _progress(run: RunningRun) -> str:
    if run.progress is None:
        return ""
    return " ".join(filter(None, [f"{run.progress:.0%}", run.text]))


def _note(run: RunningRun) -> CellForms:
    cancelled = f"is cancelled by {run.cancelled_by}" if run.cancelled_by else ""
    return CellForms(cancelled, cancelled or f"in {run.processor.rpartition(':')[0]}")
