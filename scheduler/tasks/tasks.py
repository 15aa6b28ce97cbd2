"""Define tasks: what the decorators make of a function."""

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar, cast, get_args

from scheduler.errors import RegistrationError, ScheduleError
from scheduler.protocol.tokens import LoopId
from scheduler.protocol.topology import ExchangeType, Subscription
from scheduler.spelling import no_such
from scheduler.tasks.arguments import Arguments, BodyReader
from scheduler.tasks.retries import Policy
from scheduler.timing.durations import Duration, format_duration, parse_duration, shown
from scheduler.timing.pacing import Rate, parse_rate

P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_TASK_TIMEOUT = timedelta(minutes=10)
DEFAULT_CONCURRENCY = 10
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
EXCHANGE_TYPES: tuple[ExchangeType, ...] = get_args(ExchangeType)
SUPERVISION = LoopId("_supervision")
Executor = Literal["thread", "process"]
EXECUTORS: tuple[Executor, ...] = get_args(Executor)


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """Describe a task.

    Attributes:
        called: whether one-off messages may ask for it.
        reads: how a task that subscribes to an exchange reads the messages.
        rate: how many runs a processor starts in a time.
        ordered: whether its messages are run one at a time over all processors, in order.
        expires: how old a call may get before it is not run any more.
        history: whether the history of calls records each attempt, not only failed ones.
        builtin: whether it is the scheduler's own, and never waits for the runs of others.
        executor: where its blocking function runs; None: it is a coroutine function.
        aliases: its former names: it takes over their messages.
    """

    name: str
    function: Callable[..., Any] = field(repr=False)
    arguments: Arguments = field(repr=False)
    policy: Policy
    timeout: timedelta = DEFAULT_TASK_TIMEOUT
    concurrency: int = DEFAULT_CONCURRENCY
    called: bool = False
    reads: BodyReader | None = None
    subscriptions: tuple[Subscription, ...] = ()
    rate: Rate | None = None
    ordered: bool = False
    expires: timedelta | None = None
    history: bool = False
    builtin: bool = False
    executor: Executor | None = None
    aliases: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names whose queues it consumes: its own, and its aliases."""
        return self.name, *self.aliases

    def is_named(self, name: str) -> bool:
        """Return whether a name is its own, or one of its aliases."""
        return name == self.name or name in self.aliases

    @property
    def blocks(self) -> bool:
        """Return whether a thread waits for its runs."""
        return self.executor is not None


SubscribeTo = tuple[str, str] | tuple[str, str, ExchangeType]


OF_CELERY = {"delay": "send", "apply_async": "send_later", "s": "send"}


class Task(Generic[P, R]):
    """Register a task. Calling it calls the function unchanged, in place."""

    def __init__(self, function: Callable[P, R], spec: TaskSpec) -> None:
        self.spec = spec
        self._function = function
        functools.update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Task {self.spec.name}>"

    if not TYPE_CHECKING:  # to a type checker, each attribute would be there

        def __getattr__(self, name: str) -> Any:
            """Suggest an alternative to an attribute of a Celery task."""
            kind = type(self)
            here = OF_CELERY.get(name, "")
            hint = f": write {here}(...)" if here and hasattr(kind, here) else ""
            if (here or name).startswith("send") and not hasattr(kind, "send"):
                hint = ": a loop gets no calls; register a task for them with @app.task"
            raise AttributeError(f"{kind.__name__!r} object has no attribute {name!r}{hint}")


def _subscriptions(task: str, wanted: object) -> tuple[Subscription, ...]:
    if isinstance(wanted, str) or not isinstance(wanted, Iterable):
        raise _no_subscription(task, wanted)
    return tuple(_subscription(task, each) for each in cast("Iterable[Any]", wanted))


def _subscription(task: str, wanted: Any) -> Subscription:
    match wanted:
        case [str(exchange), str(key)]:
            return Subscription(task, exchange, key)
        case [str(exchange), str(key), "topic" | "fanout" | "direct" as kind]:
            return Subscription(task, exchange, key, kind)
        case [str(), str(), str(kind)]:
            raise RegistrationError(
                f"subscribe of {task}: {no_such('type of exchange', kind, EXCHANGE_TYPES)}"
            )
        case _:
            raise _no_subscription(task, wanted)


def _no_subscription(task: str, wanted: object) -> RegistrationError:
    return RegistrationError(
        f"subscribe of {task} must be a list of (exchange, routing key), or (exchange, routing "
        f"key, type), got {shown(wanted)}."
    )


def task_spec(
    function: Callable[..., Any],
    *,
    name: str | None,
    policy: Policy,
    timeout: Duration,
    concurrency: int,
    executor: Executor | None,
    aliases: Sequence[str],
    called: bool = False,
    subscribe: Sequence[SubscribeTo] = (),
    rate: str | None = None,
    ordered: bool = False,
    expires: Duration | None = None,
    history: bool = False,
) -> TaskSpec:
    """Check what a decorator was given.

    Raises:
        RegistrationError: it cannot be a task; the message says what to change.
    """
    name = _name(function, name)
    if not isinstance(concurrency, int) or concurrency < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise RegistrationError(
            f"concurrency of {name} must be a whole number of at least 1, got {concurrency!r}."
        )
    if ordered and concurrency not in (1, DEFAULT_CONCURRENCY):
        raise RegistrationError(
            f"An ordered task runs one message at a time: {name} takes no concurrency=."
        )
    arguments = Arguments(function)
    subscriptions = _subscriptions(name, subscribe)
    return TaskSpec(
        name,
        function,
        arguments,
        policy,
        _timeout(name, timeout),
        1 if ordered else concurrency,
        called,
        BodyReader(function, arguments) if subscriptions else None,
        subscriptions,
        parse_rate(rate) if rate else None,
        ordered,
        None if expires is None else _span(f"expires of {name}", expires),
        history,
        executor=_executor(function, name, executor),
        aliases=_aliases(name, aliases, is_ordered=ordered),
    )


def _name(function: Callable[..., Any], name: str | None) -> str:
    if not inspect.isroutine(function):
        raise RegistrationError(f"A task must be a function, got {shown(function)}.")
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise RegistrationError(
            f"{getattr(function, '__name__', function)!r} is a generator function, which cannot "
            "be a task. To pass data to the next run, use ctx.carry."
        )
    name = name or str(getattr(function, "__name__", ""))
    if not _is_name(name):
        raise RegistrationError(
            f"A task name must have 1 to 64 letters, digits, '_' or '-', got {name!r}: pass name=."
        )
    if name == SUPERVISION.task:
        raise RegistrationError(
            f"A task cannot be named {name!r}: the name is reserved for supervision. Give it "
            "another name=."
        )
    return name


def _is_name(name: object) -> bool:
    return isinstance(name, str) and NAME.fullmatch(name) is not None


def _aliases(name: str, aliases: Sequence[str], *, is_ordered: bool) -> tuple[str, ...]:
    is_list = not isinstance(aliases, str) and all(map(_is_name, aliases))
    if not is_list or SUPERVISION.task in aliases:
        raise RegistrationError(
            f"aliases of {name} must be a list of its former names, such as "
            f'["old_name"], got {shown(aliases)}.'
        )
    if aliases and is_ordered:
        raise RegistrationError(
            f"aliases of {name}: an ordered task has none, as the messages of two queues have no "
            "order. Keep the old name with name=."
        )
    return tuple(aliases)


def _executor(function: Callable[..., Any], name: str, wanted: object) -> Executor | None:
    if wanted not in (None, *EXECUTORS):
        raise RegistrationError(
            f"executor of {name} must be 'thread' or 'process', got {wanted!r}."
        )
    if inspect.iscoroutinefunction(function):
        if wanted is not None:
            raise RegistrationError(
                f"executor of {name} is for functions that block: write `def`, or leave it out."
            )
        return None
    if wanted == "process" and "<locals>" in function.__qualname__:
        raise RegistrationError(
            f"executor of {name}: another process imports the function by its name, so define it "
            "at module level."
        )
    return "process" if wanted == "process" else "thread"


def _span(of: str, value: Duration) -> timedelta:
    try:
        return parse_duration(value, of)
    except ScheduleError as error:
        raise RegistrationError(str(error)) from None


def _timeout(name: str, timeout: Duration) -> timedelta:
    span = _span(f"timeout of {name}", timeout)
    if not span:
        raise RegistrationError(
            f"timeout of {name} must be longer than {format_duration(span)}: a run cannot end "
            "before it starts."
        )
    return span
