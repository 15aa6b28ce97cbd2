"""The command line: parse, call one function, print."""

import asyncio
import functools
import importlib
import importlib.util
import json
import signal
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any, NoReturn, ParamSpec, cast
from wsgiref.types import WSGIApplication

import typer

from scheduler.app import Scheduler
from scheduler.brokers.contract import Broker
from scheduler.brokers.credentials import is_embedded
from scheduler.brokers.memory.broker import MemoryBroker
from scheduler.brokers.opening import broker_of
from scheduler.cli import display, logs
from scheduler.cli.loading import FORMS, load_app
from scheduler.control.backlog import Backlog, backlogs
from scheduler.control.doctor import Finding, explaining_refusals, require_fit
from scheduler.control.reports import Did, Report
from scheduler.control.status import Status, Where
from scheduler.errors import (
    QueueNotFound,
    ScheduleError,
    SchedulerError,
    SettingsError,
    UsageError,
)
from scheduler.processor import health
from scheduler.processor.pages import serving
from scheduler.processor.processor import Processor
from scheduler.processor.worker import Worker
from scheduler.program import Program, processor
from scheduler.protocol.rights import Rights, rights_to_process, rights_to_seed, rights_to_start
from scheduler.protocol.topology import Names, definitions
from scheduler.queues.failed import Parked, Selection
from scheduler.queues.journal import JournalEntry
from scheduler.settings import Settings
from scheduler.tasks.loops import Loop
from scheduler.tasks.tasks import SUPERVISION
from scheduler.timing.clock import SystemClock
from scheduler.timing.durations import parse_duration
from scheduler.timing.rates import parse_rate

P = ParamSpec("P")

