"""The commands: what can be typed. What they do is in the module of this room that each calls."""

import functools
import os
from collections.abc import Callable
from typing import Annotated, ParamSpec

import typer

import scheduler.cli
from scheduler.cli.streams import standard_streams
from scheduler.errors import SchedulerError, UsageError

P = ParamSpec("P")

cli = typer.Typer(
    name="scheduler",
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
failed = typer.Typer(no_args_is_help=True, help="Messages that could not be run: parked, not lost.")
scheduled = typer.Typer(no_args_is_help=True, help="Named one-offs: runs at a moment, by name.")
topology = typer.Typer(no_args_is_help=True, help="What the app needs in the broker.")
cli.add_typer(scheduled, name="scheduled")
schedule = typer.Typer(no_args_is_help=True, help="The schedule of one loop, beside its code.")
cli.add_typer(schedule, name="schedule")
cli.add_typer(failed, name="failed")
cli.add_typer(topology, name="topology")
imports = typer.Typer(
    no_args_is_help=True, help="Code for this package from what others' files say. Runs nothing."
)
cli.add_typer(imports, name="import")


def _app_of(context: typer.Context) -> str | None:
    """The APP of a line that is not complete."""
    # Before an option that has no value yet, arguments are not given to their parameters.
    return context.params.get("app") or next(iter(context.args), None)


def _loops(context: typer.Context) -> list[str]:
    return scheduler.cli.completion.loops(_app_of(context))


def _loops_if_any(context: typer.Context) -> list[str]:
    """APP may be left out, and LOOP stand in its place."""
    has_loop = any(each.name == "loop" for each in context.command.params)
    return _loops(context) if has_loop else []


def _tasks(context: typer.Context) -> list[str]:
    return scheduler.cli.completion.tasks(_app_of(context))


def _one_more_task(context: typer.Context, incomplete: str) -> list[str]:
    return scheduler.cli.completion.one_more_task(_app_of(context), incomplete)


AppArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="APP",
        autocompletion=_loops_if_any,
        help="module:attribute or path/to/file.py:attribute (of a file alone: app); else "
        "SCHEDULER_APP, else [tool.scheduler] app in pyproject.toml.",
    ),
]
LoopArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="LOOP",
        autocompletion=_loops,
        help="Which loop, as `scheduler status` names it: report, or digest.user-42 of a keyed "
        "one. It has to be said.",
    ),
]
OneLoop = Annotated[
    str | None,
    typer.Argument(metavar="LOOP", autocompletion=_loops, help="Only this loop, instead of all."),
]
Ids = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="ID",
        help="Which messages, as `scheduler failed list` names them; how an ID begins is enough, "
        "if no other begins so.",
    ),
]
OneTask = Annotated[
    str | None, typer.Option("--task", autocompletion=_tasks, help="Only those of this task.")
]
OneReason = Annotated[
    str | None,
    typer.Option("--reason", help="Only those parked for this reason, such as exhausted."),
]
OneOff = Annotated[
    str | None,
    typer.Argument(
        metavar="NAME",
        help="Which one-off, as `scheduler scheduled list` names it: remind.order-7. It has to be "
        "said.",
    ),
]
Files = Annotated[
    list[str] | None,
    typer.Argument(metavar="FILE", help="What to read; - for stdin. It has to be said."),
]
Out = Annotated[
    str | None,
    typer.Option("--out", metavar="FILE", help="Write the code there, instead of printing it."),
]
Force = Annotated[
    bool, typer.Option("--force", help="Write it though there is such a file, over that.")
]
Namespace = Annotated[
    str | None,
    typer.Option(help="The namespace of the app; else, as what was read is called."),
]
Zone = Annotated[
    str | None,
    typer.Option(help="The zone of times, such as Europe/Berlin, where the file tells none."),
]
All = Annotated[bool, typer.Option("--all", help="All that are parked, instead of IDs.")]
EveryLoop = Annotated[
    bool,
    typer.Option(
        "--all", help="Every loop of the app, keyed ones as well, instead of one; no one-offs."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
LogFormat = Annotated[
    str | None,
    typer.Option(
        help="text, dated (text with the date and the UTC offset) or json; else "
        "SCHEDULER_LOG_FORMAT, else text."
    ),
]
HealthPort = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=65535,
        help="The port at which a processor answers /livez and /readyz; else "
        "SCHEDULER_HEALTH_PORT, else none.",
    ),
]
MetricsPort = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=65535,
        help="The port at which it answers /metrics, which may be the same; else "
        "SCHEDULER_METRICS_PORT, else none.",
    ),
]


