"""Show the state of loops: `scheduler status`, for all, for one, or repeatedly."""

import asyncio
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta, tzinfo
from itertools import islice
from typing import Annotated

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from scheduler.app import Scheduler
from scheduler.cli.arguments import OneLoop, command, new_group
from scheduler.cli.connecting import ask, connected, limited
from scheduler.cli.printing import (
    AS_JSON,
    LEFTOVERS,
    Output,
    console,
    local,
    no_loops,
    relative,
    rough,
    seconds,
)
from scheduler.cli.schedules import origin_of, schedule_of
from scheduler.cli.tables import BAD, STYLES, Table, width
from scheduler.control.loops import Where
from scheduler.control.rows import row_of_status
from scheduler.control.status import Backlog, Choice, Counts, Status, StatusPage
from scheduler.errors import BrokerError, UsageError
from scheduler.program import Program
from scheduler.protocol.messages import flat, printable
from scheduler.timing.durations import parse_duration
from scheduler.timing.moments import SystemClock, exact
from scheduler.timing.schedules import Every, describe, ticks_after, zone_of

FEW = 3
GONE = (Where.LOST, Where.UNSEEDED)
TICKS = 3
LEAST = timedelta(seconds=1)
INTERVAL = "2s"
COUNT_EVERY = timedelta(seconds=30)

cli = new_group()


@command(cli, "status")
def status(
    app: Scheduler,
    loop: OneLoop = None,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            help="Refresh until Ctrl-C. Each refresh reads the new part of the journal, and the "
            "lengths of queues.",
        ),
    ] = False,
    interval: Annotated[
        str, typer.Option(help="The interval of --watch, such as 5s; at least 1s.")
    ] = INTERVAL,
    task: Annotated[str, typer.Option(help="Show only the loops of this task.")] = "",
    key: Annotated[
        str, typer.Option(help="Show only loops whose key matches, such as 'customer-*'.")
    ] = "",
    state: Annotated[
        Where | None,
        typer.Option(
            metavar="STATE", help=f"Show only loops in this state: one of {', '.join(Where)}."
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, help="The maximum number of loops; overdue ones come first.")
    ] = Choice().limit,
) -> Output | None:
    """Show where each loop is, and the backlog of tasks.

    A loop is waiting, ready, running, paused, lost (its token is gone), unseeded or removed. With
    LOOP, the command shows all details of this loop.

    Examples: scheduler status shop:app --watch;
    scheduler status shop:app report
    """
    choice = Choice(task, key, state, limit)
    if loop is not None and choice != Choice():
        raise UsageError("LOOP cannot be combined with --task, --key, --state or --limit.")
    if interval != INTERVAL and not watch:
        raise UsageError("--interval is for --watch: give both, or none.")
    if task:
        app.select([task])
    if watch:
        return _watch(app, loop, choice, interval)
    return _all(app, choice) if loop is None else _one(app, loop)


# All loops


@dataclass(frozen=True, slots=True)
class Overview:
    """Hold the loops of an app, and the backlog of its tasks, at a moment."""

    page: StatusPage
    tasks: Sequence[Backlog]
    counts: Counts
    at: datetime = field(default_factory=lambda: SystemClock().now())

    @property
    def is_fine(self) -> bool:
        lost = any(status.where in GONE for status in self.page.loops)
        is_served = not lost and all(backlog.is_fine for backlog in self.tasks)
        return is_served and not self.counts.alarm


def _all(app: Scheduler, choice: Choice) -> Output:
    overview = ask(app, lambda program: overview_of(program, choice))
    page, tasks = overview.page, [asdict(each) for each in overview.tasks]
    counts = {"more": page.more, **asdict(overview.counts)}
    data = {"loops": [row_of_status(each) for each in page.loops], "tasks": tasks, **counts}
    return Output(data, lines_of(app, overview, width()), overview.is_fine)


async def overview_of(program: Program, choice: Choice, counts: Counts | None = None) -> Overview:
    """Read the state of an app; earlier counts are reused."""
    page, tasks = await asyncio.gather(program.survey.page(choice), program.survey.backlogs())
    if counts is None:
        elsewhere = sum(status.where is not Where.WAITING for status in page.loops)
        supervision = 1
        leftovers = await program.installation.leftovers()
        counts = await program.survey.counts(page.total - elsewhere + supervision, leftovers)
    return Overview(page, tasks, counts)


