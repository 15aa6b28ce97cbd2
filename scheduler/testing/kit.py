"""Run an app in virtual time: for a test, or for a whole schedule at once."""

import asyncio
import json
from collections.abc import Generator, Iterable
from contextlib import AsyncExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from scheduler.app import Scheduler
from scheduler.brokers.memory.broker import MemoryBroker
from scheduler.brokers.memory.server import MemoryServer
from scheduler.errors import UsageError
from scheduler.events import Event, ProcessorStarted
from scheduler.program import Program, processor
from scheduler.protocol.messages import LEAD, PREFIX, Message
from scheduler.protocol.tokens import decode, is_token
from scheduler.protocol.topology import Exchange, Topology
from scheduler.queues.failed import read_parked
from scheduler.tasks.tasks import Task
from scheduler.testing.records import Parked, Ran, Recorder, Records, Sent, shown, table_of
from scheduler.testing.virtual_time import VirtualTimeLoop, run_virtually
from scheduler.timing.durations import Duration, parse_duration
from scheduler.timing.moments import LoopClock, moment_of

DEFAULT_START = datetime(2026, 1, 1, tzinfo=UTC)
TICK = timedelta(milliseconds=1)
"""The span within which a message counts as due: the timers of a broker count so."""


class Kit:
    """Run an app in virtual time: on its own broker, seeded, with one processor.

    Open it with `async with` in virtual time: the fixture `scheduler_kit` is open, in a test that
    runs so; elsewhere use `run_virtually`. Inside, send to tasks, and start and stop keyed loops,
    as in the app itself.

    Time passes only in `advance`, `advance_to` and in awaits of the test itself, and as long as a
    run takes. So a run must not wait for anything outside, such as a socket: the clock would jump
    to its timeout. A `def` task may, in its thread.

    Args:
        tasks: the tasks of the processor; None: all. Messages to others wait.
        start: the aware moment at which it begins.
    """

    def __init__(
        self,
        app: Scheduler,
        *,
        tasks: Iterable[Task[..., Any] | str] | None = None,
        start: datetime = DEFAULT_START,
    ) -> None:
        names = [each.spec.name if isinstance(each, Task) else each for each in tasks or ()]
        self._app = app
        self._tasks = app.select(None if tasks is None else names)
        self._start = in_utc("start", start)
        self._recorder = Recorder()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await self.begin(stack)
            await self.run_until_idle()
            self._opened = stack.pop_all()
        return self

    async def begin(self, stack: AsyncExitStack) -> None:
        """Seed, and run a processor until the stack is closed."""
        self._loop = _virtual_time()
        self._clock = LoopClock(self._start - timedelta(seconds=self._loop.time()))
        self._server = MemoryServer(self._clock)
        self._broker = await stack.enter_async_context(MemoryBroker(self._server))
        stack.enter_context(self._app.events.listening(self._recorder.record))
        await self._broker.declare(_exchanges_of_others(self._app))
        await Program(self._app, self._broker, self._clock).seeding.seed()
        working = await stack.enter_async_context(MemoryBroker(self._server))
        self._connection = self._server.connections[-1]
        process = processor(
            self._app,
            working,
            self._clock,
            tasks=self._tasks,
            concurrency=self._app.settings.concurrency,
            grace=self._app.settings.shutdown_grace,
            supervises=False,
        )
        running = asyncio.create_task(process.run(), name="processor of the kit")

        async def end() -> None:
            process.worker.stop()
            await running

        stack.push_async_callback(end)
        started = asyncio.Event()
        with self._app.events.listening(lambda _: started.set(), ProcessorStarted):
            starting = asyncio.create_task(started.wait())
            await asyncio.wait([running, starting], return_when=asyncio.FIRST_COMPLETED)
        starting.cancel()
        if running.done():
            await running  # the error of its start

    async def __aexit__(self, *exception: object) -> None:
        """Stop as a processor does: current runs may finish, within the grace of the settings.

        Its records stay available.
        """
        await self._opened.aclose()

    def __repr__(self) -> str:
        return f"<Kit of {self._app.namespace}>"

    @property
    def now(self) -> datetime:
        """Return the current time, in UTC."""
        return self._clock.now()

    @property
    def sent(self) -> Records[Sent]:
        """Return the messages that were sent, by the test or by runs."""
        return Records(self._app, self._recorder.sent)

    @property
    def runs(self) -> Records[Ran]:
        """Return the runs that have ended, including retries."""
        return Records(self._app, self._recorder.runs)

    @property
    def parked(self) -> Records[Parked]:
        """Return the messages that are parked now."""
        failed, queues = self._app.names.failed, self._server.queues.values()
        return Records(
            self._app,
            [
                Parked.of(read_parked(letter.message, queue.name, letter.routing_key))
                for queue in queues
                if queue.name == failed or queue.name.startswith(f"{failed}.")
                for letter in queue.letters()
            ],
        )

    async def run_until_idle(self) -> None:
        """Run everything that is due now, and all that this sends, until nothing runs any more.

        Later messages wait, retries too. Time passes as long as runs take.
        """
        while (pause := await self._loop.idle()) is not None:
            if pause > TICK.total_seconds() and not self._is_busy():
                return
            await asyncio.sleep(pause)

    async def advance(self, span: Duration) -> None:
        """Let time pass, such as "1d", and run everything due in it; then be idle."""
        await self.advance_to(self.now + parse_duration(span))

    async def advance_to(self, moment: datetime) -> None:
        """Let time pass until a moment, and run everything due before; then be idle.

        Raises:
            UsageError: it is not aware, or has passed.
        """
        span = in_utc("moment", moment) - self.now
        if span < timedelta(0):
            raise UsageError(f"{moment.isoformat()} has passed: it is {self.now.isoformat()}.")
        await asyncio.sleep(span.total_seconds())
        await self.run_until_idle()

    async def publish(self, exchange: str, routing_key: str, body: Any) -> None:
        """Publish as another application does, to an exchange that tasks subscribe to.

        Args:
            body: bytes as they are, else any JSON value.

        Raises:
            Unroutable: no task has subscribed to this.
        """
        is_raw = isinstance(body, bytes)
        message = Message(
            body if is_raw else json.dumps(body).encode(),
            content_type=None if is_raw else "application/json",
        )
        await self._broker.publish(message, exchange=exchange, routing_key=routing_key)

    def assert_ran(self, task: Task[..., Any] | str, *, times: int | None = None) -> Records[Ran]:
        """Assert that a task has run, and return its runs; else show what ran instead.

        Args:
            times: how often exactly, each attempt counted; None: once at least.
        """
        __tracebackhide__ = True
        ran = Records(self._app, [run for run in self.runs.of(task) if run.skipped is None])
        if not ran if times is None else len(ran) != times:
            name = task.spec.name if isinstance(task, Task) else task
            expected = "at least once" if times is None else f"{times} times"
            raise AssertionError(
                f"Expected {name} to run {expected}; it ran {len(ran)} times until "
                f"{shown(self.now)}. Runs:\n{table_of(self._recorder.runs)}"
            )
        return ran

    def _is_busy(self) -> bool:
        """Return whether something runs, or will as soon as its task's rate lets it."""
        if any(self._is_due(hold.entry.letter.message) for hold in self._connection.holds):
            return True
        queues = self._server.queues
        paced = [task.name for task in self._tasks if task.rate and not task.ordered]
        return any(queues[self._app.names.processor_queue(name)].letters() for name in paced)

    def _is_due(self, message: Message) -> bool:
        """Return whether an unacked message has reached its time, rather than a little before."""
        if LEAD not in message.headers:
            return True
        if is_token(message):
            due_at = decode(message, self._app.namespace).due_at
        else:
            due_at = moment_of(message.headers[f"{PREFIX}due-at-ms"])
        return due_at <= self.now