def _tell_version(asked: bool) -> None:
    if asked:
        scheduler.cli.printing.print_line(scheduler.cli.versions.told())
        raise typer.Exit


@cli.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_tell_version,
            is_eager=True,
            help="Print the version of this program.",
        ),
    ] = False,
) -> None:
    """Periodic jobs and delayed retries as TTL loops in RabbitMQ."""


def main() -> None:
    """Run the command line; exit code 0: fine, 1: something is wrong, 2: misuse."""
    if "_SCHEDULER_COMPLETE" in os.environ:
        scheduler.cli.completion.rejoin_words(os.environ)
    with standard_streams():
        cli()


def command(group: typer.Typer, name: str) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Register a command that prints an error in a paragraph, and exits."""

    def register(function: Callable[P, None]) -> Callable[P, None]:
        @functools.wraps(function)
        def printing_errors(*args: P.args, **kwargs: P.kwargs) -> None:
            try:
                function(*args, **kwargs)
            except SchedulerError as error:
                scheduler.cli.printing.print_error(error, bool(kwargs.get("as_json")))
                raise typer.Exit(2 if isinstance(error, UsageError) else 1) from error

        group.command(name)(printing_errors)
        return printing_errors

    return register


@command(cli, "dev")
def dev(
    app: AppArgument = None,
    span: Annotated[
        str | None, typer.Option("--for", help="End after so long, such as 10s; else at Ctrl-C.")
    ] = None,
    with_dashboard: Annotated[
        bool, typer.Option("--dashboard", help="Show it in a browser, too, at the port 8088.")
    ] = False,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Another port for it; 0: any that is free.")
    ] = None,
    log_format: LogFormat = None,
    as_json: Json = False,
) -> None:
    """Run everything in this process: no RabbitMQ is needed.

    It declares, seeds and processes on an embedded broker, which ends with it.
    """
    log_format = "json" if as_json else log_format
    shows = with_dashboard or port is not None
    scheduler.cli.processing.dev(app, span=span, log_format=log_format, shows=shows, port=port)


@command(cli, "seed")
def seed(
    app: AppArgument = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what it would do.")] = False,
    prune: Annotated[
        bool,
        typer.Option("--prune", help="Remove the loops in the broker that the app does not have."),
    ] = False,
    migrate: Annotated[
        bool,
        typer.Option(
            "--migrate",
            help="Make queues anew that were declared for other code or settings, with all that "
            "waits in them. No processor may run meanwhile.",
        ),
    ] = False,
    take_over: Annotated[
        bool,
        typer.Option(
            "--take-over",
            help="Seed though the namespace was seeded from another module: it has moved.",
        ),
    ] = False,
    paused: Annotated[
        bool,
        typer.Option("--paused", help="Have the loops that are started now wait for a `resume`."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Declare the queues, and start loops that have not been started.

    It can be repeated at any time: what waits already, goes on waiting. A schedule that has
    changed takes effect.
    """
    ways = scheduler.cli.seeding.Ways(dry_run, prune, migrate, take_over, paused)
    scheduler.cli.seeding.seed(app, ways, as_json=as_json)


