"""`scheduler seed`."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from scheduler.app import Scheduler
from scheduler.cli.connecting import connected
from scheduler.cli.loading import ready_app
from scheduler.cli.meanings import print_meanings, warn_of_doubts
from scheduler.cli.overrides import schedule_of
from scheduler.cli.printing import exact, no_loops, print_json, print_line, relative
from scheduler.cli.progress import Work, working
from scheduler.cli.rows import row_of_report
from scheduler.cli.tables import Columns, print_table
from scheduler.control.doctor import require_fit
from scheduler.control.reports import Report
from scheduler.events import Emit, Event, LoopSeeded, QueueDeclared
from scheduler.protocol.rights import rights_to_seed
from scheduler.timing.clock import SystemClock
from scheduler.timing.schedules import zone_of


@dataclass(frozen=True, slots=True)
class Ways:
    """How to seed, as the options of the command say."""

    dry_run: bool
    prune: bool
    migrate: bool
    take_over: bool
    paused: bool


def seed(reference: str | None, ways: Ways, *, as_json: bool) -> None:
    app, dry_run = ready_app(reference), ways.dry_run
    warn_of_doubts(app.loops.values())
    with (
        working("seeding queues and loops", counted=not dry_run, as_json=as_json) as work,
        app.events.listening(_count_of(app, work), QueueDeclared, LoopSeeded),
    ):
        reports = asyncio.run(_seed(app, ways))
    if as_json:
        print_json([row_of_report(report) for report in reports])
    elif reports:
        _print_reports(reports)
        print_meanings(report.loop for report in reports)
    else:
        are = "would be" if dry_run else "are"
        tasks = ", ".join(app.tasks)
        print_line(f"{no_loops(app)}; the queues of its tasks {are} declared: {tasks}.")


def _count_of(app: Scheduler, work: Work) -> Emit:
    """A listener that counts the app's queues and loops: each takes its time."""
    left = {queue.name for queue in app.topology().queues} | {str(loop) for loop in app.loops}
    work.expect(len(left))

    def count(event: Event) -> None:
        match event:
            case QueueDeclared(done) | LoopSeeded(done) if str(done) in left:
                left.remove(str(done))
                work.advance()
            case _:
                pass  # a queue is declared again, or a loop is not in the code

    return count


async def _seed(app: Scheduler, ways: Ways) -> list[Report]:
    async with connected(app, rights_to_seed(app.names, app.topology())) as program:
        require_fit(program.broker)
        if ways.dry_run:
            return await program.seeding.plan(prune=ways.prune, paused=ways.paused)
        return await program.seeding.seed(
            prune=ways.prune,
            migrate=ways.migrate,
            take_over=ways.take_over,
            paused=ways.paused,
        )


def _print_reports(reports: Sequence[Report]) -> None:
    now = SystemClock().now()
    print_table(
        reports,
        Columns(("LOOP", "SCHEDULE", "SEED", "DUE"), lambda report: _cells(report, now)),
        Columns(("LOOP", "SEED", "DUE", "SCHEDULE"), lambda report: _brief_cells(report, now)),
    )


def _cells(report: Report, now: datetime) -> Sequence[str]:
    row = row_of_report(report)
    due_at = exact(row["due_at"], zone_of(report.loop.schedule)) or _unless_due(report)
    return row["loop"], schedule_of(report.loop, now), row["did"], due_at


def _brief_cells(report: Report, now: datetime) -> Sequence[str]:
    row = row_of_report(report)
    due = relative(row["due_at"], now) or _unless_due(report)
    return row["loop"], row["did"], due, schedule_of(report.loop, now)


def _unless_due(report: Report) -> str:
    return "paused" if report.is_paused else ""
