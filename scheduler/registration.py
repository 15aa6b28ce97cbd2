"""Register tasks and loops, and find them."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar, Unpack, overload

from scheduler.control.keyed import Connect
from scheduler.errors import RegistrationError, ScheduleError, UnknownLoop
from scheduler.protocol.tokens import LoopId
from scheduler.protocol.topology import Names
from scheduler.sending import CallTask, Outboxes, PeriodicTask
from scheduler.spelling import misnamed, no_such, refusing_misnamed
from scheduler.tasks.context import Context
from scheduler.tasks.loops import Loop, loop_of
from scheduler.tasks.retries import Policy, Retry
from scheduler.tasks.tasks import (
    DEFAULT_CONCURRENCY,
    DEFAULT_TASK_TIMEOUT,
    Executor,
    SubscribeTo,
    TaskSpec,
    task_spec,
)
from scheduler.timing.durations import Duration, shown
from scheduler.timing.schedules import Recurring, ScheduleOptions, schedule_of

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
N = TypeVar("N")

PERIODIC_OPTIONS = (
    *("every", "cron", "schedule", "args", "name", "retry", "timeout", "concurrency"),
    *("executor", "after_failure", "aliases", *ScheduleOptions.__annotations__),
)
NAMESPACE = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Registration:
    """Hold the tasks and loops of a namespace, registered by decorators.

    Args:
        outboxes: send the messages of tasks.
        connect: reaches the broker, to start and stop loops.

    Raises:
        RegistrationError: the namespace is invalid.
    """

    def __init__(self, namespace: str, outboxes: Outboxes, connect: Connect) -> None:
        if not isinstance(namespace, str) or not NAMESPACE.fullmatch(namespace):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise RegistrationError(
                f"A namespace has 1 to 64 letters, digits, '_' or '-', got {namespace!r}."
            )
        self.namespace = namespace
        self.names = Names(namespace)
        self._outboxes = outboxes
        self._connect = connect
        self._tasks: dict[str, TaskSpec] = {}
        self._senders: dict[str, CallTask[..., ..., Any]] = {}
        self._loops: dict[LoopId, Loop] = {}

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
        name: str | None = None,
        retry: Retry | None = None,
        timeout: Duration = DEFAULT_TASK_TIMEOUT,
        concurrency: int = DEFAULT_CONCURRENCY,
        executor: Executor | None = None,
        after_failure: Literal["continue", "pause"] = "continue",
        aliases: Sequence[str] = (),
        **options: Unpack[ScheduleOptions],
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
            timeout: how long a run may take before it is cancelled, and counts as failed.
            concurrency: the maximum number of concurrent runs of this task on one processor.
            executor: "process" runs a blocking function in a process, not in a thread.
            after_failure: what the loop does when the retries are exhausted: continue with the next
                tick, or pause until it is resumed. The failed tick is parked in both cases.
            aliases: former names of the task. After `scheduler seed` its loop replaces theirs and
                continues; messages parked under them are replayed as this task.
            options: of the schedule: mode, offset, tz, jitter, catch_up, grace.

        Raises:
            ScheduleError: the schedule is invalid.
            RegistrationError: the function cannot be a task, or its name is taken.
        """

        _check_call(bare, options)

        def register(function: Callable[P, R]) -> PeriodicTask[P, R]:
            spec = task_spec(
                function,
                name=name,
                timeout=timeout,
                policy=_policy(retry, after_failure),
                concurrency=concurrency,
                executor=executor,
                aliases=aliases,
            )
            loop = loop_of(spec, _schedule(spec.name, every, cron, schedule, options), args)
            self._add_task(spec)
            self._loops[loop.id] = loop
            return PeriodicTask(function, spec, self._connect)

        return register

    @overload
    def task(
        self, function: Callable[Concatenate[Context[Any], Q], R], /
    ) -> CallTask[Concatenate[Context[Any], Q], Q, R]: ...

    @overload
    def task(self, function: Callable[P, R], /) -> CallTask[P, P, R]: ...

    @overload
    def task(
        self,
        *,
        name: str | None = None,
        retry: Retry | None = None,
        timeout: Duration = DEFAULT_TASK_TIMEOUT,
        concurrency: int = DEFAULT_CONCURRENCY,
        executor: Executor | None = None,
        subscribe: Sequence[SubscribeTo] = (),
        rate: str | None = None,
        ordered: bool = False,
        expires: Duration | None = None,
        expired: Literal["park", "drop"] = "park",
        history: bool = False,
        aliases: Sequence[str] = (),
    ) -> "RegisterCallTask": ...

    @refusing_misnamed("@app.task", RegistrationError)
    def task(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        retry: Retry | None = None,
        timeout: Duration = DEFAULT_TASK_TIMEOUT,
        concurrency: int = DEFAULT_CONCURRENCY,
        executor: Executor | None = None,
        subscribe: Sequence[SubscribeTo] = (),
        rate: str | None = None,
        ordered: bool = False,
        expires: Duration | None = None,
        expired: Literal["park", "drop"] = "park",
        history: bool = False,
        aliases: Sequence[str] = (),
    ) -> Any:
        """Register a function as a task that runs when it is sent a message.

        Each message is run at least once, as soon as possible: see `CallTask.send`.

        Args:
            name: the task's name; the function's own by default.
            retry: what to do when a run fails; three retries by default.
            timeout: how long a run may take before it is cancelled, and counts as failed.
            concurrency: the maximum number of concurrent runs of this task on one processor.
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

        Raises:
            RegistrationError: the function cannot be a task, or its name is taken.
        """
        policy = _policy(retry, expired=expired)

        def register(function: Callable[..., Any]) -> Any:
            spec = task_spec(
                function,
                name=name,
                timeout=timeout,
                policy=policy,
                concurrency=concurrency,
                executor=executor,
                aliases=aliases,
                called=True,
                subscribe=subscribe,
                rate=rate,
                ordered=ordered,
                expires=expires,
                history=history,
            )
            self._add_task(spec)
            sender = CallTask[..., ..., Any](function, spec, self._connect, self._outboxes)
            self._senders[spec.name] = sender
            return sender

        return register if function is None else register(function)

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
        """
        wanted = dict.fromkeys(self._tasks if names is None else names)
        return [_named("task", name, self._tasks) for name in wanted]

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
    if name not in those:
        raise UnknownLoop(no_such(what, name, those))
    return those[name]


def _check_call(bare: object, options: Iterable[str]) -> None:
    if bare is not None:
        given = shown(bare) if isinstance(bare, str) else "'30s'"
        raise RegistrationError(
            f"@app.periodic needs a schedule by name: write @app.periodic(every={given})."
        )
    for option in options:
        if option not in ScheduleOptions.__annotations__:
            raise RegistrationError(misnamed("@app.periodic", option, PERIODIC_OPTIONS))


def _schedule(
    task: str,
    every: Duration | None,
    cron: str | None,
    schedule: Recurring | None,
    options: ScheduleOptions,
) -> Recurring:
    try:
        return schedule_of(every=every, cron=cron, schedule=schedule, **options)
    except ScheduleError as error:
        raise ScheduleError(f"The schedule of {task!r}: {error}") from None


def _policy(
    retry: Retry | None,
    after_failure: Literal["continue", "pause"] = "continue",
    expired: Literal["park", "drop"] = "park",
) -> Policy:
    if after_failure not in ("continue", "pause"):
        raise RegistrationError(f"after_failure is 'continue' or 'pause', got {after_failure!r}.")
    if expired not in ("park", "drop"):
        raise RegistrationError(f"expired is 'park' or 'drop', got {expired!r}.")
    if not isinstance(retry, Retry | None):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise RegistrationError(f"retry is a Retry, such as Retry(3), got {retry!r}.")
    return Policy(retry or Retry(), after_failure, expired)
