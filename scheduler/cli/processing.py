"""Processors in this process: `scheduler run`, and `scheduler dev` with a broker of its own."""

import asyncio
import gc
import importlib
import importlib.util
import logging
import os
import sys
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from wsgiref.types import WSGIApplication

from scheduler import dashboard
from scheduler.app import Scheduler
from scheduler.brokers.contract import Broker
from scheduler.brokers.memory.broker import MemoryBroker
from scheduler.brokers.memory.server import MemoryServer
from scheduler.cli.arguments import span_of
from scheduler.cli.connecting import remote_broker
from scheduler.cli.dashboarding import DEFAULT_PORT
from scheduler.cli.importing import in_lifespan
from scheduler.cli.loading import ready_app
from scheduler.cli.meanings import warn_of_doubts
from scheduler.cli.printing import print_line
from scheduler.cli.signals import on_signal
from scheduler.cli.versions import DISTRIBUTION
from scheduler.control.doctor import explaining_refusals, require_fit
from scheduler.errors import SettingsError
from scheduler.events import Emit
from scheduler.processor.health import Health
from scheduler.processor.pages import serving
from scheduler.processor.processor import Processor
from scheduler.processor.watchdog import Watchdog
from scheduler.processor.worker import Worker
from scheduler.program import Program, processor
from scheduler.protocol.rights import rights_to_process
from scheduler.timing.clock import SystemClock

COLLECT_AFTER = 10_000  # objects


@dataclass(frozen=True, slots=True)
class Ports:
    """Where a processor answers; None: nowhere."""

    health: int | None
    metrics: int | None


def dev(
    reference: str | None,
    *,
    span: str | None,
    log_format: str | None,
    shows: bool = False,
    port: int | None = None,
) -> None:
    if shows:
        dashboard.require()
    app = ready_app(reference, log_format=log_format)
    warn_of_doubts(app.loops.values())
    ends_after = None if span is None else span_of("--for", span)
    at = (DEFAULT_PORT if port is None else port) if shows else None
    _end_despite(_completed(_develop(app, ends_after, at), None))


def run(
    reference: str | None,
    *,
    tasks: str | None,
    concurrency: int | None,
    health_port: int | None,
    metrics_port: int | None,
    log_format: str | None,
) -> None:
    app = ready_app(reference, log_format=log_format)
    names = None if tasks is None else [name.strip() for name in tasks.split(",")]
    chosen = [task.name for task in app.select(names)]
    settings = app.settings
    ports = Ports(health_port or settings.health_port, metrics_port or settings.metrics_port)
    _spare_the_collector()
    _end_despite(_completed(_process(app, chosen, concurrency, ports), fastest_loop()))


async def _develop(app: Scheduler, span: timedelta | None, port: int | None) -> int:
    server = MemoryServer()
    _stop_on_signal()
    async with MemoryBroker(server) as broker, _shown(app, server, port):
        await Program(app, broker, SystemClock()).seeding.seed()
        ours = _processor(app, broker, list(app.tasks), None)
        return await _work(ours, app.events.emit, span)


@asynccontextmanager
async def _shown(app: Scheduler, server: MemoryServer, port: int | None) -> AsyncGenerator[None]:
    """Have a dashboard at a port inside the block, if one is given."""
    if port is None:
        yield
        return
    from scheduler.dashboard.serving import serving

    pages = dashboard.dashboard(app, connect=lambda: MemoryBroker(server))
    async with serving(pages, "127.0.0.1", port) as address:
        print_line(f"the dashboard: {address}")
        yield


async def _process(
    app: Scheduler, tasks: Sequence[str], concurrency: int | None, ports: Ports
) -> int:
    _stop_on_signal()
    broker = remote_broker(app, patient=True)
    ours = _processor(app, broker, tasks, concurrency)
    async with _observable(app, broker, ours.worker, ports), broker:
        require_fit(broker)
        with explaining_refusals(broker, rights_to_process(app.names)):
            return await _work(ours, app.events.emit, None)


@asynccontextmanager
async def _observable(
    app: Scheduler, broker: Broker, worker: Worker, ports: Ports
) -> AsyncGenerator[None]:
    pages: defaultdict[int, dict[str, WSGIApplication]] = defaultdict(dict)
    async with AsyncExitStack() as stack:
        if ports.health is not None:
            checked = await stack.enter_async_context(Health(broker, worker))
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
            f"makes them is not installed: pip install '{DISTRIBUTION}[metrics]'. "
            "Nothing was started."
        )
    from scheduler import metrics

    return metrics.page(metrics.instrument(app))


def _completed(
    work: Coroutine[Any, Any, int], new_loop: Callable[[], asyncio.AbstractEventLoop] | None
) -> int:
    """Run a processor to its end; returns how many of its threads have not ended.

    What user code starts in the event loop may raise SystemExit, say: asyncio lets go of the loop
    for that, with all other runs, and so would the next processor that gets the same message.
    """
    # Cancelled: told to stop while it still waited for the broker, with nothing to drain.
    with suppress(asyncio.CancelledError), asyncio.Runner(loop_factory=new_loop) as runner:
        task = runner.get_loop().create_task(work)
        while True:
            try:
                return runner.get_loop().run_until_complete(task)
            except (SystemExit, KeyboardInterrupt) as error:
                if task.done():
                    raise
                logging.getLogger(__name__).error(
                    "an asyncio task raised %s: the processor goes on",
                    type(error).__name__,
                    exc_info=error,
                )
    return 0


def _stop_on_signal() -> None:
    """Have a signal to stop cancel the running task, which has nothing to drain yet."""
    if (this := asyncio.current_task()) is not None:
        on_signal(lambda _: this.cancel())


def _spare_the_collector() -> None:
    """Have the garbage collector look at what runs leave behind, not at all that was imported.

    Else it does so again and again: it took an eighth of a processor's time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)


def fastest_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
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


async def _work(ours: Processor, emit: Emit, span: timedelta | None) -> int:
    """Run a processor until a signal, or until the span is over; how many threads are left then."""
    worker = ours.worker

    def stop(signalled: str) -> None:
        on_signal(lambda _: worker.abort())
        worker.stop(signalled)

    on_signal(stop)
    if span is not None:
        asyncio.get_running_loop().call_later(span.total_seconds(), worker.stop)
    with Watchdog(emit), in_lifespan():
        await ours.run()
    return ours.threads.going


def _end_despite(threads: int) -> None:
    """End the process though so many threads are at work: Python would wait for them."""
    if threads:
        sys.stdout.flush()
        os._exit(0)
