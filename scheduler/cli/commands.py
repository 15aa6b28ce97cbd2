"""The commands: what can be typed. What they do is in the module of this room that each calls."""

import functools
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
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
failed = typer.Typer(no_args_is_help=True, help="Messages that could not be run: parked, not lost.")
topology = typer.Typer(no_args_is_help=True, help="What the app needs in the broker.")
cli.add_typer(failed, name="failed")
cli.add_typer(topology, name="topology")

AppArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[APP]",
        help="module:attribute or path/to/file.py:attribute (of a file alone: app); else "
        "SCHEDULER_APP, else [tool.scheduler] app in pyproject.toml.",
    ),
]
LoopArgument = Annotated[str | None, typer.Argument(metavar="LOOP")]
Ids = Annotated[list[str] | None, typer.Argument(metavar="ID...")]
OneTask = Annotated[str | None, typer.Option("--task", help="Only those of this task.")]
OneReason = Annotated[str | None, typer.Option("--reason", help="Only those with this reason.")]
All = Annotated[bool, typer.Option("--all", help="All of them.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
LogFormat = Annotated[
    str | None,
    typer.Option(
        help="text, dated (text with the date and the UTC offset) or json; else "
        "SCHEDULER_LOG_FORMAT, else text."
    ),
]
HealthPort = Annotated[
    int | None, typer.Option(min=1, max=65535, help="Where a processor answers /livez and /readyz.")
]
MetricsPort = Annotated[
    int | None, typer.Option(min=1, max=65535, help="Where it answers /metrics; may be the same.")
]


def _tell_version(asked: bool) -> None:
    if asked:
        scheduler.cli.printing.print_line(scheduler.cli.versions.told())
        raise typer.Exit


@cli.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_tell_version, is_eager=True, help="Say which it is."),
    ] = False,
) -> None:
    """Periodic jobs and delayed retries as TTL loops in RabbitMQ."""


def main() -> None:
    """Run the command line; exit code 0: fine, 1: something is wrong, 2: misuse."""
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
        str | None, typer.Option("--for", help="End after so long, such as 10s.")
    ] = None,
    log_format: LogFormat = None,
    as_json: Json = False,
) -> None:
    """Run everything in this process, on an embedded broker: no RabbitMQ is needed."""
    log_format = "json" if as_json else log_format
    scheduler.cli.processing.dev(app, span=span, log_format=log_format)


@command(cli, "seed")
def seed(
    app: AppArgument = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what it would do.")] = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove the loops that the app does not have.")
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
            "--take-over", help="Though the namespace was seeded from another module: it has moved."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Declare exchanges and queues, and start each loop that has not been started. Repeatable."""
    ways = scheduler.cli.seeding.Ways(dry_run, prune, migrate, take_over)
    scheduler.cli.seeding.seed(app, ways, as_json=as_json)


@command(cli, "run")
def run(
    app: AppArgument = None,
    tasks: Annotated[
        str | None, typer.Option(help="Only these tasks, separated by commas.")
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="How many runs at once, over all tasks.")
    ] = None,
    health_port: HealthPort = None,
    metrics_port: MetricsPort = None,
    log_format: LogFormat = None,
    as_json: Json = False,
) -> None:
    """Process: take messages and run tasks. SIGTERM or Ctrl-C drains; twice stops at once."""
    scheduler.cli.processing.run(
        app,
        tasks=tasks,
        concurrency=concurrency,
        health_port=health_port,
        metrics_port=metrics_port,
        log_format="json" if as_json else log_format,
    )


@command(cli, "status")
def status(
    app: AppArgument = None,
    loop: Annotated[str | None, typer.Argument(metavar="[LOOP]")] = None,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            help="Show it again and again, until Ctrl-C. That costs a read of what is new in the "
            "journal, and the lengths of queues. Where loops wait, is looked at every 30 s only: "
            "a look may hold up by some milliseconds what is about to leave.",
        ),
    ] = False,
    interval: Annotated[
        str, typer.Option(help="How often --watch shows it anew, such as 5s; at least 1s.")
    ] = "2s",
    as_json: Json = False,
) -> None:
    """Where each loop's token is: waiting, ready, running, paused or lost; what waits for tasks."""
    if watch:
        scheduler.cli.watching.watch(app, loop, interval=interval, as_json=as_json)
    else:
        scheduler.cli.status.show(app, loop, as_json=as_json)


