"""Check what the decorators are given, and make tasks and schedules of it."""

import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, Literal, TypedDict, cast, get_args
from zoneinfo import ZoneInfo

from scheduler.errors import RegistrationError, ScheduleError
from scheduler.protocol.tokens import SLICES
from scheduler.protocol.topology import ExchangeType, Subscription
from scheduler.spelling import no_such
from scheduler.tasks.retries import Policy, Retry
from scheduler.tasks.tasks import (
    DEFAULT_CONCURRENCY,
    DEFAULT_TASK_TIMEOUT,
    SUPERVISION,
    Arguments,
    BodyReader,
    Executor,
    TaskSpec,
)
from scheduler.timing.durations import Duration, format_duration, parse_duration, shown
from scheduler.timing.pacing import parse_rate
from scheduler.timing.schedules import CatchUp, Cron, Every, Mode, Recurring, period_of

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
EXCHANGE_TYPES: tuple[ExchangeType, ...] = get_args(ExchangeType)
EXECUTORS: tuple[Executor, ...] = get_args(Executor)
SubscribeTo = tuple[str, str] | tuple[str, str, ExchangeType]


class ScheduleOptions(TypedDict, total=False):
    """List the options of `Every` and `Cron`, as decorators and `start` take them."""

    mode: Mode
    offset: Duration
    tz: str | ZoneInfo
    jitter: Duration
    catch_up: CatchUp
    grace: Duration


class TaskOptions(TypedDict, total=False):
    """List the options that both decorators take."""

    name: str | None
    retry: Retry | None
    timeout: Duration
    concurrency: int
    executor: Executor | None
    aliases: Sequence[str]
    shards: int


class PeriodicOptions(TaskOptions, ScheduleOptions, total=False):
    """List the options of `@app.periodic`, besides its schedule and arguments."""

    after_failure: Literal["continue", "pause"]


class CallOptions(TaskOptions, total=False):
    """List the options of `@app.task`."""

    subscribe: Sequence[SubscribeTo]
    rate: str | None
    ordered: bool
    expires: Duration | None
    expired: Literal["park", "drop"]
    history: bool


SCHEDULE_OPTIONS = frozenset(ScheduleOptions.__annotations__)


def schedule_of(
    *,
    every: Duration | None = None,
    cron: str | None = None,
    schedule: Recurring | None = None,
    **options: Any,
) -> Recurring:
    """Return the schedule that a decorator's arguments describe.

    Args:
        every: the period of an `Every`.
        cron: the expression of a `Cron`.
        schedule: a ready schedule.
        options: other options of `Every` or `Cron`, by name; None counts as not given.

    Raises:
        ScheduleError: not exactly one of the three is given, an option does not belong to it, or a
            value is invalid.
    """
    sources = {"every": every, "cron": cron, "schedule": schedule}
    given = [name for name, value in sources.items() if value is not None]
    if len(given) != 1:
        raise ScheduleError(
            f"expected one of every=, cron= and schedule=, got: {' and '.join(given) or 'none'}"
        )
    options = {name: value for name, value in options.items() if value is not None}
    if schedule is not None and options:
        raise ScheduleError(
            f"{next(iter(options))}= cannot be combined with schedule=: pass it to the schedule"
        )
    if every is not None:
        return Every(period_of("every", every), **options)
    if cron is not None:
        return Cron(cron, **options)
    if isinstance(schedule, Every | Cron):
        return schedule
    raise ScheduleError(f"schedule: expected an Every or a Cron, got: {shown(schedule)}")


def named_schedule(of: str, **given: Any) -> Recurring:
    """Return the schedule that arguments describe; an error names the loop that it is of."""
    try:
        return schedule_of(**given)
    except ScheduleError as error:
        raise ScheduleError(f"The schedule of {of}: {error}") from None


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
    name: str | None = None,
    retry: Retry | None = None,
    after_failure: Literal["continue", "pause"] = "continue",
    timeout: Duration = DEFAULT_TASK_TIMEOUT,
    concurrency: int = DEFAULT_CONCURRENCY,
    executor: Executor | None = None,
    aliases: Sequence[str] = (),
    shards: int = 1,
    called: bool = False,
    subscribe: Sequence[SubscribeTo] = (),
    rate: str | None = None,
    ordered: bool = False,
    expires: Duration | None = None,
    expired: Literal["park", "drop"] = "park",
    history: bool = False,
) -> TaskSpec:
    """Check what a decorator was given.

    Raises:
        RegistrationError: it cannot be a task; the message says what to change.
    """
    name = _name(function, name)
    if not isinstance(concurrency, int) or concurrency < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise RegistrationError(
            f"concurrency of {name} must be a whole number of at least 1, got {shown(concurrency)}."
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
        _policy(retry, after_failure, expired),
        _timeout(name, timeout),
        1 if ordered else concurrency,
        called,
        BodyReader(function, arguments) if subscriptions else None,
        subscriptions,
        None if rate is None else parse_rate(rate),
        ordered,
        None if expires is None else _span(f"expires of {name}", expires),
        history,
        executor=_executor(function, name, executor),
        aliases=_aliases(name, aliases, is_ordered=ordered),
        shards=_shards(name, shards, is_paced=ordered or rate is not None),
    )


def _policy(
    retry: Retry | None,
    after_failure: Literal["continue", "pause"],
    expired: Literal["park", "drop"],
) -> Policy:
    if after_failure not in ("continue", "pause"):
        raise RegistrationError(
            f"after_failure must be 'continue' or 'pause', got {shown(after_failure)}."
        )
    if expired not in ("park", "drop"):
        raise RegistrationError(f"expired must be 'park' or 'drop', got {shown(expired)}.")
    if not isinstance(retry, Retry | None):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise RegistrationError(f"retry must be a Retry, such as Retry(3), got {shown(retry)}.")
    return Policy(retry or Retry(), after_failure, expired)


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
            f"A task name must have 1 to 64 letters, digits, '_' or '-', got {shown(name)}: pass "
            "name=."
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
    is_list = isinstance(aliases, Iterable) and not isinstance(aliases, str)  # pyright: ignore[reportUnnecessaryIsInstance]
    if not is_list or not all(map(_is_name, aliases)) or SUPERVISION.task in aliases:
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


def _shards(name: str, shards: object, *, is_paced: bool) -> int:
    if type(shards) is not int or not 1 <= shards <= SLICES:
        raise RegistrationError(
            f"shards of {name} must be a whole number from 1 to {SLICES}, got {shown(shards)}."
        )
    if shards > 1 and is_paced:
        raise RegistrationError(
            f"shards of {name}: a task with ordered= or rate= has one queue, as its messages take "
            "turns. Leave out one of the two."
        )
    return shards


def _executor(function: Callable[..., Any], name: str, wanted: object) -> Executor | None:
    if wanted not in (None, *EXECUTORS):
        raise RegistrationError(
            f"executor of {name} must be 'thread' or 'process', got {shown(wanted)}."
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
