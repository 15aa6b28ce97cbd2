"""`scheduler status`."""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict

import typer

from scheduler.app import Scheduler
from scheduler.cli.connecting import connected
from scheduler.cli.loading import ready_app
from scheduler.cli.printing import local, no_loops, print_json, print_line, seconds
from scheduler.cli.rows import row_of_status
from scheduler.cli.tables import print_table
from scheduler.control.backlog import Backlog, backlogs
from scheduler.control.status import Status, Where
from scheduler.protocol.tokens import LastRun


def show(reference: str | None, *, as_json: bool) -> None:
    app = ready_app(reference)
    statuses, waiting = asyncio.run(_found(app))
    if as_json:
        loops = [row_of_status(status) for status in statuses]
        print_json({"loops": loops, "tasks": [asdict(backlog) for backlog in waiting]})
    else:
        _print(app, statuses, waiting)
    lost = any(status.where in (Where.LOST, Where.UNSEEDED) for status in statuses)
    if lost or any(backlog.ready is None for backlog in waiting):
        raise typer.Exit(1)


async def _found(app: Scheduler) -> tuple[list[Status], list[Backlog]]:
    async with connected(app) as program:
        statuses = await program.survey.status()
        return statuses, await backlogs(
            program.broker, app.names, program.processors, app.tasks.values()
        )


def _print(app: Scheduler, statuses: Sequence[Status], waiting: Sequence[Backlog]) -> None:
    if statuses:
        _print_loops(statuses)
    else:
        print_line(f"{no_loops(app)}.")
    if waiting:
        print_line("")
        _print_tasks(waiting)


def _print_loops(statuses: Sequence[Status]) -> None:
    print_table(
        ("LOOP", "STATE", "SEQ", "DUE", "LAST", "STARTED", "LATE", "TOOK", "PROCESSORS", "NOTE"),
        [
            (
                str(status.loop),
                status.where.value,
                "" if status.seq is None else f"#{status.seq}",
                local(status.due_at),
                *_last_run(status.last),
                str(status.processors),
                _note(status),
            )
            for status in statuses
        ],
    )


def _note(status: Status) -> str:
    if status.where is Where.PAUSED and status.by:
        return f"{status.reason}, since {local(status.since)} by {status.by}"
    return status.reason or (status.last.error if status.last else None) or ""


def _last_run(run: LastRun | None) -> tuple[str, str, str, str]:
    if run is None:
        return "", "", "", ""
    return run.ending.value, local(run.started_at), seconds(run.late), seconds(run.duration)


def _print_tasks(waiting: Sequence[Backlog]) -> None:
    print_table(
        ("TASK", "READY", "PROCESSORS", "PARKED"),
        [
            (
                backlog.task,
                "unseeded" if backlog.ready is None else str(backlog.ready),
                str(backlog.processors),
                str(backlog.parked),
            )
            for backlog in waiting
        ],
    )