cli = typer.Typer(
    name="scheduler",
    help="Periodic jobs and delayed retries as TTL loops in RabbitMQ.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
failed = typer.Typer(no_args_is_help=True, help="Messages that could not be run: parked, not lost.")
topology = typer.Typer(no_args_is_help=True, help="What the app needs in the broker.")
cli.add_typer(failed, name="failed")
cli.add_typer(topology, name="topology")

App = Annotated[
    str | None,
    typer.Argument(
        metavar="[APP]",
        help="module:attribute or path/to/file.py:attribute; else SCHEDULER_APP, else "
        "[tool.scheduler] app in pyproject.toml.",
    ),
]
OneTask = Annotated[str | None, typer.Option("--task", help="Only those of this task.")]
OneReason = Annotated[str | None, typer.Option("--reason", help="Only those with this reason.")]
Ids = Annotated[list[str] | None, typer.Argument(metavar="ID...")]
All = Annotated[bool, typer.Option("--all", help="All of them.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
HealthPort = Annotated[
    int | None, typer.Option(min=1, max=65535, help="Where a processor answers /livez and /readyz.")
]
MetricsPort = Annotated[
    int | None, typer.Option(min=1, max=65535, help="Where it answers /metrics; may be the same.")
]


def main() -> None:
    """Run the command line; exit code 0: fine, 1: something is wrong, 2: misuse."""
    cli()


def command(group: typer.Typer, name: str) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Register a command whose errors are told in a paragraph."""

    def register(function: Callable[P, None]) -> Callable[P, None]:
        @functools.wraps(function)
        def told(*args: P.args, **kwargs: P.kwargs) -> None:
            try:
                function(*args, **kwargs)
            except SchedulerError as error:
                _fail(error, as_json=bool(kwargs.get("as_json")))

        group.command(name)(told)
        return told

    return register


@command(cli, "dev")
def dev(
    app: App = None,
    span: Annotated[
        str | None, typer.Option("--for", help="End after so long, such as 10s.")
    ] = None,
    log_format: Annotated[str | None, typer.Option(help="text or json.")] = None,
    as_json: Json = False,
) -> None:
    """Run everything in this process, on an embedded broker: no RabbitMQ is needed."""
    scheduler = _load(app, log_format="json" if as_json else log_format)
    asyncio.run(_dev(scheduler, None if span is None else _span("--for", span)))


@command(cli, "seed")
def seed(
    app: App = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what it would do.")] = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove the loops that the app does not have.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Declare exchanges and queues, and start each loop that has not been started. Repeatable."""
    scheduler = _load(app)

    async def seeded() -> list[Report]:
        rights = rights_to_seed(scheduler.names, scheduler.topology())
        async with _connected(scheduler, rights) as program:
            require_fit(program.broker)
            doing = program.planning.plan() if dry_run else program.seeding.seed(prune=prune)
            return await doing

    reports = asyncio.run(seeded())
    display.reports(scheduler, reports, as_json, dry_run=dry_run)


@command(cli, "run")
def run(
    app: App = None,
    tasks: Annotated[
        str | None, typer.Option(help="Only these tasks, separated by commas.")
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="How many runs at once, over all tasks.")
    ] = None,
    health_port: HealthPort = None,
    metrics_port: MetricsPort = None,
    log_format: Annotated[str | None, typer.Option(help="text or json.")] = None,
    as_json: Json = False,
) -> None:
    """Process: take messages and run tasks. SIGTERM or Ctrl-C drains; twice stops at once."""
    scheduler = _load(app, log_format="json" if as_json else log_format)
    names = None if tasks is None else [name.strip() for name in tasks.split(",")]
    chosen = scheduler.select(names)
    # Cancelled: told to stop while it still waited for the broker, with nothing to drain.
    stopped = suppress(asyncio.CancelledError)
    with stopped, asyncio.Runner(loop_factory=_fastest_loop()) as runner:
        settings = scheduler.settings
        ports = Ports(health_port or settings.health_port, metrics_port or settings.metrics_port)
        runner.run(_process(scheduler, [task.name for task in chosen], concurrency, ports))


@command(cli, "status")
def status(app: App = None, as_json: Json = False) -> None:
    """Where each loop's token is: waiting, ready, running, paused or lost; what waits for tasks."""
    scheduler = _load(app)

    async def found() -> tuple[list[Status], list[Backlog]]:
        async with _connected(scheduler) as program:
            loops = await program.survey.status()
            waiting = await backlogs(program.broker, scheduler.names, scheduler.tasks.values())
            return loops, waiting

    statuses, waiting = asyncio.run(found())
    display.statuses(scheduler, statuses, waiting, as_json)
    lost = any(status.where in (Where.LOST, Where.UNSEEDED) for status in statuses)
    if lost or any(backlog.ready is None for backlog in waiting):
        raise typer.Exit(1)


@command(cli, "next")
def upcoming(
    app: App = None,
    count: Annotated[int, typer.Option("-n", min=1, max=1000, help="How many per loop.")] = 5,
    as_json: Json = False,
) -> None:
    """The next times of each loop, from the code: no broker is asked."""
    scheduler = _load(app)
    now = SystemClock().now()
    ticks = [(loop, list(_ticks(loop, now, count))) for loop in scheduler.loops.values()]
    display.upcoming(scheduler, ticks, as_json)


@command(cli, "pause")
def pause(
    app: App = None,
    loop: Annotated[str | None, typer.Argument(metavar="LOOP")] = None,
    reason: Annotated[str, typer.Option(help="Told by status.")] = "paused by an operator",
    as_json: Json = False,
) -> None:
    """Have a loop wait until it is resumed. A run that is going on ends first."""
    _verb(app, loop, as_json, lambda program, found: program.verbs.pause(found, reason))


@command(cli, "resume")
def resume(
    app: App = None,
    loop: Annotated[str | None, typer.Argument(metavar="LOOP")] = None,
    now: Annotated[bool, typer.Option("--now", help="Run at once.")] = False,
    as_json: Json = False,
) -> None:
    """Have a paused loop go on, at its next nominal time."""
    _verb(app, loop, as_json, lambda program, found: program.verbs.resume(found, at_once=now))


@command(cli, "trigger")
def trigger(
    app: App = None,
    loop: Annotated[str | None, typer.Argument(metavar="LOOP")] = None,
    as_json: Json = False,
) -> None:
    """Have a loop run now, besides its schedule."""
    _verb(app, loop, as_json, lambda program, found: program.verbs.trigger(found))


@command(cli, "remove")
def remove(
    app: App = None,
    loop: Annotated[str | None, typer.Argument(metavar="LOOP")] = None,
    as_json: Json = False,
) -> None:
    """End a loop that was started at run time, or that the code does not have any more."""
    _verb(app, loop, as_json, lambda program, found: program.removal.remove(found), rights_to_start)


@command(cli, "history")
def history(
    app: App = None,
    loop: Annotated[str | None, typer.Argument(metavar="[LOOP]")] = None,
    since: Annotated[str, typer.Option(help="How far to look back, such as 1h.")] = "1h",
    limit: Annotated[int, typer.Option(min=1, help="At most the last so many.")] = 1000,
    as_json: Json = False,
) -> None:
    """What became of the loops: each run, each repair, what operators did, what was parked."""
    if app is not None and ":" not in app:
        app, loop = None, app
    scheduler, span = _load(app), _span("--since", since)

    async def told() -> list[JournalEntry]:
        async with _connected(scheduler) as program:
            last = deque[JournalEntry](maxlen=limit)
            async for entry in program.journal.entries(since=SystemClock().now() - span, loop=loop):
                if loop is not None or entry.loop != SUPERVISION.task:
                    last.append(entry)
            if not last and loop is not None:
                await program.loops.find(loop)  # one that was removed may have a history still
            return list(last)

    display.history(asyncio.run(told()), as_json)


@command(failed, "list")
def failed_list(
    app: App = None,
    task: OneTask = None,
    reason: OneReason = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 100,
    as_json: Json = False,
) -> None:
    """The parked messages."""
    scheduler = _load(app)
    which = Selection(reason=reason, task=task)
    display.parked_list(asyncio.run(_browse(scheduler, task, which, limit)), as_json)


@command(failed, "show")
def failed_show(
    app: App = None,
    message: Annotated[str | None, typer.Argument(metavar="ID")] = None,
    as_json: Json = False,
) -> None:
    """One parked message, whole."""
    app, name = _split_one(app, message, "the ID of a message")
    which = Selection(ids=frozenset([name]))
    found = asyncio.run(_browse(_load(app), None, which, limit=65_535))
    if not found:
        raise QueueNotFound(f"There is no parked message {name!r}: see `scheduler failed list`.")
    display.parked(found[0], as_json)


@command(failed, "replay")
def failed_replay(
    app: App = None,
    messages: Ids = None,
    everything: All = False,
    task: OneTask = None,
    reason: OneReason = None,
    rate: Annotated[str | None, typer.Option(help="No more than this, such as 10/s.")] = None,
    args: Annotated[str | None, typer.Option(help="Other arguments, as a JSON object.")] = None,
    as_json: Json = False,
) -> None:
    """Run parked messages again: each is sent back, confirmed, then taken out."""
    app, which = _selection(app, messages, everything, task, reason)
    scheduler, pace = _load(app), parse_rate(rate) if rate else None
    edited = _json_object(args) if args else None

    async def replayed() -> list[Parked]:
        async with _connected(scheduler) as program:
            tasks = _tasks(scheduler, task)
            return await program.failed.replay(tasks, which, rate=pace, args=edited)

    _tell_taken("replayed", asyncio.run(replayed()), which, as_json)


@command(failed, "purge")
def failed_purge(
    app: App = None,
    messages: Ids = None,
    everything: All = False,
    task: OneTask = None,
    reason: OneReason = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Delete parked messages."""
    app, which = _selection(app, messages, everything, task, reason)
    scheduler = _load(app)
    if not yes:
        typer.confirm("Delete parked messages for good?", abort=True, err=True)

    async def purged() -> list[Parked]:
        async with _connected(scheduler) as program:
            return await program.failed.purge(_tasks(scheduler, task), which)

    _tell_taken("purged", asyncio.run(purged()), which, as_json)


@command(topology, "show")
def topology_show(app: App = None, as_json: Json = False) -> None:
    """The exchanges, queues and bindings of the app, as a tree."""
    scheduler = _load(app)
    display.topology(scheduler.topology(), as_json)


@command(topology, "export")
def topology_export(
    app: App = None,
    vhost: Annotated[str, typer.Option(help="The virtual host they are for.")] = "/",
    as_json: Json = True,
) -> None:
    """RabbitMQ definitions JSON, for `rabbitmqctl import_definitions` or an operator."""
    display.print_json(definitions(_load(app).topology(), vhost))


@command(cli, "doctor")
def doctor(
    app: App = None,
    live: Annotated[
        bool, typer.Option("--live", help="Only ask whether the processor of this machine lives.")
    ] = False,
    health_port: HealthPort = None,
    as_json: Json = False,
) -> None:
    """Look for what would break the guarantees, and say what to change."""
    if live:
        return _ask_whether_live(app, health_port, as_json)
    scheduler = _load(app)

    async def findings() -> list[Finding]:
        async with _connected(scheduler) as program:
            return [finding async for finding in program.doctor.examine()]

    found = asyncio.run(findings())
    display.findings(found, as_json)
    if any(finding.verdict == "problem" for finding in found):
        raise typer.Exit(1)


def _span(option: str, text: str) -> timedelta:
    try:
        return parse_duration(text)
    except ScheduleError as error:
        raise UsageError(f"{option}: {error}") from None


async def _dev(app: Scheduler, span: timedelta | None) -> None:
    async with MemoryBroker() as broker:
        await Program(app, broker, SystemClock()).seeding.seed()
        await _work(_processor(app, broker, list(app.tasks), None), span)


@dataclass(frozen=True, slots=True)
class Ports:
    """Where a processor answers; None: nowhere."""

    health: int | None
    metrics: int | None


async def _process(
    app: Scheduler, tasks: Sequence[str], concurrency: int | None, ports: Ports
) -> None:
    if (this := asyncio.current_task()) is not None:
        _on_signal(this.cancel)
    broker = _broker(app, patient=True)
    ours = _processor(app, broker, tasks, concurrency)
    async with _observable(app, broker, ours.worker, ports), broker:
        require_fit(broker)
        with explaining_refusals(broker, rights_to_process(app.names)):
            await _work(ours, None)


@asynccontextmanager
async def _observable(
    app: Scheduler, broker: Broker, worker: Worker, ports: Ports
) -> AsyncGenerator[None]:
    pages: defaultdict[int, dict[str, WSGIApplication]] = defaultdict(dict)
    async with AsyncExitStack() as stack:
        if ports.health is not None:
            checked = await stack.enter_async_context(health.Health(broker, worker))
            pages[ports.health].update(checked.pages)
        if ports.metrics is not None:
            pages[ports.metrics]["/metrics"] = _metrics_page(app)
        for port, answers in pages.items():
            stack.enter_context(serving(port, answers))
        yield


def _metrics_page(app: Scheduler) -> WSGIApplication:
    if importlib.util.find_spec("prometheus_client") is None:
        raise SettingsError(
            "Metrics are asked for (--metrics-port, SCHEDULER_METRICS_PORT), and the package that "
            "makes them is not installed: pip install 'scheduler[metrics]'. Nothing was started."
        )
    from scheduler import metrics

    return metrics.page(metrics.instrument(app))


def _ask_whether_live(app: str | None, port: int | None, as_json: bool) -> None:
    # A probe comes every few seconds: the app is loaded only if nothing else tells the port.
    if (port := port or Settings().health_port or _load(app).settings.health_port) is None:
        raise UsageError(
            "No port is known at which the processor tells of its health: give --health-port or "
            "SCHEDULER_HEALTH_PORT to `scheduler run`, and the same to this."
        )
    live, why = health.ask(port)
    display.live(live, why, as_json)
    if not live:
        raise typer.Exit(1)


def _fastest_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's, where the extra `uvloop` is installed; None: asyncio's own."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    return importlib.import_module("uvloop").new_event_loop


def _processor(
    app: Scheduler, broker: Broker, tasks: Sequence[str], concurrency: int | None
) -> Processor:
    return processor(
        app,
        broker,
        SystemClock(),
        tasks=app.select(tasks),
        concurrency=concurrency or app.settings.concurrency,
        grace=app.settings.shutdown_grace,
    )


async def _work(ours: Processor, span: timedelta | None) -> None:
    """Run a processor until a signal, or until the span is over."""
    worker = ours.worker

    def stop() -> None:
        _on_signal(worker.abort)
        worker.stop()

    _on_signal(stop)
    if span is not None:
        asyncio.get_running_loop().call_later(span.total_seconds(), worker.stop)
    await ours.run()


def _on_signal(act: Callable[[], object]) -> None:
    """What a signal to stop does from now on."""
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, act)


def _load(reference: str | None, *, log_format: str | None = None) -> Scheduler:
    app = load_app(reference)
    style = log_format or app.settings.log_format
    if style not in ("text", "json"):
        raise UsageError(f"--log-format is text or json, got {style!r}.")
    logs.configure(app.settings.log_level, "json" if style == "json" else "text")
    app.listen(logs.log_event)
    if not app.tasks:
        raise UsageError(
            f"The app of namespace {app.namespace!r} has no tasks: register one with @app.periodic."
        )
    return app


def _broker(app: Scheduler, *, patient: bool = False) -> Broker:
    if is_embedded(app.settings):
        raise SettingsError(
            "memory:// lives within one process, so there is nothing to seed, run or ask beside "
            "it: use `scheduler dev`, or set SCHEDULER_BROKER_URL to a RabbitMQ."
        )
    return broker_of(app.settings, emit=app.events.emit, patient=patient)


@asynccontextmanager
async def _connected(app: Scheduler, rights: Rights | None = None) -> AsyncGenerator[Program]:
    rights = rights or rights_to_process(app.names)
    async with _broker(app) as broker:
        with explaining_refusals(broker, rights):
            yield Program(app, broker, SystemClock())


def _ticks(loop: Loop, moment: datetime, count: int) -> Iterator[datetime]:
    for _ in range(count):
        moment = loop.schedule.next_after(moment)
        yield moment


def _fail(error: SchedulerError, *, as_json: bool) -> NoReturn:
    display.error(error, as_json)
    raise typer.Exit(2 if isinstance(error, UsageError) else 1)


Verb = Callable[[Program, Loop], Coroutine[Any, Any, Report]]
IN_VAIN = (Did.NOT_PAUSED, Did.IS_PAUSED, Did.RUNNING, Did.NOT_THERE)


def _verb(
    app: str | None,
    name: str | None,
    as_json: bool,
    verb: Verb,
    needed: Callable[[Names], Rights] = rights_to_process,
) -> None:
    app, name = _split_one(app, name, "the name of a LOOP")
    scheduler = _load(app)

    async def done() -> Report:
        async with _connected(scheduler, needed(scheduler.names)) as program:
            return await verb(program, await program.loops.find(name))

    report = asyncio.run(done())
    display.report(report, as_json)
    if report.did in IN_VAIN:
        raise typer.Exit(1)


def _split(app: str | None, rest: list[str], what: str) -> tuple[str | None, list[str]]:
    """APP may be left out: an argument without a colon is none."""
    if app is not None and ":" not in app:
        app, rest = None, [app, *rest]
    if not rest:
        raise UsageError(f"The command needs {what}: see --help.")
    return app, rest


def _split_one(app: str | None, name: str | None, what: str) -> tuple[str | None, str]:
    app, names = _split(app, [name] if name else [], what)
    if len(names) > 1:
        raise UsageError(f"An app is named as {FORMS}, got {names[0]!r}.")
    return app, names[0]


def _selection(
    app: str | None,
    messages: list[str] | None,
    everything: bool,
    task: str | None,
    reason: str | None,
) -> tuple[str | None, Selection]:
    """Which messages a command means; all of them only if that was said."""
    if everything or task or reason:
        if messages or (app is not None and ":" not in app):
            raise UsageError("--all, --task and --reason go without IDs: leave out one of the two.")
        return app, Selection(reason=reason, task=task)
    app, ids = _split(app, messages or [], "the IDs of messages, --task, --reason or --all")
    return app, Selection(ids=frozenset(ids))


def _tasks(app: Scheduler, task: str | None) -> list[str]:
    return [spec.name for spec in app.select(None if task is None else [task])]


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise UsageError(f"--args is a JSON object, such as '{{\"n\": 1}}': {error}.") from None
    if not isinstance(value, dict):
        raise UsageError(f"--args is a JSON object, such as '{{\"n\": 1}}', got {text!r}.")
    return cast(dict[str, Any], value)


async def _browse(app: Scheduler, task: str | None, which: Selection, limit: int) -> list[Parked]:
    async with _connected(app) as program:
        return await program.failed.browse(_tasks(app, task), which, limit=limit)


def _tell_taken(done: str, found: list[Parked], which: Selection, as_json: bool) -> None:
    missing = sorted((which.ids or frozenset()) - {parked.id for parked in found})
    display.taken(done, found, missing, as_json)
    if missing:
        raise typer.Exit(1)
