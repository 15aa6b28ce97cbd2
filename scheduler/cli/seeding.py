"""`scheduler seed`."""

from typing import Annotated

import typer

from scheduler.app import Scheduler
from scheduler.cli.arguments import AppArgument, DryRun, Json, command, new_group
from scheduler.cli.connecting import ask
from scheduler.cli.loading import ready_app
from scheduler.cli.loops import row_of_report
from scheduler.cli.printing import local, no_loops, print_json, print_line
from scheduler.cli.tables import Table, Work, print_table, working
from scheduler.cli.upcoming import meaning_of, schedule_of, warn_of_doubts
from scheduler.control.doctor import require_fit
from scheduler.control.reports import Report
from scheduler.events import Emit, Event, LoopSeeded, QueueDeclared
from scheduler.program import Program
from scheduler.protocol.rights import rights_to_seed
from scheduler.timing.schedules import Cron, zone_of

cli = new_group()


@command(cli, "seed")
def seed(
    reference: AppArgument = None,
    dry_run: DryRun = False,
    prune: Annotated[
        bool,
        typer.Option("--prune", help="Remove the loops in the broker that the app does not have."),
    ] = False,
    migrate: Annotated[
        bool,
        typer.Option(
            "--migrate",
            help="Recreate queues that were declared for other code or settings, with all that "
            "waits in them. Stop all processors first.",
        ),
    ] = False,
    take_over: Annotated[
        bool,
        typer.Option(
            "--take-over",
            help="Seed a namespace that was seeded from another module: the app has moved.",
        ),
    ] = False,
    paused: Annotated[
        bool, typer.Option("--paused", help="Leave the loops that are started now paused.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Declare the queues, and start loops that have not been started.

    Seed again at any time: loops that are already scheduled are left alone. A schedule that has
    changed takes effect.
    """
    app = ready_app(reference)
    warn_of_doubts(app.loops.values())

    async def seeded(program: Program) -> list[Report]:
        require_fit(program.broker)
        if dry_run:
            return await program.seeding.plan(prune=prune, paused=paused)
        return await program.seeding.seed(
            prune=prune, migrate=migrate, take_over=take_over, paused=paused
        )

    with (
        working("seeding queues and loops", counted=not dry_run, as_json=as_json) as work,
        app.events.listening(_count_of(app, work), QueueDeclared, LoopSeeded),
    ):
        reports = ask(app, seeded, rights_to_seed(app.names, app.topology()), is_long=True)
    if as_json:
        print_json([row_of_report(report) for report in reports])
    elif reports:
        print_table(reports, OF_REPORTS)
        schedules = (report.loop.schedule for report in reports)
        for meaning in dict.fromkeys(meaning_of(it) for it in schedules if isinstance(it, Cron)):
            print_line(meaning)
    else:
        are = "would be" if dry_run else "are"
        tasks = ", ".join(app.tasks)
        told = no_loops(app.namespace)
        print_line(f"{told}; the queues of its tasks {are} declared: {tasks}.")


def _count_of(app: Scheduler, work: Work) -> Emit:
    """Return a listener that counts the app's queues and loops: each takes its time."""
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


def _due(report: Report) -> object:
    if report.due_at is None:
        return "paused" if report.is_paused else ""
    return local(report.due_at, zone_of(report.loop.schedule))


OF_REPORTS = Table[Report](
    {
        "LOOP": lambda report: report.loop,
        "SCHEDULE": lambda report: schedule_of(report.loop),
        "SEED": lambda report: report.did.value,
        "DUE": _due,
    },
    brief=("LOOP", "SEED", "DUE", "SCHEDULE"),
)
