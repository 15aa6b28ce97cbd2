"""List and cancel runs, and show their history: `scheduler ps`, `cancel` and `history`."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Annotated

import typer
from rich.text import Text

from scheduler.app import Scheduler
from scheduler.cli.arguments import OneLoop, RunArgument, command, new_group
from scheduler.cli.connecting import Zones, ask, zones_of_loops
from scheduler.cli.printing import Output, local, rough
from scheduler.cli.tables import CellForms, Table, shortened
from scheduler.control.rows import Row, row_of_cancelled, row_of_entry, row_of_running
from scheduler.control.verbs import CancelReport
from scheduler.errors import QueueNotFound, UnknownLoop
from scheduler.program import Program
from scheduler.protocol.messages import printable
from scheduler.protocol.tokens import Ending
from scheduler.queues.history import COUNTED, Attempt, Summary
from scheduler.queues.journal import PARKED, JournalEntry
from scheduler.queues.running import Running, RunningRun
from scheduler.spelling import no_such
from scheduler.tasks.tasks import SUPERVISION
from scheduler.timing.durations import parse_duration
from scheduler.timing.moments import SystemClock, exact

FAILED = frozenset({Ending.RETRIED, Ending.ESCALATED, Ending.CANCELLED, PARKED})
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
    app: Scheduler,
    stack: Annotated[
        str | None,
        typer.Option(
            "--stack",
            metavar="RUN",
            help="Show the stack of this run, without any values.",
        ),
    ] = None,
) -> Output:
    """List the current runs: where, since when and how far.

    The command asks all processors. A task reports its progress with ctx.progress.

    Example: scheduler ps shop:app --stack report#7
    """
    running = ask(app, lambda program: program.cancellation.running(stack_of=stack))
    runs = [run for run in running.runs if stack is None or run.stack is not None]
    lines = _lines(running) if stack is None else _stacks(runs)
    return Output(row_of_running(running, runs), lines, running.complete)


@command(cli, "cancel")
def cancel(
    app: Scheduler,
    run: RunArgument,
    escalate: Annotated[
        bool,
        typer.Option(
            "--escalate",
            help="Count it as failed for the last time: it is parked, and hooks are called.",
        ),
    ] = False,
) -> Output:
    """Cancel a run.

    The run is not retried, and its loop continues with the next tick. The command waits up to 10
    seconds for the run to end, and prints how it ended. A run in a thread cannot be stopped: it
    ends when its function returns.

    Example: scheduler cancel shop:app report#7
    """
    report = ask(app, lambda it: it.cancellation.cancel(run, escalate=escalate))
    lines = [f"{report.run.id}: {_said(report)}"]
    return Output(row_of_cancelled(report), lines, report.as_asked)


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


def _lines(running: Running) -> Iterator[str | Text]:
    if running.runs:
        yield from _table(running.runs).shown(running.runs)
    elif running.complete:
        yield "Nothing runs."
    if running.more:
        yield f"{running.more} more: a processor lists 1,000"
    if running.silence:
        yield f"Incomplete: {running.silence}."


def _stacks(runs: Sequence[RunningRun]) -> Iterator[str]:
    if not runs:
        yield "It has just ended."
    for run in runs:
        yield f"{run.id} in {run.processor}, since {exact(run.started_at)}, a {run.executor}:"
        yield printable(run.stack or "").rstrip()


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


@command(cli, "history")
def history(
    app: Scheduler,
    loop: OneLoop = None,
    since: Annotated[str, typer.Option(help="Look back this far, such as 30m or 2d.")] = "1h",
    limit: Annotated[
        int, typer.Option(min=1, help="Show at most this many entries, the latest ones.")
    ] = 1000,
    id: Annotated[str, typer.Option(help="List the attempts at the call with this ID.")] = "",
    failed: Annotated[
        bool, typer.Option("--failed", help="List failed attempts at calls.")
    ] = False,
) -> Output:
    """List the history of loops, or of the calls of a task.

    For loops: runs, repairs, operations and parked messages. For calls: a summary every ten
    seconds, and each attempt that failed; for a task with history=True, every attempt. No processor
    needs to run.

    Examples: scheduler history jobs:app send_mail --failed;
    scheduler history jobs:app --id 0195f3a2
    """
    span, task = parse_duration(since, "--since"), app.tasks.get(loop or "")
    if id or failed or (task is not None and task.called):
        return _of_calls(app, loop, id, failed, span, limit)
    return _of_loops(app, loop, span, limit)


def _of_loops(app: Scheduler, name: str | None, span: timedelta, limit: int) -> Output:
    async def found(program: Program) -> tuple[list[JournalEntry], Zones]:
        last = deque[JournalEntry](maxlen=limit)
        beginning = SystemClock().now() - span
        async for entry in program.journal.entries(since=beginning, loop=name):
            if name is not None or entry.loop != SUPERVISION.task:
                last.append(entry)
        if not last and name is not None:
            await program.loops.find(name)  # a removed one may still have a history
        return list(last), await zones_of_loops(app, program) if last else {}

    try:
        entries, zones = ask(app, found)
    except QueueNotFound as error:
        raise QueueNotFound(
            f"The namespace {app.namespace!r} has no journal yet: run `scheduler seed` first."
        ) from error
    return Output([row_of_entry(entry) for entry in entries], _entries(zones).shown(entries))


def _of_calls(
    app: Scheduler, task: str | None, id: str, failed: bool, span: timedelta, limit: int
) -> Output:
    def is_chosen(record: Summary | Attempt) -> bool:
        if task not in (None, record.task):
            return False
        if isinstance(record, Summary):
            return not (id or failed)
        return record.id.startswith(id) and (not failed or record.outcome in FAILED)

    async def found(program: Program) -> list[Summary | Attempt]:
        last = deque[Summary | Attempt](maxlen=limit)
        beginning = SystemClock().now() - span
        async for record in program.history.read(since=beginning, containing=id):
            if is_chosen(record):
                last.append(record)
        return list(last)

    try:
        listed = ask(app, found)
    except QueueNotFound as error:
        raise QueueNotFound(
            f"The namespace {app.namespace!r} has no history of calls: no task gets calls, or "
            "`scheduler seed` has not run yet."
        ) from error
    called = [name for name, spec in app.tasks.items() if spec.called]
    if not listed and task not in (None, *called):  # a removed one may still have a history
        raise UnknownLoop(no_such("task with calls", str(task), called))
    return Output([_row_of_call(record) for record in listed], OF_CALLS.shown(listed))


def _row_of_call(record: Summary | Attempt) -> Row:
    if isinstance(record, Summary):
        return {"at": record.until, "what": "summary", **asdict(record)}
    fields = "task", "id", "key", "attempt", "sent_at", "due_at", "started_at", "late", "took"
    row = {name: getattr(record, name) for name in (*fields, "error", "by")}
    return {"at": record.ended_at, "what": record.outcome, **row}


def _note_on_call(record: Summary | Attempt) -> str:
    if isinstance(record, Attempt):
        return record.error
    counts = [f"{count} {name}" for name in COUNTED if (count := getattr(record, name))]
    return ", ".join([*counts, *(f"{each.count} x {each.error}" for each in record.errors)])


OF_CALLS = Table[Summary | Attempt](
    {
        "AT": lambda each: local(each.until if isinstance(each, Summary) else each.ended_at),
        "TASK": lambda each: each.task,
        "WHAT": lambda each: "summary" if isinstance(each, Summary) else each.outcome,
        "ID": lambda each: "" if isinstance(each, Summary) else each.id,
        "ATTEMPT": lambda each: None if isinstance(each, Summary) else each.attempt,
        "SENT": lambda each: None if isinstance(each, Summary) else local(each.sent_at),
        "LATE": lambda each: each.late,
        "TOOK": lambda each: each.took,
        "BY": lambda each: each.by,
        "NOTE": _note_on_call,
    },
    brief=("AT", "TASK", "WHAT", "ID", "TOOK", "NOTE"),
)


def _entries(zones: Zones) -> Table[JournalEntry]:
    return Table(
        {
            "AT": lambda entry: local(entry.at, zones.get(entry.loop)),
            "LOOP": lambda entry: entry.loop,
            "SEQ": lambda entry: None if entry.seq is None else f"#{entry.seq}",
            "WHAT": lambda entry: entry.what,
            "ATTEMPT": lambda entry: entry.attempt or None,
            "LATE": lambda entry: entry.run and entry.run.late,
            "TOOK": lambda entry: entry.run and entry.run.duration,
            "DUE": lambda entry: local(entry.due_at, zones.get(entry.loop)),
            "NOTE": _note_on_entry,
        },
        brief=("AT", "LOOP", "SEQ", "WHAT", "TOOK", "NOTE"),
    )


def _note_on_entry(entry: JournalEntry) -> str:
    """Return the reason or the error, and the actor."""
    by = f"by {entry.by}" if entry.by else ""
    return ", ".join(filter(None, [entry.note, by]))
