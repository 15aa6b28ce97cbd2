"""What public calls say to values of wrong types."""

import inspect
from collections.abc import Awaitable, Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest

from scheduler import Context, Cron, Every, Retry, RetryLater, Scheduler
from scheduler.errors import SchedulerError, UsageError
from scheduler.testing import Kit
from tests.stage import Stage, new_app
from tests.unit.tasks.test_context import context


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError("no words")


VALUES: list[Any] = [
    *(None, True, 5, -1, float("nan"), 10**400, "", "x", "\udcff", b"x", object(), Unshowable()),
    *([], [1], ["a"], [("k",)], {}, {1: 2}, {"k": (1, 2)}, set[int](), (), (1, 2), iter([1])),
    *(timedelta.max, datetime(2026, 1, 1), ValueError("x"), ...),  # noqa: DTZ001
]
OF_TASKS = "name", "retry", "timeout", "concurrency", "executor", "aliases", "shards"
OF_CALLS = "subscribe", "rate", "ordered", "expires", "expired", "history"
OF_LOOPS = "schedule", "args", "mode", "offset", "tz", "jitter", "catch_up", "grace"
OF_SENDING = "expires", "correlation_id", "message_id", "headers", "deadline", "retry_sending"
OF_PUBLISHING = "exchange", "key", "body", "content_type"
OF_RETRIES = "retries", "delays", "initial", "multiplier", "maximum", "jitter", "retry_on"
Calls = Iterator[tuple[str, Callable[[Any], Any]]]


PUBLISHED = {"exchange": "orders", "key": "k", "body": "b", "deadline": "1s"}


async def nothing(n: int = 0) -> None: ...


def named(name: str, value: Any, **others: Any) -> dict[str, Any]:
    return others | {name: value}


def registrations() -> Calls:
    yield "Scheduler", lambda v: Scheduler(v)
    for option in ("lifespan", "fallback"):
        yield f"Scheduler {option}", lambda v, o=option: Scheduler("x", **{o: v})
    for option in (*OF_TASKS, *OF_CALLS):
        yield f"task {option}", lambda v, o=option: new_app().task(**{o: v})(nothing)
    for option in (*OF_TASKS, *OF_LOOPS, "every", "after_failure"):
        yield (
            f"periodic {option}",
            lambda v, o=option: new_app().periodic(**named(o, v, every="1s"))(nothing),
        )
    yield "task function", lambda v: new_app().task()(v)
    yield "subscribe to", lambda v: new_app().task(subscribe=[v])(nothing)
    for name in ("on_escalation", "around", "around_sending", "listen"):
        yield name, lambda v, n=name: getattr(new_app(), n)(v)
    yield "Cron", lambda v: Cron(v)
    yield "Cron tz", lambda v: Cron("* * * * *", tz=v)
    yield "Every next", lambda v: Every("1m", mode="fixed_rate").next_after(v)
    for option in OF_RETRIES:
        yield f"Retry {option}", lambda v, o=option: Retry(**{o: v})
    yield "RetryLater", lambda v: RetryLater(v)


def sendings(app: Scheduler, task: Any) -> Calls:
    for option in (*OF_SENDING, "priority", "unique"):
        yield f"options {option}", lambda v, o=option: task.options(**{o: v}).send(1)
    for option in (*OF_PUBLISHING, *OF_SENDING[1:]):
        yield f"publish {option}", lambda v, o=option: app.publish(**named(o, v, **PUBLISHED))
    yield "send", lambda v: task.send(v)
    yield "send_later", lambda v: task.send_later(v)
    yield "send_at", lambda v: task.send_at(v)
    yield "send_many", lambda v: task.send_many(v)
    yield "send_many call", lambda v: task.send_many([v])
    yield "send_many time", lambda v: task.send_many([({}, v)])
    yield "send_many delay", lambda v: task.send_many([{}], delay=v)
    yield "send_many at", lambda v: task.send_many([{}], at=v)


