"""Serve until stopped: `scheduler run`, `scheduler dev` with the embedded broker, `dashboard`."""

import asyncio
import gc
import importlib
import importlib.util
import inspect
import logging
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from scheduler import dashboard
from scheduler.app import Scheduler
from scheduler.brokers.contract import Broker
from scheduler.brokers.memory.broker import MemoryBroker
from scheduler.brokers.memory.server import MemoryServer
from scheduler.cli.arguments import (
    AppArgument,
    HealthPort,
    Json,
    LogFormat,
    command,
    new_group,
    tasks_to_complete,
)
from scheduler.cli.connecting import remote_broker
from scheduler.cli.loading import in_lifespan, object_named, ready_app
from scheduler.cli.printing import print_line
from scheduler.cli.schedules import warn_of_doubts
from scheduler.control.doctor import explaining_refusals, require_fit
from scheduler.errors import SchedulerError, SettingsError, UsageError
from scheduler.processor.health import Health, Page, Response, serving
from scheduler.processor.processor import CLOSING_TIMEOUT, Processor
from scheduler.processor.watchdog import Watchdog
from scheduler.program import Program, processor
from scheduler.protocol.administration import rights_to_process
from scheduler.queues.about import DISTRIBUTION
from scheduler.timing.durations import parse_duration
from scheduler.timing.moments import SystemClock
from scheduler.user_code import run_despite

COLLECT_AFTER = 10_000  # long-lived objects
DEFAULT_PORT = 8088  # of the dashboard


cli = new_group()


@command(cli, "dev", asks=False)
def dev(
    reference: AppArgument = None,
    span: Annotated[
        str | None, typer.Option("--for", help="Stop after this time, such as 10s; else at Ctrl-C.")
    ] = None,
    with_dashboard: Annotated[
        bool, typer.Option("--dashboard", help="Serve the dashboard, too, at port 8088.")
    ] = False,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="The port of the dashboard; 0: any free port."),
    ] = None,
    log_format: LogFormat = None,
    as_json: Json = False,
) -> None:
    """Run everything in this process: no RabbitMQ is needed.

    The command declares queues, starts loops and runs tasks on an embedded broker, which ends with
    the command.

    Example: scheduler dev shop.py --dashboard
    """
    if with_dashboard and port is None:
        port = DEFAULT_PORT
    if port is not None:
        dashboard.require()
    app = ready_app(reference, log_format="json" if as_json else log_format)
    warn_of_doubts(app.loops.values())
    ends_after = None if span is None else parse_duration(span, "--for")
    _end_despite(_completed(_develop(app, ends_after, port), None))


@command(cli, "run", asks=False)
def run(
    reference: AppArgument = None,
    tasks: Annotated[
        str | None,
        typer.Option(
            autocompletion=tasks_to_complete, help="Run only these tasks, separated by commas."
        ),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="The maximum number of concurrent runs, over all tasks; else "
            "SCHEDULER_CONCURRENCY, else 100.",
        ),
    ] = None,
    health_port: HealthPort = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65535,
            help="The port of /metrics, which may be the same; else "
            "SCHEDULER_METRICS_PORT, else none.",
        ),
    ] = None,
    log_format: LogFormat = None,
    as_json: Json = False,
) -> None:
    """Take messages and run tasks.

    On SIGTERM or Ctrl-C, the processor takes no more messages, and waits for its runs to end. A
    second signal stops it at once.

    Example: scheduler run shop:app --concurrency 20 --health-port 8000
    """
    app = ready_app(reference, log_format="json" if as_json else log_format)
    names = None if tasks is None else [name.strip() for name in tasks.split(",")]
    chosen = [task.name for task in app.select(names)]
    health, metrics = app.settings.health_port, app.settings.metrics_port
    ports = health_port or health, metrics_port or metrics
    _spare_the_collector()
    _end_despite(_completed(_process(app, chosen, concurrency, *ports), fastest_loop()))


async def _develop(app: Scheduler, span: timedelta | None, port: int | None) -> int:
    server = MemoryServer()
    _stop_on_signal()
    async with MemoryBroker(server) as broker, _shown(app, server, port):
        await Program(app, broker, SystemClock()).seeding.seed()
        ours = _processor(app, broker, list(app.tasks), None)
        with Watchdog(app.events.emit):
            return await _work(ours, span)


@asynccontextmanager
async def _shown(app: Scheduler, server: MemoryServer, port: int | None) -> AsyncGenerator[None]:
    """Serve a dashboard at a port inside the block, if one is given."""
    if port is None:
        yield
        return
    from scheduler.dashboard.serving import serving

    pages = dashboard.dashboard(app, connect=lambda: MemoryBroker(server))
    async with serving(pages, "127.0.0.1", port) as address:
        print_line(f"the dashboard: {address}")
        yield