def lines_of(app: Scheduler, overview: Overview, width: int | None) -> Iterator[str | Text]:
    """Format an overview for a terminal of this width; None: elsewhere."""
    page = overview.page
    if page.loops:
        yield from OF_LOOPS.lines(page.loops, width)
    elif page.total:
        yield f"No loop matches, of {page.total}."
    else:
        yield f"{no_loops(app.namespace)}."
    if page.more:
        yield (
            f"{page.more} more loops: choose some by --task, --key or --state, or raise --limit. "
            "`scheduler census` counts all."
        )
    if overview.tasks:
        yield ""
        yield from OF_TASKS.lines(overview.tasks, width)
    yield from map(printable, _of_counts(overview.counts))


def _note(status: Status) -> str:
    set_by = schedule_of(status.loop) if status.loop.override else ""
    return "; ".join(filter(None, [_trouble(status), set_by]))


def _trouble(status: Status) -> str:
    if status.where is Where.PAUSED and status.by:
        by, since = status.by, status.since
        if (pause := status.task_pause) is not None:
            by, since = pause.by, pause.since
        return f"{status.reason}, since {exact(since, zone_of(status.loop.schedule))} by {by}"
    if status.where in (Where.UNSEEDED, Where.REMOVED):
        return status.where.meaning
    trouble = status.reason or (status.last.error if status.last else None) or ""
    if status.where is Where.UNATTENDED:
        return "; ".join(filter(None, ["no processor", trouble]))
    return trouble


def _here(moment: datetime | None, status: Status) -> datetime | None:
    return local(moment, zone_of(status.loop.schedule))


def _note_on_calls(backlog: Backlog) -> str:
    """Return the pause of a task, its delay, and its most frequent error of the last 15 minutes."""
    notes = ["behind: start more processors"] if backlog.is_behind else list[str]()
    if (pause := backlog.pause) is not None:
        notes.append(f"paused: {pause.reason}, since {exact(pause.since)} by {pause.by}")
    if (commonest := backlog.recent.commonest) is not None:
        error, count, id = commonest
        notes.append(f"{count} x {error}" + (f", such as {id}" if id else ""))
    return "; ".join(notes)


OF_LOOPS = Table[Status](
    {
        "LOOP": lambda each: each.loop,
        "STATE": lambda each: each.where.value,
        "SEQ": lambda each: None if each.seq is None else f"#{each.seq}",
        "DUE": lambda each: _here(each.due_at, each),
        "LAST": lambda each: each.last and each.last.ending.value,
        "STARTED": lambda each: _here(each.last and each.last.started_at, each),
        "LATE": lambda each: each.last and each.last.late,
        "TOOK": lambda each: each.last and each.last.duration,
        "PROCESSORS": lambda each: each.processors,
        "NOTE": _note,
    },
    brief=("LOOP", "STATE", "DUE", "LAST", "STARTED", "NOTE"),
)
OF_TASKS = Table[Backlog](
    {
        "TASK": lambda each: each.task,
        "READY": lambda each: "unseeded" if each.ready is None else each.ready,
        "OLDEST": lambda each: each.oldest,
        "PROCESSORS": lambda each: each.processors,
        "PARKED": lambda each: each.parked,
        "STARTED": lambda each: each.recent.started,
        "FAILED": lambda each: each.recent.lost,
        "LATE": lambda each: each.recent.late_p99 if each.recent.started else None,
        "NOTE": _note_on_calls,
    },
    brief=("TASK", "READY", "OLDEST", "PARKED", "STARTED", "FAILED", "NOTE"),
)


def _of_counts(counts: Counts) -> Iterator[str]:
    more = len(counts.orphans) - FEW
    few = ", ".join([*counts.orphans[:FEW], *([f"{more} more"] if more > 0 else [])])
    lines = {
        "the broker blocks publishers ({}): no run is settled, and no loop continues, until its "
        "alarm ends (see `rabbitmqctl status`)": counts.alarm,
        "{} parked: see `scheduler failed list`": counts.parked,
        "{} void tokens: they wait in the broker until they are due, and never run": counts.void,
        "{} delayed: they wait in the broker for their time": counts.delayed,
        "in the broker, but not in this code: {} (`scheduler seed --prune` removes them)": few,
        LEFTOVERS: ", ".join(map(str, counts.leftovers)),
    }
    if any(lines.values()):
        yield ""
    yield from (line.format(what) for line, what in lines.items() if what)


# One loop


def _one(app: Scheduler, name: str) -> Output:
    async def taken(program: Program) -> Status:
        (status,) = await program.survey.status(await program.loops.find(name))
        return status

    status = ask(app, taken)
    return Output(row_of_status(status), _lines_of_one(status), status.where not in GONE)


