"""Test an app in virtual time, on an embedded broker, with no set-up.

::

    from scheduler.testing import Kit, eager, simulate

    async def test_an_sms_is_tried_again_while_the_provider_is_busy(scheduler_kit: Kit):
        await send_sms.send("+12025550101", "Hello")
        await scheduler_kit.run_until_idle()   # what is due now has run
        await scheduler_kit.advance("11s")     # so much time passes, with all that happens in it
        scheduler_kit.assert_ran(send_sms, times=3)

    async def test_a_booking_sends_its_confirmation():
        with eager(app):                       # what is sent runs at once, in place
            await book("table 4")

    def test_the_report_runs_on_working_days():
        events = simulate(app, "14d", start=datetime(2026, 6, 1, tzinfo=UTC))
        assert len([e for e in events if isinstance(e, RunStarted)]) == 10

The fixture `scheduler_kit` comes with the package: it makes a kit of the app that your own fixture
`scheduler_app` returns. Without pytest, `run_virtually` runs a coroutine that opens a `Kit`.
"""

import asyncio
import json
import selectors
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping
from concurrent.futures import Executor
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn, Self, TypeVar, TypeVarTuple

from scheduler.app import Scheduler
from scheduler.brokers.contract import Delivery
from scheduler.brokers.memory.broker import MemoryBroker
from scheduler.brokers.memory.server import MemoryServer
from scheduler.control.rows import arguments_in
from scheduler.errors import UnknownLoop, UsageError
from scheduler.events import (
    CallNotSent,
    CallSending,
    CallSent,
    Event,
    ProcessorStarted,
    RunFinished,
)
from scheduler.middleware import Lifespan
from scheduler.processor.runs import Executions, Run
from scheduler.processor.shutdown import Shutdown
from scheduler.processor.threads import Threads
from scheduler.program import Program, processor
from scheduler.protocol.calls import decode_call
from scheduler.protocol.messages import LEAD, PREFIX, Message
from scheduler.protocol.tokens import Ending, decode, is_token
from scheduler.protocol.topology import Exchange, Topology
from scheduler.queues.failed import ParkedMessage, read_parked
from scheduler.spelling import no_such
from scheduler.tasks.tasks import Task
from scheduler.timing.durations import Duration, parse_duration
from scheduler.timing.durations import shown as value_shown
from scheduler.timing.moments import LoopClock, SystemClock, moment_of, utc_of

__all__ = [
    "DEFAULT_START",
    "Kit",
    "Parked",
    "Ran",
    "Records",
    "Sent",
    "VirtualTimeLoop",
    "eager",
    "recording",
    "run_virtually",
    "simulate",
]


@dataclass(frozen=True, slots=True, repr=False)
class Sent:
    """Record a message that was sent, and confirmed.

    Attributes:
        arguments: as they travel.
        due_at: when it is due.
    """

    task: str
    arguments: Mapping[str, Any]
    due_at: datetime
    headers: Mapping[str, Any]
    message_id: str

    @classmethod
    def of(cls, event: CallSending) -> "Sent":
        return cls(event.task, event.arguments, event.due_at, dict(event.headers), event.message_id)

    @property
    def loop(self) -> str:
        return self.task

    def __repr__(self) -> str:
        return f"Sent({_call(self.task, self.arguments)}, due {shown(self.due_at)})"


@dataclass(frozen=True, slots=True, repr=False)
class Ran:
    """Record an attempt to run a task, which has ended.

    Attributes:
        loop: the loop; for a message that was sent, its task.
        key: which of the task's loops it is; empty for the task's own.
        seq: which tick of the loop; None for a message that was sent.
        attempt: counted from 1.
        ending: succeeded, retried, escalated, stopped, skipped or cancelled.
        error: its exception; or who has cancelled it.
        skipped: why it was not run at all.
    """

    task: str
    loop: str
    key: str
    seq: int | None
    attempt: int
    scheduled_at: datetime
    started_at: datetime
    duration: timedelta
    ending: Ending
    error: Exception | None
    skipped: str | None
    message_id: str = field(repr=False)

    @classmethod
    def of(cls, event: RunFinished) -> "Ran":
        same = ("seq", "attempt", "scheduled_at", "started_at", "duration", "ending", "error")
        values = {name: getattr(event, name) for name in (*same, "skipped", "message_id")}
        return cls(event.loop.task, str(event.loop), event.loop.key, **values)

    def __repr__(self) -> str:
        return f"Ran({self.line})"

    @property
    def line(self) -> str:
        number = "" if self.seq is None else f" #{self.seq}"
        attempt = f", attempt {self.attempt}" if self.attempt > 1 else ""
        why = f": {self.error!r}" if self.error else f": {self.skipped}" if self.skipped else ""
        return f"{self.loop}{number}{attempt} at {shown(self.started_at)} {self.ending}{why}"