@command(cli, "run")
def run(
    app: AppArgument = None,
    tasks: Annotated[
        str | None,
        typer.Option(
            autocompletion=_one_more_task, help="Only these tasks, separated by commas; else all."
        ),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="How many runs at once, over all tasks; else SCHEDULER_CONCURRENCY, else 100.",
        ),
    ] = None,
    health_port: HealthPort = None,
    metrics_port: MetricsPort = None,
    log_format: LogFormat = None,
    as_json: Json = False,
) -> None:
    """Process: take messages and run tasks.

    SIGTERM or Ctrl-C drains: no more is taken, and what runs is ended. Twice stops at once.
    """
    scheduler.cli.processing.run(
        app,
        tasks=tasks,
        concurrency=concurrency,
        health_port=health_port,
        metrics_port=metrics_port,
        log_format="json" if as_json else log_format,
    )


@command(cli, "dashboard")
def dashboard(
    app: AppArgument = None,
    host: Annotated[
        str,
        typer.Option(
            help="The address to answer at. Where others reach it, --access or --read-only is "
            "needed."
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port; 0: any that is free.")
    ] = 8088,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Nobody may do anything, only look.")
    ] = False,
    access: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="A function of the request that returns a scheduler.dashboard.Visitor, or None.",
        ),
    ] = None,
    log_format: LogFormat = None,
) -> None:
    """Show what runs in a browser.

    It follows the journal and the roster; no processor needs to be there. It needs the extra
    `dashboard`.
    """
    scheduler.cli.dashboarding.show(
        app, host=host, port=port, read_only=read_only, access=access, log_format=log_format
    )


@command(cli, "status")
def status(
    app: AppArgument = None,
    loop: OneLoop = None,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            help="Show it again and again, until Ctrl-C. Each time costs a read of what is new in "
            "the journal, and the lengths of queues. The queues in which loops wait are looked "
            "into every 30 s only: a look may hold up, by milliseconds, what is about to leave.",
        ),
    ] = False,
    interval: Annotated[
        str, typer.Option(help="How often --watch shows it anew, such as 5s; at least 1s.")
    ] = "2s",
    as_json: Json = False,
) -> None:
    """Where each loop is, and how it ended; what waits for tasks.

    A loop is waiting, ready, running, paused, lost (nobody has its token) or unseeded. Of one
    loop, all there is to say.
    """
    if watch:
        scheduler.cli.watching.watch(app, loop, interval=interval, as_json=as_json)
    else:
        scheduler.cli.status.show(app, loop, as_json=as_json)


@command(cli, "next")
def upcoming(
    app: AppArgument = None,
    count: Annotated[int, typer.Option("-n", min=1, max=1000, help="How many times per loop.")] = 5,
    as_json: Json = False,
) -> None:
    """The next times of each loop, from the code: no broker is asked.

    Of a schedule that was set in place of the code's, `scheduler status` tells.
    """
    scheduler.cli.upcoming.show(app, count=count, as_json=as_json)


@command(cli, "pause")
def pause(
    app: AppArgument = None,
    loop: LoopArgument = None,
    every: EveryLoop = False,
    reason: Annotated[
        str, typer.Option(help="Why, which `scheduler status` tells.")
    ] = "paused by an operator",
    as_json: Json = False,
) -> None:
    """Have a loop wait until it is resumed.

    A run that is going on ends by itself. When this returns, none begins any more, unless it says
    who has not answered.
    """
    scheduler.cli.verbs.pause(app, loop, every=every, reason=reason, as_json=as_json)