@command(cli, "next")
def upcoming(
    app: AppArgument = None,
    count: Annotated[int, typer.Option("-n", min=1, max=1000, help="How many per loop.")] = 5,
    as_json: Json = False,
) -> None:
    """The next times of each loop, from the code: no broker is asked."""
    scheduler.cli.upcoming.show(app, count=count, as_json=as_json)


@command(cli, "pause")
def pause(
    app: AppArgument = None,
    loop: LoopArgument = None,
    reason: Annotated[str, typer.Option(help="Told by status.")] = "paused by an operator",
    as_json: Json = False,
) -> None:
    """Have a loop wait until it is resumed. A run that is going on ends first."""
    scheduler.cli.verbs.pause(app, loop, reason=reason, as_json=as_json)


@command(cli, "resume")
def resume(
    app: AppArgument = None,
    loop: LoopArgument = None,
    now: Annotated[bool, typer.Option("--now", help="Run at once.")] = False,
    as_json: Json = False,
) -> None:
    """Have a paused loop go on, at its next nominal time."""
    scheduler.cli.verbs.resume(app, loop, at_once=now, as_json=as_json)


@command(cli, "trigger")
def trigger(app: AppArgument = None, loop: LoopArgument = None, as_json: Json = False) -> None:
    """Have a loop run now, besides its schedule."""
    scheduler.cli.verbs.trigger(app, loop, as_json=as_json)


@command(cli, "remove")
def remove(app: AppArgument = None, loop: LoopArgument = None, as_json: Json = False) -> None:
    """End a loop that was started at run time, or that the code does not have any more."""
    scheduler.cli.verbs.remove(app, loop, as_json=as_json)


@command(cli, "history")
def history(
    app: AppArgument = None,
    loop: Annotated[str | None, typer.Argument(metavar="[LOOP]")] = None,
    since: Annotated[str, typer.Option(help="How far to look back, such as 1h.")] = "1h",
    limit: Annotated[int, typer.Option(min=1, help="At most the last so many.")] = 1000,
    as_json: Json = False,
) -> None:
    """What became of the loops: each run, each repair, what operators did, what was parked."""
    scheduler.cli.history.show(app, loop, since=since, limit=limit, as_json=as_json)


@command(failed, "list")
def failed_list(
    app: AppArgument = None,
    task: OneTask = None,
    reason: OneReason = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 100,
    as_json: Json = False,
) -> None:
    """The parked messages."""
    scheduler.cli.failed.browse(app, task=task, reason=reason, limit=limit, as_json=as_json)


@command(failed, "show")
def failed_show(
    app: AppArgument = None,
    message: Annotated[str | None, typer.Argument(metavar="ID")] = None,
    as_json: Json = False,
) -> None:
    """One parked message, whole."""
    scheduler.cli.failed.show(app, message, as_json=as_json)


@command(failed, "replay")
def failed_replay(
    app: AppArgument = None,
    messages: Ids = None,
    everything: All = False,
    task: OneTask = None,
    reason: OneReason = None,
    rate: Annotated[str | None, typer.Option(help="No more than this, such as 10/s.")] = None,
    args: Annotated[str | None, typer.Option(help="Other arguments, as a JSON object.")] = None,
    as_json: Json = False,
) -> None:
    """Run parked messages again: each is sent back, confirmed, then taken out."""
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
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Delete parked messages."""
    scheduler.cli.failed.purge(
        app,
        messages,
        everything=everything,
        task=task,
        reason=reason,
        yes=yes,
        as_json=as_json,
    )


@command(topology, "show")
def topology_show(
    app: AppArgument = None,
    whole: Annotated[bool, typer.Option("--all", help="Every timer queue, too.")] = False,
    as_json: Json = False,
) -> None:
    """The exchanges, queues and bindings of the app, as a tree."""
    scheduler.cli.topology.show(app, whole=whole, as_json=as_json)


@command(topology, "export")
def topology_export(
    app: AppArgument = None,
    vhost: Annotated[str, typer.Option(help="The virtual host they are for.")] = "/",
    as_json: Json = True,
) -> None:
    """RabbitMQ definitions JSON, for `rabbitmqctl import_definitions` or an operator."""
    scheduler.cli.topology.export(app, vhost=vhost)


@command(cli, "doctor")
def doctor(
    app: AppArgument = None,
    live: Annotated[
        bool, typer.Option("--live", help="Only ask whether the processor of this machine lives.")
    ] = False,
    health_port: HealthPort = None,
    as_json: Json = False,
) -> None:
    """Look for what would break the guarantees, and say what to change."""
    if live:
        scheduler.cli.liveness.show(app, health_port, as_json=as_json)
    else:
        scheduler.cli.diagnosis.show(app, as_json=as_json)