@dataclass(frozen=True, slots=True, repr=False)
class Parked:
    """Record a message that is parked.

    Attributes:
        task: empty if unknown.
        loop: the loop; for a message that was sent, its task.
        reason: one of `scheduler.queues.failed.Reason`.
        error: in a line.
        arguments: None if it has none.
    """

    task: str
    loop: str
    reason: str
    error: str
    arguments: Mapping[str, Any] | None
    attempts: int
    message: Message

    @classmethod
    def of(cls, parked: ParkedMessage) -> "Parked":
        task, loop, message = parked.task, parked.loop, parked.message
        arguments = arguments_in(message)
        return cls(task, loop, parked.reason, parked.error, arguments, parked.attempts, message)

    def __repr__(self) -> str:
        return f"Parked({_call(self.loop, self.arguments)}, {self.reason}: {self.error})"


class Recorder:
    """Collect sent messages and runs from the events of an app."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self.runs: list[Ran] = []
        self._sending: dict[str, CallSending] = {}

    def record(self, event: Event) -> None:
        match event:
            case CallSending():
                self._sending[event.message_id] = event
            case CallSent():
                self.sent.append(Sent.of(self._sending.pop(event.message_id)))
            case CallNotSent():
                self._sending.pop(event.message_id, None)
            case RunFinished():
                self.runs.append(Ran.of(event))
            case _:
                pass


E = TypeVar("E", Sent, Ran, Parked)


class Records(list[E]):
    """List records in their order, and filter them by task.

    Args:
        app: the app of the tasks and loops.
    """

    def __init__(self, app: Scheduler, records: Iterable[E]) -> None:
        super().__init__(records)
        self._app = app

    def of(self, task: Task[..., Any] | str) -> "Records[E]":
        """Return the records of a task, or of a loop by its name, such as "poll.berlin".

        Raises:
            UnknownLoop: there is none of this name; the message names the nearest.
        """
        name = task.spec.name if isinstance(task, Task) else task
        known = {*self._app.tasks, *map(str, self._app.loops), *(each.loop for each in self)}
        # A loop that was started at run time may not have run yet.
        if name not in known and name.partition(".")[0] not in self._app.tasks:
            raise UnknownLoop(no_such("task or loop", name, known))
        return Records(self._app, [each for each in self if name in (each.task, each.loop)])


def _call(name: str, arguments: Mapping[str, Any] | None) -> str:
    if arguments is None:
        return name
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def shown(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S}.{moment.microsecond // 1000:03}"


R = TypeVar("R")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")

RESOLUTION_S = 1e-7


class JumpingSelector(selectors.DefaultSelector):
    """Jump to the next timer instead of waiting for it.

    It does wait for threads: the clock stands until they have ended. And before the clock moves,
    tasks in `idle` learn how far it would move.
    """

    now = 0.0
    threads = 0

    def __init__(self) -> None:
        super().__init__()
        self.idle: list[asyncio.Future[float | None]] = []

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self.threads and timeout:
            return super().select(None)
        is_idle = bool(self.idle) and timeout != 0 and not self.threads
        ready = super().select(None if timeout is None and not is_idle else 0)
        if is_idle and not ready:
            idle, self.idle = self.idle, []
            for waiting in idle:
                if not waiting.done():
                    waiting.set_result(timeout)
        elif not ready and timeout:
            self.now += timeout
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Run an event loop whose time passes only while all its tasks are waiting."""

    def __init__(self) -> None:
        self._jumping = JumpingSelector()
        super().__init__(self._jumping)
        # Years from zero, a float's steps are longer than the resolution of a clock: then the loop
        # would wait forever for a moment that it cannot pass.
        self._clock_resolution = RESOLUTION_S

    def time(self) -> float:
        return self._jumping.now

    async def idle(self) -> float | None:
        """Wait until nothing can proceed before time passes; return the seconds, or None: never."""
        waiting: asyncio.Future[float | None] = self.create_future()
        self._jumping.idle.append(waiting)
        return await waiting

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        ended = super().run_in_executor(executor, func, *args)
        self._jumping.threads += 1
        ended.add_done_callback(self._note_end)
        return ended

    def _note_end(self, _: object) -> None:
        self._jumping.threads -= 1