@command(cli, "resume")
def resume(
    app: AppArgument = None,
    loop: LoopArgument = None,
    every: EveryLoop = False,
    now: Annotated[
        bool, typer.Option("--now", help="Run at once, and not at the next nominal time.")
    ] = False,
    after: Annotated[
        str | None,
        typer.Option(
            metavar="MOMENT",
            help="Go on as after a run at this moment, such as 2026-06-01T09:00:00+02:00: what "
            "has been due since is made up for as the schedule's catch_up says.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Have a paused loop go on, at its next nominal time."""
    scheduler.cli.verbs.resume(app, loop, every=every, at_once=now, after=after, as_json=as_json)


@command(cli, "trigger")
def trigger(app: AppArgument = None, loop: LoopArgument = None, as_json: Json = False) -> None:
    """Have a loop run now, besides its schedule."""
    scheduler.cli.verbs.trigger(app, loop, as_json=as_json)


@command(cli, "remove")
def remove(app: AppArgument = None, loop: LoopArgument = None, as_json: Json = False) -> None:
    """End a loop that the code does not have.

    It was started at run time, or the code does not have it any more.
    """
    scheduler.cli.verbs.remove(app, loop, as_json=as_json)


@command(cli, "sync")
def sync(
    app: AppArgument = None,
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE", help="TOML, or JSON if it ends in .json. It has to be said."
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what it would do.")] = False,
    as_json: Json = False,
) -> None:
    """Make keyed loops those of a file: start, reschedule, stop.

    It has a table for each, such as [digest."user-42"], with every or cron, the other options of a
    schedule, and args. Tasks that are not in it are not touched. All is checked before anything is
    done.
    """
    scheduler.cli.syncing.sync(app, file, dry_run=dry_run, as_json=as_json)


@command(schedule, "set")
def schedule_set(
    app: AppArgument = None,
    loop: LoopArgument = None,
    every: Annotated[
        str | None, typer.Option(help="The period, such as 5m, from the end of a run.")
    ] = None,
    fixed_rate: Annotated[
        bool,
        typer.Option("--fixed-rate", help="With --every: at the multiples of the period, instead."),
    ] = False,
    offset: Annotated[
        str | None, typer.Option(help="With --fixed-rate: so much later, such as 10m.")
    ] = None,
    cron: Annotated[
        str | None, typer.Option(help="A cron expression, such as '0 9 * * MON-FRI'.")
    ] = None,
    tz: Annotated[
        str | None, typer.Option(help="With --cron: its zone, such as Europe/Berlin; else UTC.")
    ] = None,
    jitter: Annotated[
        str | None, typer.Option(help="Start each run up to so much later, such as 10s.")
    ] = None,
    catch_up: Annotated[
        str | None,
        typer.Option(help="What to do of missed times: latest, skip or all; else latest."),
    ] = None,
    grace: Annotated[
        str | None, typer.Option(help="With --catch-up skip: how late a run may start.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Have a loop go by another schedule than that of the code.

    It holds, whatever is seeded, until it is cleared; `scheduler status` tells who has set it. A
    loop that was started at run time gets it for good.
    """
    scheduler.cli.schedules.set_one(
        app,
        loop,
        {
            "every": every,
            "mode": "fixed_rate" if fixed_rate else None,
            "offset": offset,
            "cron": cron,
            "tz": tz,
            "jitter": jitter,
            "catch_up": catch_up,
            "grace": grace,
        },
        as_json=as_json,
    )


@command(schedule, "clear")
def schedule_clear(
    app: AppArgument = None, loop: LoopArgument = None, as_json: Json = False
) -> None:
    """Have a loop go by the schedule of the code again."""
    scheduler.cli.schedules.clear(app, loop, as_json=as_json)


@command(schedule, "show")
def schedule_show(
    app: AppArgument = None, loop: LoopArgument = None, as_json: Json = False
) -> None:
    """The schedule of a loop, who has set it, and what the code says."""
    scheduler.cli.schedules.show(app, loop, as_json=as_json)


@command(cli, "ps")
def ps(
    app: AppArgument = None,
    stack: Annotated[
        str | None,
        typer.Option(
            "--stack",
            metavar="RUN",
            help="Show where this run is now: the calls that it is in, without any values.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """What runs now: where, since when, until when and how far.

    All processors are asked, and answer themselves: nothing of it is stored. How far a run has
    come, its task tells with ctx.progress.
    """
    scheduler.cli.runs.ps(app, stack, as_json=as_json)


@command(cli, "cancel")
def cancel(
    app: AppArgument = None,
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN",
            autocompletion=_loops,
            help="Which run, as `scheduler ps` names it: report#7 or report, of a loop; the id of "
            "a message, or how it begins, of a call. It has to be said.",
        ),
    ] = None,
    escalate: Annotated[
        bool,
        typer.Option(
            "--escalate", help="Count it as failed for the last time: it is parked, and told."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """End a run that is going on.

    It is not tried again, and its loop goes on with the next tick. It is waited for, 10 seconds at
    most, and told how it has ended. A thread cannot be stopped: such a run ends with its function.
    """
    scheduler.cli.runs.cancel(app, run, escalate=escalate, as_json=as_json)


@command(cli, "history")
def history(
    app: AppArgument = None,
    loop: OneLoop = None,
    since: Annotated[str, typer.Option(help="How far to look back, such as 30m or 2d.")] = "1h",
    limit: Annotated[int, typer.Option(min=1, help="Only the last so many entries.")] = 1000,
    as_json: Json = False,
) -> None:
    """What became of the loops: runs, repairs, what operators did.

    It tells of what was parked, too, and reads it from the journal: no processor has to be there.
    """
    scheduler.cli.history.show(app, loop, since=since, limit=limit, as_json=as_json)


@command(failed, "list")
def failed_list(
    app: AppArgument = None,
    task: OneTask = None,
    reason: OneReason = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many messages.")] = 100,
    as_json: Json = False,
) -> None:
    """List the parked messages.

    A terminal shows as much of each ID as the other commands need.
    """
    scheduler.cli.failed.browse(app, task=task, reason=reason, limit=limit, as_json=as_json)


@command(failed, "show")
def failed_show(
    app: AppArgument = None,
    message: Annotated[
        str | None,
        typer.Argument(
            metavar="ID",
            help="Which message, as `scheduler failed list` names it; how its ID begins is enough, "
            "if no other begins so.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show one parked message, whole: headers, body, traceback."""
    scheduler.cli.failed.show(app, message, as_json=as_json)


@command(failed, "replay")
def failed_replay(
    app: AppArgument = None,
    messages: Ids = None,
    everything: All = False,
    task: OneTask = None,
    reason: OneReason = None,
    rate: Annotated[
        str | None, typer.Option(help="Send back no more than this, such as 10/s.")
    ] = None,
    args: Annotated[
        str | None, typer.Option(help="Other arguments than they had, as a JSON object.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Run parked messages again.

    Each is sent back to its task, which is confirmed, before it is taken out. Say which: by ID,
    --task, --reason or --all.
    """
    scheduler.cli.failed.replay(
        app,
        messages,
        everything=everything,
        task=task,
        reason=reason,
        rate=rate,
        args=args,
        as_json=as_json,
    )


@command(failed, "purge")
def failed_purge(
    app: AppArgument = None,
    messages: Ids = None,
    everything: All = False,
    task: OneTask = None,
    reason: OneReason = None,
    yes: Annotated[bool, typer.Option("--yes", help="Delete without asking first.")] = False,
    as_json: Json = False,
) -> None:
    """Delete parked messages for good.

    Say which: by ID, --task, --reason or --all.
    """
    scheduler.cli.failed.purge(
        app,
        messages,
        everything=everything,
        task=task,
        reason=reason,
        yes=yes,
        as_json=as_json,
    )


@command(scheduled, "list")
def scheduled_list(app: AppArgument = None, task: OneTask = None, as_json: Json = False) -> None:
    """What is to run at a moment; what is due first, first.

    One that runs is among them, and one that has run while its name is kept.
    """
    scheduler.cli.scheduled.show_all(app, task=task, as_json=as_json)


@command(scheduled, "move")
def scheduled_move(
    app: AppArgument = None,
    name: OneOff = None,
    at: Annotated[
        str | None,
        typer.Option(help="The moment, such as 2026-06-01T09:00+02:00; without an offset, here."),
    ] = None,
    after: Annotated[str | None, typer.Option(help="How long from now, such as 10m.")] = None,
    as_json: Json = False,
) -> None:
    """Give a one-off another time. One that runs just now runs again then."""
    scheduler.cli.scheduled.move(app, name, at=at, after=after, as_json=as_json)


@command(scheduled, "cancel")
def scheduled_cancel(app: AppArgument = None, name: OneOff = None, as_json: Json = False) -> None:
    """Take a one-off back. A run that is going on ends."""
    scheduler.cli.scheduled.cancel(app, name, as_json=as_json)


@command(topology, "show")
def topology_show(
    app: AppArgument = None,
    whole: Annotated[
        bool, typer.Option("--all", help="Every timer queue, too, which are many.")
    ] = False,
    as_json: Json = False,
) -> None:
    """The exchanges, queues and bindings of the app, as a tree."""
    scheduler.cli.topology.show(app, whole=whole, as_json=as_json)


@command(topology, "export")
def topology_export(
    app: AppArgument = None,
    vhost: Annotated[str, typer.Option(help="The virtual host that they are for.")] = "/",
    as_json: Annotated[
        bool, typer.Option("--json", help="It is JSON in any case.", show_default=False)
    ] = True,
) -> None:
    """Print what is declared, as RabbitMQ definitions (JSON).

    They are for `rabbitmqctl import_definitions`, or for an operator of Kubernetes.
    """
    scheduler.cli.topology.export(app, vhost=vhost)


@command(cli, "doctor")
def doctor(
    app: AppArgument = None,
    live: Annotated[
        bool,
        typer.Option(
            "--live", help="Only ask whether the processor of this machine lives, as a probe does."
        ),
    ] = False,
    health_port: HealthPort = None,
    as_json: Json = False,
) -> None:
    """Look for what would break the guarantees, and what to change."""
    if live:
        scheduler.cli.liveness.show(app, health_port, as_json=as_json)
    else:
        scheduler.cli.diagnosis.show(app, as_json=as_json)


@command(imports, "celery")
def import_celery(
    files: Files = None,
    out: Out = None,
    force: Force = False,
    namespace: Namespace = None,
    tz: Zone = None,
    as_json: Json = False,
) -> None:
    """Loops and tasks of Celery's modules, or of django-celery-beat.

    Modules are those with beat_schedule, with calls of add_periodic_task, and with the tasks; of
    django-celery-beat it takes what `manage.py dumpdata django_celery_beat` prints. What is not
    carried over is told.
    """
    ways = scheduler.cli.imports.Ways(out, force, namespace, tz, as_json)
    scheduler.cli.imports.from_celery(files, ways)


@command(imports, "crontab")
def import_crontab(
    files: Files = None,
    out: Out = None,
    force: Force = False,
    namespace: Namespace = None,
    tz: Zone = None,
    users: Annotated[
        bool | None,
        typer.Option(
            "--users/--no-users",
            help="Whether lines name a user after the times, as in /etc/cron.d; else, as it looks.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Loops that run the commands of crontabs.

    It takes what `crontab -l` prints. What is not carried over is told.
    """
    ways = scheduler.cli.imports.Ways(out, force, namespace, tz, as_json)
    scheduler.cli.imports.from_crontabs(files, ways, users)


@command(imports, "cronjob")
def import_cronjob(
    files: Files = None,
    out: Out = None,
    force: Force = False,
    namespace: Namespace = None,
    tz: Zone = None,
    as_json: Json = False,
) -> None:
    """Loops that run the commands of Kubernetes' CronJobs.

    It takes what `kubectl get cronjobs -o yaml` prints, and needs the extra `import`. What is not
    carried over is told.
    """
    ways = scheduler.cli.imports.Ways(out, force, namespace, tz, as_json)
    scheduler.cli.imports.from_cronjobs(files, ways)
