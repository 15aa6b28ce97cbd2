"""Define the app: its tasks and loops, its events, and the connection for sending."""

import asyncio
import re
import sys
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import cached_property
from os import PathLike
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    ParamSpec,
    Protocol,
    TypeVar,
    Unpack,
    overload,
)
from weakref import WeakKeyDictionary

from pydantic_core import to_json

from scheduler.brokers.contract import Broker
from scheduler.control.keyed import Synced
from scheduler.errors import RegistrationError, Unencodable, UnknownLoop, UsageError
from scheduler.events import EscalationHook, Event
from scheduler.middleware import Around, AroundSending, require_around, require_lifespan
from scheduler.protocol.messages import PREFIX, Message, one_line
from scheduler.protocol.tokens import LoopId
from scheduler.protocol.topology import Names, Topology
from scheduler.queues.outbox import BlockingBridge, Outbox, Posting, SendPolicy
from scheduler.queues.unsent import MessageId, UnsentStore, store_of
from scheduler.sending import CallTask, Outboxes, PeriodicTask, checked_retry
from scheduler.spelling import misnamed, no_such, refusing_misnamed
from scheduler.tasks.context import Context
from scheduler.tasks.loops import Loop, loop_of, module_of_caller, supervision, topology_of
from scheduler.tasks.registration import (
    SCHEDULE_OPTIONS,
    CallOptions,
    PeriodicOptions,
    named_schedule,
    task_spec,
)
from scheduler.tasks.retries import Retry
from scheduler.tasks.tasks import TaskSpec
from scheduler.timing.durations import Duration, parse_duration, shown
from scheduler.timing.moments import Clock, SystemClock
from scheduler.timing.schedules import Recurring
from scheduler.user_code import EventStream, require_parameters, require_text

if TYPE_CHECKING:
    from scheduler.brokers.memory.server import MemoryServer
    from scheduler.control.reports import Report

    # They would take a third of the time of `import scheduler`.
    from scheduler.control.verbs import CancelReport
    from scheduler.program import Program
    from scheduler.queues.running import Running
    from scheduler.settings import Settings


P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
N = TypeVar("N")
A = TypeVar("A", bound=Around)
S = TypeVar("S", bound=AroundSending)