def _lines_of_one(status: Status) -> Iterator[Text]:
    for name, value in _fields(status, SystemClock().now()):
        line = Text(f"{name:12} {flat(value)}")
        if name == "state":
            style = STYLES.get(status.where.value, "")
            line.stylize(style, 13, 13 + len(status.where.value))
        yield line


def _fields(status: Status, now: datetime) -> Iterator[tuple[str, str]]:
    schedule = status.loop.schedule
    zone = zone_of(schedule)
    yield "loop", str(status.loop)
    from_the_end = isinstance(schedule, Every) and not schedule.has_grid
    yield "schedule", describe(schedule) + (", from the end of a run" if from_the_end else "")
    if origin := origin_of(status.loop):
        yield "", origin
    yield "state", f"{status.where.value}: {status.where.meaning}"
    if status.reason:
        yield "reason", status.reason
    if (pause := status.task_pause) is not None:
        yield "  since", _moment(pause.since, zone, now)
        yield "  by", pause.by
    if status.seq is not None:
        yield "seq", f"#{status.seq}"
    if status.attempt is not None and status.attempt > 1:
        yield "attempt", f"{status.attempt}, as {status.attempt - 1} failed"
    if status.due_at is not None:
        yield "due", _moment(status.due_at, zone, now)
    if schedule.has_grid and status.where not in (Where.PAUSED, Where.UNSEEDED, Where.REMOVED):
        for tick in islice(ticks_after(schedule, max(now, status.due_at or now)), TICKS):
            yield "next", _moment(tick, zone, now)
    if (run := status.last) is not None:
        yield "last run", run.ending.value
        yield "  planned", _moment(run.scheduled_at, zone, now)
        yield "  started", f"{_moment(run.started_at, zone, now)}, {seconds(run.late)} late"
        yield "  took", seconds(run.duration)
    yield "processors", str(status.processors)
    if status.by:
        yield "epoch", str(status.epoch)
        yield "  begun", "" if status.since is None else _moment(status.since, zone, now)
        yield "  by", status.by
    if run is not None and run.error:
        yield "error", run.error


def _moment(moment: datetime, zone: tzinfo | None, now: datetime) -> str:
    return f"{exact(moment, zone)}  ({relative(moment, now)})"


# Again and again


def _watch(app: Scheduler, loop: str | None, choice: Choice, interval: str) -> None:
    if loop is not None or AS_JSON.get() or not sys.stdout.isatty():
        raise UsageError(
            "--watch shows all loops in a terminal: omit LOOP and --json, and do not pipe the "
            "output."
        )
    span = parse_duration(interval, "--interval")
    if span < LEAST:
        raise UsageError(f"--interval must be at least 1s, got {interval!r}.")
    logging.disable()  # a log line would end up in the middle of the screen
    with suppress(KeyboardInterrupt):  # Ctrl-C is the normal end
        asyncio.run(Screen(app, choice, span).run())


class Screen:
    """Hold the last overview of an app, which stays while the broker is away."""

    def __init__(self, app: Scheduler, choice: Choice, interval: timedelta) -> None:
        self._app = app
        self._choice = choice
        self._interval = interval
        self._console = console()
        self._overview: Overview | None = None
        self._counted_at: datetime | None = None

    async def run(self) -> None:
        """Show overviews until interrupted; raise if even the first one fails."""
        async with connected(self._app) as program:
            with Live(console=self._console, auto_refresh=False) as live:
                while True:
                    live.update(await self.next(program), refresh=True)
                    await asyncio.sleep(self._interval.total_seconds())

    async def next(self, program: Program) -> Group:
        """Take an overview and format it; if there is none, the last one, and why."""
        now, last = SystemClock().now(), self._overview
        is_new = self._counted_at is None or now - self._counted_at >= COUNT_EVERY
        counts = None if is_new or last is None else last.counts
        try:
            new = await limited(program.broker, overview_of(program, self._choice, counts))
        except BrokerError as error:
            if last is None:
                raise
            title = f"{self._app.namespace} as it was at {exact(last.at)}: {error}"
            return self._drawn(Text(title, BAD), last)
        self._overview = new
        self._counted_at = now if is_new else self._counted_at
        title = f"{self._app.namespace} at {exact(new.at)}, every {rough(self._interval)}"
        return self._drawn(Text(f"{title} until Ctrl-C", "bold"), new)

    def _drawn(self, title: Text, overview: Overview) -> Group:
        return Group(title, "", *lines_of(self._app, overview, self._console.width))