def run_virtually(main: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine in virtual time, as `asyncio.run` does in real time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)


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
        if not isinstance(tasks, Iterable | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"tasks= must be a list of tasks, got {value_shown(tasks)}.")
        names = [each.spec.name if isinstance(each, Task) else each for each in tasks or ()]
        self._app = app
        self._tasks = app.select(None if tasks is None else names)
        self._start = utc_of(start)
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
        # Foreign exchanges must exist already; their types are assumed.
        of_others = (each for each in self._app.topology().exchanges if each.passive)
        there = tuple(Exchange(each.name, each.type) for each in of_others)
        await self._broker.declare(Topology(there, (), ()))
        await Program(self._app, self._broker, self._clock).seeding.seed()
        self._working = await stack.enter_async_context(MemoryBroker(self._server))
        process = processor(
            self._app,
            self._working,
            self._clock,
            tasks=self._tasks,
            concurrency=self._app.settings.concurrency,
            grace=self._app.settings.shutdown_grace,
            supervises=False,
        )
        self._worker = process.worker
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
        span = utc_of(moment) - self.now
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
            table = "\n".join(f"    {run.line}" for run in self._recorder.runs) or "    nothing"
            raise AssertionError(
                f"Expected {name} to run {expected}; it ran {len(ran)} times until "
                f"{shown(self.now)}. Runs:\n{table}"
            )
        return ran

    def _is_busy(self) -> bool:
        """Return whether something runs, or will as soon as its task's rate lets it."""
        if any(self._is_due(hold.entry.letter.message) for hold in self._working.holds):
            return True
        return any(self._server.queues[queue].letters() for queue in self._worker.paced)

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


def simulate(app: Scheduler, span: Duration, *, start: datetime = DEFAULT_START) -> list[Event]:
    """Seed and run an app on an embedded broker for some virtual time.

    Args:
        span: how much virtual time passes, such as "365d".
        start: the aware moment at which it begins.

    Returns:
        All events, in order.
    """
    length, kit = parse_duration(span), Kit(app, start=start)

    async def run() -> list[Event]:
        with recording(app) as events:
            async with AsyncExitStack() as stack:
                await kit.begin(stack)
                await asyncio.sleep(length.total_seconds())
        return events

    return run_virtually(run())


@contextmanager
def recording(app: Scheduler) -> Generator[list[Event]]:
    """Record the events of an app during the block, in a list that grows."""
    events: list[Event] = []
    with app.events.listening(events.append):
        yield events


@contextmanager
def eager(app: Scheduler, *, state: Any = None) -> Generator[None]:
    """Run each message to the app's tasks inside the block at once, in place.

    `await task.send(...)` returns when the task has, and raises its exception. The arguments are
    checked and travel as JSON, the functions under `@app.around` and `@app.around_sending` are
    called, the task's timeout holds, and a `def` task runs in a thread, all as in a processor.

    There is no broker, and nothing waits: `send_later` and `send_at` run at once too. Nothing is
    retried, parked or escalated: the sender gets the first failure. There are no loops, keyed or
    not, no lifespan, no rate, order or expiry, no messages of other applications, and `app.publish`
    is refused: use a `Kit` for all of these.

    Args:
        state: the value of `ctx.state` in runs.
    """
    clock = SystemClock()
    with app.lending(_EagerBroker(app, clock, state), clock, everywhere=True):
        yield


class _EagerBroker(MemoryBroker):
    """Run published messages."""

    def __init__(self, app: Scheduler, clock: SystemClock, state: Any) -> None:
        super().__init__()
        self._app = app
        self._clock = clock
        self._state = state

    async def publish(
        self, message: Message, *, exchange: str, routing_key: str, **_: object
    ) -> None:
        if not exchange.startswith(f"{self._app.names.prefix}."):
            raise UsageError(
                "Inside eager() nothing is published to exchanges: use a scheduler.testing.Kit."
            )
        delivery = _delivered(self._sent(message), exchange, routing_key)
        shutdown, around = Shutdown(), self._app.around_runs
        lifespan = Lifespan(self._app, None, shutdown.begun)
        lifespan.state = self._state
        runs = Executions(self._clock, shutdown, lifespan, around, Threads(1, shutdown), 1)
        await runs.begin(self._run(delivery)).task

    def _run(self, delivery: Delivery) -> Run:
        task = self._app.tasks[delivery.routing_key.rpartition(".")[2]]
        call = decode_call(
            delivery.message,
            self._app.namespace,
            task.name,
            exchange=delivery.exchange,
            routing_key=delivery.routing_key,
        )
        now, arguments = self._clock.now(), task.arguments.load(call.args or {})
        return Run(delivery, task, call, arguments, now, received_at=now, started_at=now)

    @property
    def _open(self) -> NoReturn:
        raise UsageError(
            "Inside eager() messages run in place. There are no loops to start or stop, and no "
            "processor to ask: use a scheduler.testing.Kit."
        )


def _delivered(message: Message, exchange: str, routing_key: str) -> Delivery:
    async def nothing() -> None: ...

    lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    return Delivery(message, "", exchange, routing_key, False, lost, nothing, nothing)
