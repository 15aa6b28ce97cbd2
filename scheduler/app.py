"""The app: what is registered, what happens to it, and the connection over which it sends."""

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from scheduler.brokers.contract import Broker
from scheduler.control.keyed import Synced
from scheduler.errors import RegistrationError
from scheduler.events import EscalationHook, Event, EventStream
from scheduler.middleware import Around, AroundSending, require_around, require_lifespan
from scheduler.protocol.topology import Names, Topology
from scheduler.queues.outbox import BlockingBridge, Outbox, SendPolicy
from scheduler.queues.unsent import UnsentStore, store_of
from scheduler.registration import Registration
from scheduler.sending import Outboxes, Publishing
from scheduler.spelling import refusing_misnamed
from scheduler.tasks.loops import Loop, supervision
from scheduler.tasks.registry import module_of_caller, topology_of
from scheduler.tasks.retries import Retry
from scheduler.timing.clock import Clock, SystemClock
from scheduler.user_code import require_parameters

if TYPE_CHECKING:
    from scheduler.brokers.memory.server import MemoryServer

    # They take a third of the time in which `import scheduler` would be done.
    from scheduler.control.cancellation import CancelReport
    from scheduler.control.reports import Report
    from scheduler.program import Program
    from scheduler.queues.running import Running
    from scheduler.settings import Settings


R = TypeVar("R", bound=Around)
S = TypeVar("S", bound=AroundSending)