def _virtual_time() -> VirtualTimeLoop:
    loop = asyncio.get_running_loop()
    if not isinstance(loop, VirtualTimeLoop):
        raise UsageError(
            "A Kit needs virtual time, and this event loop is a real one: use the fixture "
            "scheduler_kit in your test, or run it with scheduler.testing.run_virtually."
        )
    return loop


def _exchanges_of_others(app: Scheduler) -> Topology:
    """Return the foreign exchanges that must exist already, with assumed types."""
    there = (each for each in app.topology().exchanges if each.passive)
    return Topology(tuple(Exchange(each.name, each.type) for each in there), (), ())


def simulate(app: Scheduler, span: Duration, *, start: datetime = DEFAULT_START) -> list[Event]:
    """Seed and run an app on an embedded broker for some virtual time.

    Args:
        span: how much virtual time passes, such as "365d".
        start: the aware moment at which it begins.

    Returns:
        All events, in order.
    """
    return run_virtually(_simulate(app, parse_duration(span), in_utc("start", start)))


@contextmanager
def recording(app: Scheduler) -> Generator[list[Event]]:
    """Record the events of an app during the block, in a list that grows."""
    events: list[Event] = []
    with app.events.listening(events.append):
        yield events


def in_utc(name: str, moment: datetime) -> datetime:
    """Return a moment in UTC: in another zone, Python would subtract wall-clock times.

    Raises:
        UsageError: it is not aware.
    """
    if moment.tzinfo is None:
        raise UsageError(
            f"The {name} must be an aware datetime, got {moment.isoformat()} without zone."
        )
    return moment.astimezone(UTC)


async def _simulate(app: Scheduler, span: timedelta, start: datetime) -> list[Event]:
    with recording(app) as events:
        async with AsyncExitStack() as stack:
            await Kit(app, start=start).begin(stack)
            await asyncio.sleep(span.total_seconds())
    return events