async def _process(
    app: Scheduler,
    tasks: Sequence[str],
    concurrency: int | None,
    health: int | None,
    metrics: int | None,
) -> int:
    _stop_on_signal()
    broker = remote_broker(app, patient=True)
    ours = _processor(app, broker, tasks, concurrency)
    with Watchdog(app.events.emit) as watchdog:
        checks = Health(broker, ours.worker, watchdog)
        async with _observable(app, checks, health, metrics), broker:
            require_fit(broker)
            with explaining_refusals(broker, rights_to_process(app.names)):
                return await _work(ours, None)


@asynccontextmanager
async def _observable(
    app: Scheduler, checks: Health, health: int | None, metrics: int | None
) -> AsyncGenerator[None]:
    """Serve the health and the metrics of a processor at their ports, if they have any."""
    pages: dict[int, dict[str, Page]] = {}
    async with AsyncExitStack() as stack:
        if health is not None:
            await stack.enter_async_context(checks)
            pages.setdefault(health, {}).update(checks.pages)
        if metrics is not None:
            pages.setdefault(metrics, {})["/metrics"] = _metrics_page(app)
        for port, answers in pages.items():
            stack.enter_context(serving(port, answers))
        yield


def _metrics_page(app: Scheduler) -> Page:
    if importlib.util.find_spec("prometheus_client") is None:
        raise SettingsError(
            "Metrics are enabled (--metrics-port, SCHEDULER_METRICS_PORT), but their package is "
            f"not installed: pip install '{DISTRIBUTION}[metrics]'. "
            "Nothing was started."
        )
    from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

    from scheduler import metrics

    registry = metrics.instrument(app)
    return lambda: Response(generate_latest(registry), CONTENT_TYPE_LATEST)


def _completed(
    work: Coroutine[Any, Any, int], new_loop: Callable[[], asyncio.AbstractEventLoop] | None
) -> int:
    """Run a processor to its end; return how many of its threads and asyncio tasks have not ended.

    Python would wait for each of them.
    """
    left, runner = 0, asyncio.Runner(loop_factory=new_loop)
    try:
        left += _uninterrupted(runner.get_loop(), work)
    except asyncio.CancelledError:
        pass  # stopped while it still waited for the broker, with nothing to drain
    finally:
        left += _uninterrupted(runner.get_loop(), _abandon_rest())
        if not left:
            runner.close()
    return left


def _uninterrupted(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, int]) -> int:
    """Run a coroutine to its end."""
    task = loop.create_task(work)
    task.add_done_callback(lambda _: loop.stop())
    run_despite(loop, task.done)
    return task.result()


async def _abandon_rest() -> int:
    """Cancel all other asyncio tasks; return how many do not end, and are abandoned.

    The threads of `asyncio.to_thread` count as one.
    """
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for each in others:
        each.cancel()
    left = await _unfinished(others)
    for each in left:
        logging.getLogger(__name__).warning(
            "%s ignores its cancellation: the process ends without it", each.get_name()
        )
    loop = asyncio.get_running_loop()
    generators = loop.create_task(loop.shutdown_asyncgens(), name="asynchronous generators")
    threads = loop.create_task(loop.shutdown_default_executor(), name="asyncio.to_thread")
    for each in (late := await _unfinished({generators, threads})):
        logging.getLogger(__name__).warning(
            "%s: a call has not ended: the process ends without it", each.get_name()
        )
    return len(left | late)


async def _unfinished(tasks: set[asyncio.Task[Any]]) -> set[asyncio.Task[Any]]:
    """Wait for tasks, up to a limit; return those that have not ended."""
    if not tasks:
        return tasks
    return (await asyncio.wait(tasks, timeout=CLOSING_TIMEOUT.total_seconds()))[1]


def _stop_on_signal() -> None:
    """Cancel the running task on a stop signal, while it has nothing to drain."""
    if (this := asyncio.current_task()) is not None:
        on_signal(lambda _: this.cancel())


def on_signal(act: Callable[[str], object]) -> None:
    """Call a function with the name of a stop signal, in the running event loop."""
    loop = asyncio.get_running_loop()

    def hand_over(number: int, _: object) -> None:
        loop.call_soon_threadsafe(act, signal.Signals(number).name)

    for number in (signal.SIGTERM, signal.SIGINT):
        try:
            loop.add_signal_handler(number, act, number.name)
        except NotImplementedError:  # on Windows
            signal.signal(number, hand_over)


def _spare_the_collector() -> None:
    """Exclude imported objects from garbage collection, so that it scans only later ones.

    Repeated scans of them took an eighth of a processor's time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)


def fastest_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's event loop, if that extra is installed; None: asyncio's own."""
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