class Scheduler(Registration, Publishing):
    """A set of tasks that share a namespace in the broker.

    Args:
        namespace: begins the name of everything in the broker: 1 to 64 letters, digits, '_', '-'.
        settings: read from the environment where it is not given.
        lifespan: a function decorated with `contextlib.asynccontextmanager`, called with the app:
            entered once per processor before its first run, left after its last one. What it yields
            is `ctx.state`.
        fallback: where messages are stored that could not be sent: "sqlite:///unsent.db", or a
            `scheduler.queues.unsent.UnsentStore`; None: `NotSent` is raised for them.

    Attributes:
        module: where it was made: by it, apps are told apart that share a namespace by mistake.

    Raises:
        RegistrationError: the namespace, the lifespan or the fallback cannot be used.
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
        if lifespan is not None:
            require_lifespan(lifespan)
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
        names = Names(namespace)
        outboxes = Outboxes(self._new_outbox(names), self._new_outbox(names), BlockingBridge())
        super().__init__(namespace, outboxes, self.operations)

    @property
    def settings(self) -> "Settings":
        """The settings, read from the environment at the first look unless they were given."""
        if self._settings is None:
            from scheduler.settings import Settings

            self._settings = Settings()
        return self._settings

    def on_escalation(self, hook: EscalationHook) -> EscalationHook:
        """Have a function, plain or coroutine, called for each message that is parked, after that.

        Its run has failed for the last time, or it could not be run: see `reason`. Usable as a
        decorator.

        Raises:
            RegistrationError: it cannot be called with an event.
        """
        require_parameters(f"The escalation hook {hook!r}", hook, "event")
        self.escalation_hooks.append(hook)
        return hook

    @refusing_misnamed("@app.around", RegistrationError)
    def around(self, function: R) -> R:
        """Have a coroutine function called around each run of each task. Usable as a decorator.

        It is called with the run's `Context` and `call_next`, which goes on: with the next function
        that was registered, and with the task in the end. The run ends as the function does: what
        it raises, also `RetryLater`, `Reject` and `StopLoop`, is raised by the run; if it returns,
        the run has succeeded, whether or not it awaited `call_next()`. It is part of the run: the
        task's timeout counts it in.

        Raises:
            RegistrationError: it is no coroutine function of two parameters.
        """
        require_around("@app.around", function, "ctx", "call_next")
        self.around_runs.append(function)
        return function

    @refusing_misnamed("@app.around_sending", RegistrationError)
    def around_sending(self, function: S) -> S:
        """Have a coroutine function called around each message sent. Usable as a decorator.

        It is called with a `Sending` and `send_next`, which goes on: with the next function that
        was registered, and with sending in the end. It may add headers before, and refuse the
        message by raising. It is awaited in the event loop of the connection that sends: that of
        the caller in a run and inside `async with app`.

        Raises:
            RegistrationError: it is no coroutine function of two parameters.
        """
        require_around("@app.around_sending", function, "sending", "send_next")
        self._around_sendings.append(function)
        return function

    async def __aenter__(self) -> "Scheduler":
        """Connect, to send messages from a program that is not a processor."""
        await self.outbox.open()
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._operating = None
        await self.outbox.close()

    @contextmanager
    def lending(self, broker: Broker, clock: Clock, *, everywhere: bool = False) -> Generator[None]:
        """Have this app's tasks send over a connection inside the block.

        Args:
            everywhere: from whatever event loop, rather than from this one.
        """
        self.outbox.use(broker, clock, everywhere=everywhere)
        try:
            yield
        finally:
            self.outbox.release(broker)

    @property
    def outbox(self) -> Outbox:
        """What sends the messages of this app's tasks."""
        return self._outboxes.main

    def listen(self, listener: Callable[[Event], None]) -> Callable[[Event], None]:
        """Have a function called with each event of this process. Usable as a decorator."""
        return self.events.listen(listener)

    @property
    def supervision(self) -> Loop:
        """The loop that counts the tokens of all others; every namespace has it."""
        return supervision(self.settings.supervision_interval)

    def topology(self) -> Topology:
        """Everything the app needs in the broker."""
        return topology_of(self)

    @asynccontextmanager
    async def operations(self) -> AsyncGenerator["Program"]:
        """Inside the block, what can be done about this app, over the connection of its tasks."""
        from scheduler.program import Program  # few programs start loops

        async with self.outbox.connection() as broker:
            operating = self._operating
            if operating is None or operating.broker is not broker:
                operating = self._operating = Program(self, broker, self.outbox.clock)
            yield operating

    async def running(self, *, stack_of: str | None = None) -> "Running":
        """What runs now, in all processors: they are asked, which takes some milliseconds.

        Args:
            stack_of: the run whose stack is told as well, named as for `cancel`.

        Raises:
            NotRunning, UsageError: there is no such run, or more than one.
            QueueNotFound: nothing was seeded.
        """
        async with self.operations() as operations:
            return await operations.cancellation.running(stack_of=stack_of)

    async def cancel(self, run: str, *, escalate: bool = False) -> "CancelReport":
        """End a run that is going on, and wait until it has ended, for at most 10 seconds.

        It is not tried again, and a loop goes on with its next tick. A coroutine is cancelled, a
        process killed; a thread cannot be stopped, so that its run ends when its function does.

        Args:
            run: the id of a message, or how it begins; `loop#seq`, or the name of a loop.
            escalate: whether it counts as failed for the last time: it is parked then.

        Raises:
            NotRunning: no such run is going on, as far as processors have answered.
            UsageError: there is more than one.
            QueueNotFound: nothing was seeded.
        """
        async with self.operations() as operations:
            return await operations.cancellation.cancel(run, escalate=escalate)

    async def pause(self, name: str, reason: str = "paused by a program") -> "Report":
        """Pause a loop, or a task with all its calls and loops, until it is resumed.

        A run that is going on ends. Once this has returned, no run begins, unless the report names
        processors that have not confirmed it. What is sent to a paused task waits.

        Args:
            name: of the loop, or of a task that gets calls.
            reason: why, which `scheduler status` tells.

        Raises:
            UnknownLoop: there is neither.
            QueueNotFound: it was never seeded.
        """
        async with self.operations() as operations:
            found = await operations.loops.find_or_whole(name)
            return await operations.verbs.pause(found, reason)

    async def resume(self, name: str) -> "Report":
        """Resume a paused loop, at its next nominal time, or a paused task.

        A loop that was paused itself stays paused when its task is resumed.

        Raises:
            UnknownLoop, QueueNotFound: as `pause`.
        """
        async with self.operations() as operations:
            return await operations.verbs.resume(await operations.loops.find_or_whole(name))

    async def sync_file(
        self, path: str | PathLike[str], *, dry_run: bool = False
    ) -> Mapping[str, Synced]:
        """Make the keyed loops of tasks those of a file, in TOML, or JSON if it ends in `.json`.

        By task and key, it has the schedule and `args`, as in `[digest."user-42"]` of
        `every = "1h"`. For each task in the file this is `task.sync`; no other task is touched.
        All is checked before anything is done.

        Args:
            dry_run: only say what it would do.

        Returns:
            What it did, by task.

        Raises:
            UsageError: the file, or something in it, cannot be used; nothing was changed.
            AccessRefused: this user may not declare a queue.
            BrokerError: the broker could not do it; what is left is done by the next call.
        """
        from scheduler.control.loop_files import sync_file  # few programs have one

        return await sync_file(path, self.tasks, self.operations, dry_run=dry_run)

    def _new_outbox(self, names: Names) -> Outbox:
        return Outbox(
            names,
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
        """The embedded broker of this event loop, with all that the app needs in it: nobody else
        could have seeded it."""
        from scheduler.brokers.memory.server import MemoryServer

        server = self._servers.setdefault(asyncio.get_running_loop(), MemoryServer())
        server.declare(self.topology())
        return server