def operations(app: Scheduler, loop: Any) -> Calls:
    hourly = Every("1h")
    yield "start", lambda v: loop.start(v, every="1h")
    for option in (*OF_LOOPS, "every"):
        yield f"start {option}", lambda v, o=option: loop.start("k", **{"every": "1h", o: v})
    yield "start_many", lambda v: loop.start_many(v)
    yield "start_many pair", lambda v: loop.start_many([v])
    yield "start_many key and schedule", lambda v: loop.start_many([(v, v)])
    yield "start_many args", lambda v: loop.start_many([("k", (hourly, v))])
    yield "start_many progress", lambda v: loop.start_many([("k", hourly)], progress=v)
    yield "once_many", lambda v: loop.once_many(v)
    yield "once_many name and time", lambda v: loop.once_many([(v, v)])
    yield "once_many args", lambda v: loop.once_many([("k", ("1m", v))])
    yield "once_many unique", lambda v: loop.once_many([("k", "1m")], unique=v)
    yield "once", lambda v: loop.once(v)
    for option in ("at", "after", "args", "unique"):
        yield f"once {option}", lambda v, o=option: loop.once("k", **{o: v})
    yield "stop", lambda v: loop.stop(v)
    yield "sync", lambda v: loop.sync(v)
    yield "sync schedule", lambda v: loop.sync({"k": v})
    for name in ("loop", "select", "cancel", "pause", "resume", "sync_file"):
        yield name, lambda v, n=name: getattr(app, n)(v)
    yield "select name", lambda v: app.select([v])
    yield "running", lambda v: app.running(stack_of=v)
    yield "pause reason", lambda v: app.pause("loop", v)
    yield "Kit", lambda v: Kit(app, tasks=v)
    yield "Kit start", lambda v: Kit(app, start=v)


def in_runs(ctx: Any) -> Calls:
    for name in ("carry", "extend", "progress"):
        yield name, lambda v, n=name: getattr(ctx, n)(v)


async def test_each_wrong_value_is_refused_in_the_package_words(stage: Stage) -> None:
    app = new_app()
    task = app.task(name="task")(nothing)

    @app.periodic(every="1h")
    async def loop(ctx: Context, n: int = 0) -> None: ...

    await stage.seed(app)
    wrong = list[tuple[str, str, str]]()
    for calls in (
        registrations(),
        sendings(app, task),
        operations(app, loop),
        in_runs(context()[0]),
    ):
        for name, call in calls:
            for number, value in enumerate(VALUES):
                try:
                    if inspect.isawaitable(result := call(value)):
                        await result
                except SchedulerError:
                    pass
                except Exception as error:
                    wrong.append((name, f"VALUES[{number}]", repr(error)))
    assert wrong == []


REFUSED: list[tuple[Callable[[Any, Any], Any], str]] = [
    (lambda app, task: task.send_many(3), "send_many takes an iterable of calls, .* got 3"),
    (lambda app, task: task.start_many(5), "as an iterable of pairs, got 5"),
    (lambda app, task: task.once_many(None), "as an iterable of pairs, got None"),
    (
        lambda app, task: task.start_many({}, progress=5),
        "progress= must be a function, got 5",
    ),
    (
        lambda app, task: task.once("k", args=[]),
        r"The arguments of task.k must be a mapping by name, got: \[\]",
    ),
    (lambda app, task: task.once("k", at=0), "The moment of task.k: expected .* got: 0"),
    (lambda app, task: app.pause(5), "The name of a loop must be text, got 5"),
    (lambda app, task: app.pause("task", 5), "The reason of a pause must be text, got 5"),
    (lambda app, task: app.cancel(5), "The name of a run must be text, got 5"),
    (lambda app, task: app.sync_file(5), "The path of a file must be text or a Path, got 5"),
    (lambda app, task: app.publish("orders", 5, b""), "The routing key must be text, got 5"),
    (
        lambda app, task: app.publish("orders", "k", b"", retry_sending=5),
        r"retry_sending= must be a Retry, such as Retry\(5\), got 5",
    ),
    (
        lambda app, task: app.publish("orders", "k", object()),
        "The body cannot be encoded: Unable to serialize",
    ),
]


@pytest.mark.parametrize(("call", "told"), REFUSED)
async def test_a_wrong_value_is_named_with_what_is_expected(
    stage: Stage, call: Callable[[Any, Any], Awaitable[object]], told: str
) -> None:
    app = new_app()
    task = app.task(name="task")(nothing)
    await stage.seed(app)
    with pytest.raises(UsageError, match=told):
        await call(app, task)
    with pytest.raises(UsageError, match="select takes a list of names, got 'task'"):
        app.select("task")
