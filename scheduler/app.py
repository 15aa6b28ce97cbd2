"""Define the app: registered tasks, events, and the connection for sending."""

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

    # They would take a third of the time of `import scheduler`.
    from scheduler.control.cancellation import CancelReport
    from scheduler.control.reports import Report
    from scheduler.program import Program
    from scheduler.queues.running import Running
    from scheduler.settings import Settings


R = TypeVar("R", bound=Around)
S = TypeVar("S", bound=AroundSending)


class Scheduler(Registration, Publishing):
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
        """Return the settings, read from the environment at first use unless they were given."""
        if self._settings is None:
            from scheduler.settings import Settings

            self._settings = Settings()
        return self._settings

    def on_escalation(self, hook: EscalationHook) -> EscalationHook:
        """Call a function, plain or coroutine, after each message that is parked.

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

    async def __aenter__(self) -> "Scheduler":
        """Connect, to send messages from a program that is not a processor."""
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
        """Open the operations on this app inside the block, over the connection of its tasks."""
        from scheduler.program import Program  # few programs start loops

        async with self.outbox.connection() as broker:
            operating = self._operating
            if operating is None or operating.broker is not broker:
                operating = self._operating = Program(self, broker, self.outbox.clock)
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
        """Return the embedded broker of this event loop, seeded: no other program could have done
        so.
        """
        from scheduler.brokers.memory.server import MemoryServer

        server = self._servers.setdefault(asyncio.get_running_loop(), MemoryServer())
        server.declare(self.topology())
        return server