NAMESPACE = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Scheduler:
    """Define a set of tasks that share a namespace in the broker.

    Args:
        namespace: begins the name of everything in the broker: 1 to 64 letters, digits, '_', '-'.
        settings: default: read from the environment.
        lifespan: a function decorated with `contextlib.asynccontextmanager`, called with the app:
            entered once per processor before its first run, left after its last one. It yields
            `ctx.state`.
        fallback: the store of messages that could not be sent: "sqlite:///unsent.db", or a
            `scheduler.queues.unsent.UnsentStore`; None: `NotSent` is raised for them.

    Attributes:
        module: its module, which distinguishes apps that share a namespace by mistake.

    Raises:
        RegistrationError: the namespace, the lifespan or the fallback is invalid.
    """

    @refusing_misnamed("Scheduler", RegistrationError)
    def __init__(
        self,
        namespace: str,
        settings: "Settings | None" = None,
        *,
        lifespan: "Callable[[Scheduler], AbstractAsyncContextManager[Any]] | None" = None,
        fallback: str | UnsentStore | None = None,
    ) -> None:
        if isinstance(settings, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            # It may hold a password, which is not shown.
            raise RegistrationError(
                "Scheduler takes Settings after the namespace, got a text: write "
                "Scheduler(..., Settings(broker_url=...)), or set SCHEDULER_BROKER_URL."
            )
        if not isinstance(namespace, str) or not NAMESPACE.fullmatch(namespace):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise RegistrationError(
                f"A namespace must have 1 to 64 letters, digits, '_' or '-', got "
                f"{shown(namespace)}."
            )
        if lifespan is not None:
            require_lifespan(lifespan)
        self.namespace = namespace
        self.names = Names(namespace)
        self.lifespan = lifespan
        self.fallback = store_of(fallback, namespace)
        self.events = EventStream()
        self.module = module_of_caller()
        self.escalation_hooks: list[EscalationHook] = []
        self.around_runs: list[Around] = []
        self._around_sendings: list[AroundSending] = []
        self._settings = settings
        self._operating: Program | None = None
        self._servers = WeakKeyDictionary[asyncio.AbstractEventLoop, "MemoryServer"]()
        self._outboxes = Outboxes(self._new_outbox(), self._new_outbox(), BlockingBridge())
        self._tasks: dict[str, TaskSpec] = {}
        self._senders: dict[str, CallTask[..., ..., Any]] = {}
        self._loops: dict[LoopId, Loop] = {}

    @property
    def settings(self) -> "Settings":
        """Return the settings, read from the environment at first use unless they were given."""
        if self._settings is None:
            from scheduler.settings import Settings

            self._settings = Settings()
        return self._settings

    @property
    def tasks(self) -> Mapping[str, TaskSpec]:
        """Return every task of the app, by its name."""
        return self._tasks

    @property
    def senders(self) -> Mapping[str, CallTask[..., ..., Any]]:
        """Return the tasks that get calls, by name."""
        return self._senders

    @property
    def loops(self) -> Mapping[LoopId, Loop]:
        """Return every loop in the code, without keyed ones, which are started at run time."""
        return self._loops

    @refusing_misnamed("@app.periodic", RegistrationError)
    def periodic(
        self,
        bare: None = None,
        /,
        *,
        every: Duration | None = None,
        cron: str | None = None,
        schedule: Recurring | None = None,
        args: Mapping[str, Any] | None = None,
        **options: Unpack[PeriodicOptions],
    ) -> Callable[[Callable[P, R]], PeriodicTask[P, R]]:
        """Register a function as a periodic task: a loop.

        Its runs never overlap, and it continues as long as processors run, whatever its runs do.
        Each run happens at least once: one whose processor dies, or loses the broker, is run again.

        Args:
            every: the period, such as "30s": counted from the end of the run before, unless
                `mode="fixed_rate"`.
            cron: a cron expression of five fields, or six with seconds; see `Cron`.
            schedule: an `Every` or a `Cron`, instead of the two above.
            args: arguments for the function's parameters, besides its `Context`.
            name: the task's name; the function's own by default.
            retry: what to do when a run fails; three retries by default.
            timeout: how long a run may take before it is cancelled, and counts as failed; 10
                minutes by default.
            concurrency: the maximum number of concurrent runs of this task on one processor; 10 by
                default.
            executor: "process" runs a blocking function in a process, not in a thread.
            after_failure: what the loop does when the retries are exhausted: continue with the next
                tick, or pause until it is resumed. The failed tick is parked in both cases.
            aliases: former names of the task. After `scheduler seed` its loop replaces theirs and
                continues; messages parked under them are replayed as this task.
            shards: over how many queues the keyed loops of this task are spread, from 1 to 16. One
                queue uses one core of the broker, and is enough for thousands of runs a second. To
                change the number, run `scheduler seed`, then restart the processors.
            mode, offset, tz, jitter, catch_up, grace: as `Every` and `Cron` take them.

        Raises:
            ScheduleError: the schedule is invalid.
            RegistrationError: the function cannot be a task, or its name is taken.
        """
        if bare is not None:
            given = shown(bare) if isinstance(bare, str) else "'30s'"
            raise RegistrationError(
                f"@app.periodic needs a schedule by name: write @app.periodic(every={given})."
            )
        _check_names("@app.periodic", options, PeriodicOptions, "every", "cron", "schedule", "args")
        of_task: dict[str, Any] = dict(options)
        of_schedule = {name: of_task.pop(name) for name in SCHEDULE_OPTIONS & of_task.keys()}
        of_schedule |= {"every": every, "cron": cron, "schedule": schedule}

        def register(function: Callable[P, R]) -> PeriodicTask[P, R]:
            spec = task_spec(function, **of_task)
            loop = loop_of(spec, named_schedule(repr(spec.name), **of_schedule), args)
            self._add_task(spec)
            self._loops[loop.id] = loop
            return PeriodicTask(function, spec, self.operations)

        return register

    @overload
    def task(
        self, function: Callable[Concatenate[Context[Any], Q], R], /
    ) -> CallTask[Concatenate[Context[Any], Q], Q, R]: ...

    @overload
    def task(self, function: Callable[P, R], /) -> CallTask[P, P, R]: ...

    @overload
    def task(self, **options: Unpack[CallOptions]) -> "RegisterCallTask": ...

    @refusing_misnamed("@app.task", RegistrationError)
    def task(
        self, function: Callable[..., Any] | None = None, /, **options: Unpack[CallOptions]
    ) -> Any:
        """Register a function as a task that runs when it is sent a message.

        Each message is run at least once, as soon as possible: see `CallTask.send`.

        Args:
            name: the task's name; the function's own by default.
            retry: what to do when a run fails; three retries by default.
            timeout: how long a run may take before it is cancelled, and counts as failed; 10
                minutes by default.
            concurrency: the maximum number of concurrent runs of this task on one processor; 10 by
                default.
            executor: "process" runs a blocking function in a process, not in a thread.
            subscribe: pairs of another application's exchange and a binding key: its messages come
                to this task too, whole, in the one parameter that the function then has. With the
                exchange's type as a third, the exchange is declared here.
            rate: how many runs one processor starts in a time, such as "50/s"; the others wait in
                the queue, they do not fail.
            ordered: run one message at a time over all processors, in order; a retry blocks those
                behind it.
            expires: how old a message may get to be run: a call, after its time; a message of
                another application, after its timestamp, if it has one.
            expired: park or drop a message that is too old; events report both.
            history: record each attempt in `scheduler history`, not only failed ones.
            aliases: former names of the task: it takes the messages that wait for them, are parked
                under them, or are still sent to them.
            shards: as `periodic` takes it, for the keyed loops of this task: all calls share the
                first queue.

        Raises:
            RegistrationError: the function cannot be a task, or its name is taken.
        """
        _check_names("@app.task", options, CallOptions)

        def register(function: Callable[..., Any]) -> Any:
            spec = task_spec(function, called=True, **options)
            self._add_task(spec)
            sender = CallTask[..., ..., Any](function, spec, self.operations, self._outboxes)
            self._senders[spec.name] = sender
            return sender

        return register if function is None else register(function)

    def on_escalation(self, hook: EscalationHook) -> EscalationHook:
        """Call a function, plain or coroutine, after each message that is parked.

        Its run has failed for the last time, or it could not be run: see `reason`. Usable as a
        decorator.

        The loop continues when all hooks have ended, or after 30 seconds, when they are cancelled.
        A hook runs in the event loop of the processor: for blocking calls, await
        `asyncio.to_thread`. It is called again if the processor dies before the loop continues.

        Raises:
            RegistrationError: it cannot be called with an event.
        """
        require_parameters(f"The escalation hook {shown(hook)}", hook, "event")
        self.escalation_hooks.append(hook)
        return hook

    @refusing_misnamed("@app.around", RegistrationError)
    def around(self, function: A) -> A:
        """Call a coroutine function around each run of each task. Usable as a decorator.

        It is called with the run's `Context` and `call_next`, which continues with the next
        function that was registered, and finally with the task. The run ends as the function does:
        its exceptions, also `RetryLater`, `Reject` and `StopLoop`, end the run; if it returns, the
        run has succeeded, whether or not it awaited `call_next()`. It is part of the run: the
        task's timeout includes it.

        Raises:
            RegistrationError: it is not a coroutine function of two parameters.
        """
        require_around("@app.around", function, "ctx", "call_next")
        self.around_runs.append(function)
        return function

    @refusing_misnamed("@app.around_sending", RegistrationError)
    def around_sending(self, function: S) -> S:
        """Call a coroutine function around each message sent. Usable as a decorator.

        It is called with a `Sending` and `send_next`, which continues with the next function that
        was registered, and finally sends. It may add headers before, and reject the message by
        raising. It is awaited in the event loop of the connection that sends: that of the caller in
        a run and inside `async with app`.

        Raises:
            RegistrationError: it is not a coroutine function of two parameters.
        """
        require_around("@app.around_sending", function, "sending", "send_next")
        self._around_sendings.append(function)
        return function

    async def publish(
        self,
        exchange: str,
        key: str,
        body: Any,
        *,
        headers: Mapping[str, Any] | None = None,
        message_id: str | None = None,
        correlation_id: str | None = None,
        content_type: str | None = None,
        deadline: Duration | None = None,
        retry_sending: Retry | None = None,
    ) -> MessageId:
        """Publish a message to an exchange of your own, for all bound queues.

        When this returns, the broker has confirmed the message in every queue that it was routed
        to; or the fallback store of the app has it, and the ID is `stored`. The exchange must
        exist: its owner declares it, or a task whose `subscribe=` names its type.

        Args:
            key: the routing key, by which a topic exchange finds the queues.
            body: bytes and text as they are, else JSON made by pydantic.
            headers: travel with the message.
            message_id: identifies the message; a new UUID by default.
            correlation_id: travels with the message.
            content_type: of the body; by default that of text or JSON, and none for bytes.
            deadline: how long to wait for the confirmation; as the settings say by default.
            retry_sending: as for `Sender.options`.

        Raises:
            NotSent: the broker did not confirm it in time, and the app has no fallback.
            Unroutable: there is no such exchange, or no queue is bound to it for this key.
            UsageError: the exchange, a queue or a header is one of the scheduler's own; or the
                body, a header or the key cannot be encoded.
        """
        require_text("The exchange", exchange)
        require_text("The routing key", key)
        if not isinstance(headers, Mapping | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"headers= must map names to values, got {shown(headers)}.")
        ours = f"{self.names.prefix}."
        if exchange.startswith(ours) or (not exchange and key.startswith(ours)):
            raise UsageError(
                f"{exchange or key!r} is the scheduler's own: publish to another exchange, or send "
                "to a task."
            )
        if own := [name for name in headers or {} if str(name).lower().startswith(PREFIX)]:
            raise UsageError(f"Headers that begin with {PREFIX!r} are reserved, got {own[0]!r}.")
        data, its_type = _body(body)
        message = Message(
            data,
            headers or {},
            content_type=content_type or its_type,
            correlation_id=correlation_id,
        )
        posting = Posting(
            message_id=message_id,
            deadline=None if deadline is None else parse_duration(deadline, "deadline"),
            retry_sending=checked_retry(retry_sending),
        )
        return await self._outboxes.through(
            lambda outbox: outbox.publish(exchange, key, message, posting)
        )

    def loop(self, name: str) -> Loop:
        """Return the loop of this name.

        Raises:
            UnknownLoop: there is none; the message names the nearest.
        """
        by_name = {str(loop.id): loop for loop in self._loops.values()}
        return _named("loop", name, by_name)

    def select(self, names: Iterable[str] | None) -> list[TaskSpec]:
        """Return the tasks of these names; None: all of them.

        Raises:
            UnknownLoop: a name is unknown; the message names the nearest.
            UsageError: it is not a list of names.
        """
        if names is None:
            return [*self._tasks.values()]
        if isinstance(names, str) or not isinstance(names, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"select takes a list of names, got {shown(names)}.")
        found = [_named("task", name, self._tasks) for name in names]
        return [*{task.name: task for task in found}.values()]

    async def __aenter__(self) -> "Scheduler":
        """Connect, to send messages from a program that is not a processor.

        Each event loop has its own connection, which the last of its blocks closes.
        """
        await self.outbox.open()
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._operating = None
        await self.outbox.close()

    @contextmanager
    def lending(self, broker: Broker, clock: Clock, *, everywhere: bool = False) -> Generator[None]:
        """Send this app's messages over a given connection inside the block.

        Args:
            everywhere: from any event loop, not only from this one.
        """
        self.outbox.use(broker, clock, everywhere=everywhere)
        try:
            yield
        finally:
            self.outbox.release(broker)

    @property
    def outbox(self) -> Outbox:
        """Return the outbox of this app's messages."""
        return self._outboxes.main

    def listen(self, listener: Callable[[Event], None]) -> Callable[[Event], None]:
        """Call a function with each event of this process. Usable as a decorator."""
        return self.events.listen(listener)

    @property
    def supervision(self) -> Loop:
        """Return the loop that supervises all others; every namespace has it."""
        return supervision(self.settings.supervision_interval)

    def topology(self) -> Topology:
        """Return everything the app needs in the broker."""
        return topology_of(self)

    @asynccontextmanager
    async def operations(self) -> AsyncGenerator["Program"]:
        """Open the operations on this app inside the block, over the connection of its tasks.

        Raises:
            BrokerUnavailable: the broker has stalled for 30 s, for example because of an alarm.
        """
        from scheduler.brokers.contract import unless_stalled
        from scheduler.program import Program  # few programs start loops

        async with self.outbox.connection() as broker:
            operating = self._operating
            if operating is None or operating.broker is not broker:
                operating = self._operating = Program(self, broker, self.outbox.clock)
            async with unless_stalled(broker):
                yield operating

    async def running(self, *, stack_of: str | None = None) -> "Running":
        """Return the current runs of all processors: they are asked, which takes some milliseconds.

        Args:
            stack_of: the run whose stack is included, named as for `cancel`.

        Raises:
            NotRunning, UsageError: there is no such run, or more than one.
            QueueNotFound: nothing was seeded.
        """
        async with self.operations() as operations:
            return await operations.cancellation.running(stack_of=stack_of)

    async def cancel(self, run: str, *, escalate: bool = False) -> "CancelReport":
        """Cancel a run, and wait until it has ended, for at most 10 seconds.

        It is not retried, and a loop continues with its next tick. A coroutine is cancelled, a
        process killed; a thread cannot be stopped, so its run ends when its function does.

        Args:
            run: the ID of a message, or a unique prefix of it; `loop#seq`, or the name of a loop.
            escalate: whether it counts as failed for the last time: it is parked then.

        Raises:
            NotRunning: no such run is running, as far as processors responded.
            UsageError: there is more than one.
            QueueNotFound: nothing was seeded.
        """
        async with self.operations() as operations:
            return await operations.cancellation.cancel(run, escalate=escalate)

    async def pause(self, name: str, reason: str = "paused by a program") -> "Report":
        """Pause a loop, or a task with all its calls and loops, until it is resumed.

        A run in progress ends normally. Once this has returned, no run begins, unless the report
        names processors that have not confirmed it. Messages for a paused task wait.

        Args:
            name: of the loop, or of a task that gets calls.
            reason: shown by `scheduler status`.

        Raises:
            UnknownLoop: there is neither.
            QueueNotFound: it was never seeded.
        """
        async with self.operations() as operations:
            found = await operations.loops.find(name, or_whole=True)
            return await operations.verbs.pause(found, reason)

    async def resume(self, name: str) -> "Report":
        """Resume a paused loop, at its next nominal time, or a paused task.

        A loop that was paused itself stays paused when its task is resumed.

        Raises:
            UnknownLoop, QueueNotFound: as `pause`.
        """
        async with self.operations() as operations:
            return await operations.verbs.resume(await operations.loops.find(name, or_whole=True))

    async def sync_file(
        self, path: str | PathLike[str], *, dry_run: bool = False
    ) -> Mapping[str, Synced]:
        """Make the keyed loops of tasks match a file, in TOML, or JSON if it ends in `.json`.

        By task and key, it has the schedule and `args`, such as `every = "1h"` under
        `[digest."user-42"]`. For each task in the file this is `task.sync`; other tasks are left
        alone. All is checked before anything is done.

        Args:
            dry_run: only report the changes.

        Returns:
            The changes, by task.

        Raises:
            UsageError: the file, or something in it, is invalid; nothing was changed.
            AccessRefused: this user may not declare a queue.
            BrokerError: the broker failed; the next call does the rest.
        """
        from scheduler.control.loop_files import loops_in, sync_all  # few programs have one

        wanted = loops_in(path, self.tasks)
        async with self.operations() as operations:
            return await sync_all(wanted, self.tasks, operations, dry_run=dry_run)

    def _new_outbox(self) -> Outbox:
        return Outbox(
            self.names,
            SystemClock(),
            self._new_broker,
            self.events.emit,
            self._around_sendings,
            self.fallback,
            lambda: self._send_policy,
        )

    @cached_property
    def _send_policy(self) -> SendPolicy:
        settings = self.settings
        return SendPolicy(
            settings.send_deadline,
            Retry(
                sys.maxsize,
                initial=settings.send_first_wait,
                multiplier=settings.send_multiplier,
                maximum=settings.send_longest_wait,
                jitter=settings.send_jitter,
            ),
        )

    def _new_broker(self) -> Broker:
        from scheduler.brokers.opening import broker_of

        return broker_of(self.settings, emit=self.events.emit, embedded=self._server_here)

    def _server_here(self) -> "MemoryServer":
        """Return the embedded broker of this event loop, seeded: no other program can seed it."""
        from scheduler.brokers.memory.server import MemoryServer

        server = self._servers.setdefault(asyncio.get_running_loop(), MemoryServer())
        server.declare(self.topology())
        return server

    def _add_task(self, spec: TaskSpec) -> None:
        if spec.name in self._tasks:
            raise RegistrationError(
                f"There are two tasks named {spec.name!r} in {self.namespace!r}: "
                "give one of them another name=."
            )
        taken = {name: task.name for task in self._tasks.values() for name in task.names}
        for number, name in enumerate(spec.names):
            if name in taken or name in spec.names[:number]:
                raise RegistrationError(
                    f"{name!r} is a name of {taken.get(name, spec.name)!r} and cannot be one of "
                    f"{spec.name!r} as well: leave it out of the aliases= of one of them."
                )
        self._tasks[spec.name] = spec


class RegisterCallTask(Protocol):
    """Decorate a function as a call task, for `Scheduler.task`."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[Context[Any], Q], R], /
    ) -> CallTask[Concatenate[Context[Any], Q], Q, R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> CallTask[P, P, R]: ...


def _named(what: str, name: str, those: Mapping[str, N]) -> N:
    require_text(f"The name of a {what}", name)
    if name not in those:
        raise UnknownLoop(no_such(what, name, those))
    return those[name]


def _check_names(what: str, given: Iterable[str], options: type[Any], *others: str) -> None:
    known = (*others, *options.__annotations__)
    for option in given:
        if option not in known:
            raise RegistrationError(misnamed(what, option, known))


def _body(body: Any) -> tuple[bytes, str | None]:
    """Return a body, as it travels, and its content type."""
    if isinstance(body, bytes):
        return body, None
    try:
        if isinstance(body, str):
            return body.encode(), "text/plain"
        return to_json(body), "application/json"
    except ValueError as error:
        raise Unencodable(f"The body cannot be encoded: {one_line(str(error))}.") from None
