"""`scheduler status`: of all loops, and all of one."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime

import typer
from rich.text import Text

from scheduler.app import Scheduler
from scheduler.cli.connecting import connected
from scheduler.cli.loading import names_app, ready_app
from scheduler.cli.loop_status import print_loop
from scheduler.cli.overrides import schedule_of
from scheduler.cli.printing import exact, no_loops, print_json, print_line, relative, seconds
from scheduler.cli.rows import row_of_status
from scheduler.cli.tables import Columns, fitting, print_table
from scheduler.control.backlog import Backlog, Counts, backlogs, counted
from scheduler.control.status import Status
from scheduler.control.where import Where
from scheduler.program import Program
from scheduler.protocol.tokens import LastRun
from scheduler.timing.clock import SystemClock
from scheduler.timing.schedules import zone_of

FEW = 3
GONE = (Where.LOST, Where.UNSEEDED)


@dataclass(frozen=True, slots=True)
class Picture:
    """How an app stands."""

    loops: Sequence[Status]
    tasks: Sequence[Backlog]
    counts: Counts
    at: datetime = field(default_factory=lambda: SystemClock().now())

    @property
    def is_fine(self) -> bool:
        lost = any(status.where in GONE for status in self.loops)
        return not lost and all(backlog.ready is not None for backlog in self.tasks)


def show(reference: str | None, loop: str | None, *, as_json: bool) -> None:
    if reference is not None and not names_app(reference):
        reference, loop = None, reference
    app = ready_app(reference)
    fine = _show_all(app, as_json) if loop is None else _show_one(app, loop, as_json)
    if not fine:
        raise typer.Exit(1)


def _show_one(app: Scheduler, name: str, as_json: bool) -> bool:
    status = asyncio.run(_of_one(app, name))
    if as_json:
        print_json(row_of_status(status))
    else:
        print_loop(status)
    return status.where not in GONE


async def _of_one(app: Scheduler, name: str) -> Status:
    async with connected(app) as program:
        (status,) = await program.survey.status(await program.loops.find(name))
        return status


def _show_all(app: Scheduler, as_json: bool) -> bool:
    picture = asyncio.run(_of_all(app))
    if as_json:
        loops = [row_of_status(status) for status in picture.loops]
        tasks = [asdict(backlog) for backlog in picture.tasks]
        print_json({"loops": loops, "tasks": tasks, **asdict(picture.counts)})
    else:
        _print(app, picture)
    return picture.is_fine


async def _of_all(app: Scheduler) -> Picture:
    async with connected(app) as program:
        statuses = await program.survey.status()
        return await picture_of(app, program, statuses)


async def picture_of(
    app: Scheduler, program: Program, statuses: Sequence[Status], counts: Counts | None = None
) -> Picture:
    """What there is besides these loops; what was counted before is not counted again."""
    tasks = await backlogs(program.broker, app.names, program.processors, app.tasks.values())
    if counts is None:
        of_app = sum(status.where is Where.WAITING for status in statuses)
        supervision = 1
        counts = await counted(program.broker, app, program.loops, of_app + supervision)
    return Picture(statuses, tasks, counts)


def lines_of(app: Scheduler, picture: Picture, width: int) -> Iterator[Text]:
    """The lines of a picture in a terminal that is so wide."""
    if picture.loops:
        yield from fitting(picture.loops, *_of_loops(picture.at), width)
    else:
        yield Text(f"{no_loops(app)}.")
    if picture.tasks:
        yield Text("")
        yield from fitting(picture.tasks, OF_TASKS, OF_TASKS, width)
    for line in _of_counts(picture.counts):
        yield Text(line)


def _print(app: Scheduler, picture: Picture) -> None:
    if picture.loops:
        print_table(picture.loops, *_of_loops(picture.at))
    else:
        print_line(f"{no_loops(app)}.")
    if picture.tasks:
        print_line("")
        print_table(picture.tasks, OF_TASKS, OF_TASKS)
    for line in _of_counts(picture.counts):
        print_line(line)


def _of_loops(now: datetime) -> tuple[Columns[Status], Columns[Status]]:
    last = ("LAST", "STARTED", "LATE", "TOOK", "PROCESSORS", "NOTE")
    return (
        Columns(("LOOP", "STATE", "SEQ", "DUE", *last), lambda each: _cells(each, now)),
        Columns(
            ("LOOP", "STATE", "DUE", "LAST", "STARTED", "NOTE"), lambda each: _brief(each, now)
        ),
    )


def _cells(status: Status, now: datetime) -> Sequence[str]:
    zone, run = zone_of(status.loop.schedule), status.last
    return (
        str(status.loop),
        status.where.value,
        "" if status.seq is None else f"#{status.seq}",
        exact(status.due_at, zone),
        _ending(run),
        "" if run is None else exact(run.started_at, zone),
        "" if run is None else seconds(run.late),
        "" if run is None else seconds(run.duration),
        str(status.processors),
        _note(status, now),
    )


def _brief(status: Status, now: datetime) -> Sequence[str]:
    run = status.last
    started = "" if run is None else relative(run.started_at, now)
    due = relative(status.due_at, now)
    return str(status.loop), status.where.value, due, _ending(run), started, _note(status, now)


def _ending(run: LastRun | None) -> str:
    return "" if run is None else run.ending.value


def _note(status: Status, now: datetime) -> str:
    trouble = _trouble(status)
    set_by = schedule_of(status.loop, now) if status.loop.override else ""
    return "; ".join(filter(None, [trouble, set_by]))


def _trouble(status: Status) -> str:
    if status.where is Where.PAUSED and status.by:
        since = exact(status.since, zone_of(status.loop.schedule))
        return f"{status.reason}, since {since} by {status.by}"
    trouble = status.reason or (status.last.error if status.last else None) or ""
    if status.where is Where.UNATTENDED:
        return "; ".join(filter(None, ["no processor", trouble]))
    return trouble


OF_TASKS = Columns[Backlog](
    ("TASK", "READY", "PROCESSORS", "PARKED"),
    lambda backlog: (
        backlog.task,
        "unseeded" if backlog.ready is None else str(backlog.ready),
        str(backlog.processors),
        str(backlog.parked),
    ),
)


def _of_counts(counts: Counts) -> Iterator[str]:
    few = [
        *counts.orphans[:FEW],
        *([f"{more} more"] if (more := len(counts.orphans) - FEW) > 0 else []),
    ]
    told = {
        f"{counts.parked} parked: see `scheduler failed list`": counts.parked,
        f"{counts.void} void tokens: they wait in the broker until they are due, and never run": (
            counts.void
        ),
        f"{counts.delayed} delayed: they wait in the broker for their time": counts.delayed,
        "in the broker, and not in this code: "
        f"{', '.join(few)} (`scheduler seed --prune` removes them)": counts.orphans,
    }
    lines = [line for line, count in told.items() if count]
    return iter(["", *lines] if lines else [])