async def _work(ours: Processor, span: timedelta | None) -> int:
    """Run a processor until a signal, or the end of the span; return how many threads are left."""
    worker = ours.worker

    def stop(signalled: str) -> None:
        on_signal(lambda _: worker.abort())
        worker.stop(signalled)

    on_signal(stop)
    if span is not None:
        asyncio.get_running_loop().call_later(span.total_seconds(), worker.stop)
    with in_lifespan():
        try:
            await ours.run()
        except asyncio.CancelledError:
            raise SchedulerError(
                "The processor was stopped: user code has cancelled its asyncio task. Cancel only "
                "the tasks that your code has started, not all of asyncio.all_tasks()."
            ) from None
    return worker.executions.threads.going


def _end_despite(left: int) -> None:
    """End the process even if threads and asyncio tasks are left."""
    if left:
        sys.stdout.flush()
        os._exit(0)


@command(cli, "dashboard", asks=False, prints=False)
def show(
    reference: AppArgument = None,
    host: Annotated[
        str,
        typer.Option(
            help="The address to listen on. If other machines can reach it, --access, "
            "--basic-auth-file, --user-header or --read-only is required."
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port; 0: any free port.")
    ] = DEFAULT_PORT,
    read_only: Annotated[
        bool,
        typer.Option("--read-only", help="Disable all actions; the dashboard is read-only."),
    ] = False,
    access: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="A function of the request that returns a scheduler.dashboard.Visitor, or None.",
        ),
    ] = None,
    basic_auth_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A file with a user on each line: NAME:PASSWORD or NAME:PASSWORD:ACTIONS. ACTIONS "
            "is all, read-only, or a list such as pause,resume,arguments.",
        ),
    ] = None,
    user_header: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The header in which an authenticating proxy names the user. Needs --trust.",
        ),
    ] = None,
    trust: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ADDRESS", help="An address or a network of that proxy. Can be repeated."
        ),
    ] = None,
    root_path: Annotated[
        str, typer.Option(metavar="PREFIX", help="The path at which a proxy shows the dashboard.")
    ] = "",
    redact: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="A function of a task's name and a value that returns the value to show.",
        ),
    ] = None,
    log_format: LogFormat = None,
) -> None:
    """Serve a dashboard of loops, runs and failures.

    The dashboard follows the journal and the roster, so it works without a processor. The command
    needs the extra `dashboard`.

    Example: scheduler dashboard shop:app --port 8080
    """
    dashboard.require()
    app = ready_app(reference, log_format=log_format)
    remote_broker(app)  # rejects the embedded one
    if sum(each is not None for each in (access, basic_auth_file, user_header)) > 1:
        raise UsageError("Give one of --access, --basic-auth-file and --user-header.")
    if (user_header is None) != (not trust):
        raise UsageError("--user-header and --trust belong together: give both, or none.")
    pages = dashboard.dashboard(
        app,
        access=_access(access, basic_auth_file, user_header, trust or (), host, read_only),
        read_only=read_only,
        redact=None if redact is None else _function(redact, "--redact", "a task and a value"),
    )
    _spare_the_collector()
    with asyncio.Runner(loop_factory=fastest_loop()) as runner:
        runner.run(_serve(app, pages, host, port, root_path))


def _access(
    reference: str | None,
    users: Path | None,
    header: str | None,
    trusted: Sequence[str],
    host: str,
    read_only: bool,
) -> "dashboard.Access | None":
    """Return the access rules, which other machines need; None: this machine alone."""
    from scheduler.dashboard.access import Visitor, basic_access, header_access, is_local

    if header is not None:
        return header_access(header, trusted)
    if users is not None:
        try:
            return basic_access(users.read_text("utf-8-sig").splitlines())
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise UsageError(f"--basic-auth-file: {users} cannot be read: {why}.") from None
    if reference is not None:
        return _function(reference, "--access", "the request")
    if is_local(host):
        return None
    if not read_only:
        raise UsageError(
            f"Other machines can reach {host!r}, and would have all rights. Nothing was started: "
            "give --access, --basic-auth-file, --user-header or --read-only, or omit --host."
        )
    return lambda _: Visitor("anybody", "read-only")


def _function(reference: str, option: str, of: str) -> Any:
    """Import the function that an option names."""
    found = object_named(reference, option)
    if not callable(found) or inspect.isclass(found):
        raise UsageError(f"{option} names a function of {of}, got {reference!r}.")
    return found


async def _serve(app: Scheduler, pages: Any, host: str, port: int, root_path: str) -> None:
    from scheduler.dashboard.serving import prefixed, serving

    stopped = asyncio.Event()
    on_signal(lambda _: stopped.set())
    if prefix := f"/{root_path.strip('/')}".rstrip("/"):
        pages = prefixed(pages, prefix)
    async with serving(pages, host, port) as address:
        print_line(f"the dashboard of {app.namespace}: {address}")
        await stopped.wait()
