import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Callable
from datetime import UTC, date, datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel

from scheduler import Context, Retry, Scheduler
from scheduler.errors import InvalidArguments, RegistrationError, ScheduleError
from scheduler.protocol.tokens import LoopId
from scheduler.protocol.topology import Subscription
from scheduler.tasks.tasks import Arguments
from scheduler.timing.durations import parse_duration
from scheduler.timing.pacing import Rate
from scheduler.timing.schedules import Every

if TYPE_CHECKING:
    from somewhere import Missing  # pyright: ignore[reportMissingImports, reportUnknownVariableType]


class Colour(Enum):
    RED = "red"


class Order(BaseModel):
    number: int
    at: datetime
    lines: list[str] = []


ORDER = Order(number=1, at=datetime(2026, 6, 1, tzinfo=UTC))


async def nothing() -> None: ...


async def context_last(city: str, days: int, ctx: Context) -> None: ...


async def context_by_keyword(city: str, *, days: int, run: Context) -> None: ...


async def context_of_state(ctx: Context[int], city: str, days: int) -> None: ...


async def without_context(city: str, days: int) -> None: ...


async def body(body: bytes) -> None: ...


@pytest.mark.parametrize(
    ("function", "context"),
    [
        (context_last, "ctx"),
        (context_by_keyword, "run"),
        (context_of_state, "ctx"),
        (without_context, None),
    ],
)
def test_the_context_is_found_by_its_type_at_any_position(
    function: Callable[..., Any], context: str | None
):
    arguments = Arguments(function)
    assert (arguments.context, list(arguments.parameters)) == (context, ["city", "days"])


VALUES: list[tuple[Any, ...]] = [
    (timedelta, timedelta(minutes=1), "PT1M"),
    (Colour, Colour.RED, "red"),
    (int | None, None, None),
    (set[int], {1}, [1]),
    (dict[str, list[date]], {"a": [date(2026, 6, 1)]}, {"a": ["2026-06-01"]}),
    (list[Order], [ORDER], [{"number": 1, "at": "2026-06-01T00:00:00Z", "lines": []}]),
    (Any, {"a": [None]}, {"a": [None]}),
]


@pytest.mark.parametrize(("kind", "value", "wire"), VALUES)
def test_a_value_travels_as_json_and_arrives_unchanged(kind: Any, value: Any, wire: Any):
    async def task(value: Any) -> None: ...

    task.__annotations__["value"] = kind
    arguments = Arguments(task)
    assert arguments.dump({"value": value}) == {"value": wire}
    assert arguments.load({"value": wire}) == {"value": value}


@pytest.mark.parametrize(
    ("wire", "told"),
    [
        ({}, "city: Field required.*days: Field required"),
        ({"city": "Bonn", "days": "few"}, "days: .*got 'few'"),
        ({"city": "Bonn", "days": 1, "ctx": None}, "ctx: Extra inputs are not permitted"),
    ],
)
def test_arguments_that_do_not_fit_are_named(wire: dict[str, Any], told: str):
    with pytest.raises(InvalidArguments, match=f"The arguments do not fit context_last: .*{told}"):
        Arguments(context_last).load(wire)


class Shop:
    async def sell(self, order: int) -> None: ...


async def positional_only(city: str, /) -> None: ...


async def many(*cities: str) -> None: ...


async def unresolved(city: "Missing") -> None: ...  # pyright: ignore[reportUnknownParameterType]


async def unknown_type(events: asyncio.Event) -> None: ...


async def generating() -> AsyncIterator[int]:
    yield 1


def untold(ctx): ...  # pyright: ignore[reportMissingParameterType, reportUnknownParameterType]


@pytest.mark.parametrize("name", ["", "a b", "a.b", "*", "ä", "x" * 65, "a\n"])
def test_a_name_must_be_valid_for_a_queue_and_may_differ_from_the_function(name: str):
    app = Scheduler("shop")
    if name:
        with pytest.raises(RegistrationError, match="1 to 64 letters.*pass name="):
            app.periodic(every="1h", name=name)(nothing)
    with pytest.raises(RegistrationError, match="A namespace must have 1 to 64 letters"):
        Scheduler(name)
    for valid in ("A-b_9", "x" * 64):
        app.periodic(every="1h", name=valid)(nothing)
    assert (list(app.tasks), list(app.loops)) == (["A-b_9", "x" * 64], [*map(LoopId, app.tasks)])


UNFIT: list[tuple[Any, str]] = [
    (Shop.sell, "sell is a method; tasks must be module-level"),
    (positional_only, "positional_only has the parameter 'city: str'.*positional-only"),
    (many, r"many has the parameter '\*cities: str'.*neither \*args"),
    (unresolved, "unresolved cannot be resolved: .*'Missing'.*outside `if TYPE_CHECKING`"),
    (unknown_type, "unknown_type cannot be checked: (?!.*model_config).*types that pydantic knows"),
    (untold, "ctx of untold has no annotation: write `ctx: Cont"),
    (generating, "'generating' is a generator function.* use ctx.carry"),
    (5, "A task must be a function, got"),
    (functools.partial(nothing), "A task must be a function, got"),
]
OF_LOOPS: list[tuple[dict[str, Any], str]] = [
    ({}, "schedule of 'nothing': expected one of every=, cron= and schedule="),
    ({"every": "1ms"}, "schedule of 'nothing': every: expected at least"),
    ({"every": "1h", "timeout": "0s"}, "timeout of nothing .*longer than"),
    ({"every": "1h", "timeout": "long"}, "timeout of nothing: .*'long'"),
    ({"every": "1h", "concurrency": 0}, "concurrency of nothing .*got 0"),
    ({"every": "1h", "concurrency": 1.5}, "at least 1, got 1.5"),
    ({"every": "1h", "shards": 0}, "shards of nothing .*1 to 16, got 0"),
    ({"every": "1h", "shards": True}, "1 to 16, got True"),
    ({"every": "1h", "retry": 3}, "Retry"),
    ({"every": "1h", "args": {"a": 1}}, "a: Extra inputs"),
    ({"every": "1h", "after_failure": "x"}, "'continue' or 'pause', got 'x'"),
]
OF_CALLS: list[tuple[dict[str, Any], str]] = [
    ({"subscribe": [("orders",)]}, r"subscribe of body must be a list of \(exchange, rou"),
    ({"subscribe": 5}, r"subscribe of body must be a list of .*, got 5"),
    ({"subscribe": "orders"}, "subscribe of body must be a list of .*, got 'orders'"),
    ({"subscribe": [("orders", "#", "topik")]}, "no type of exchange 'topik'; did you mean 't"),
    ({"subscribe": [("orders", "#", "headers")]}, "there are: direct, fanout, topic"),
    ({"expires": "old"}, "expires of body: .*got: 'old'"),
    ({"expired": "bin"}, "expired must be 'park' or 'drop', got 'bin'"),
    ({"retry": 3}, r"retry must be a Retry, such as Retry\(3\), got 3"),
    ({"rate": 50}, 'such as "50/s" or "100/m", got 50'),
    ({"rate": ""}, "such as .*, got ''"),
    ({"name": "_supervision"}, "cannot be named '_supervision': the name is reserved"),
    # Messages that take turns.
    ({"ordered": True, "concurrency": 9}, "body takes no concurrency="),
    ({"ordered": True, "shards": 2}, "shards of body: .* has one queue"),
    ({"rate": "5/s", "shards": 2}, "shards of body: .* has one queue"),
]
NO_CITY = "city: Field required.*Give the parameters of without_context defaults, or pass"


@pytest.mark.parametrize(
    ("decorator", "options", "function", "told"),
    [
        *(("task", {}, function, told) for function, told in UNFIT),
        *(("periodic", options, nothing, told) for options, told in OF_LOOPS),
        ("periodic", {"every": "1h"}, without_context, NO_CITY),
        *(("task", options, body, told) for options, told in OF_CALLS),
    ],
)
def test_signatures_and_options_of_no_use_are_refused(
    decorator: str, options: dict[str, Any], function: Any, told: str
):
    app = Scheduler("shop")
    error = ScheduleError if told.startswith("schedule") else RegistrationError
    with pytest.raises(error, match=f"(?s){told}"):
        getattr(app, decorator)(**options)(function)
    assert not app.tasks
    assert not app.loops


def test_names_of_celery_are_answered_with_the_ones_here():
    task: Any = Scheduler("shop").task(nothing)
    with pytest.raises(AttributeError, match=r"no attribute 'delay': write send\(\.\.\.\)"):
        task.delay(1)
    loop: Any = Scheduler("shop").periodic(every="1h")(nothing)
    for name in ("send", "delay"):
        with pytest.raises(AttributeError, match=f"'{name}': a loop gets no calls"):
            getattr(loop, name)


async def test_a_decorated_task_is_still_a_coroutine_function():
    app = Scheduler("shop")

    @app.periodic(every="1h", args={"a": 1})
    async def add(a: int, b: int = 2) -> int:
        """Add."""
        return a + b

    assert await add(1) == 3
    assert await add(a=1, b=5) == 6
    names = [getattr(add, name) for name in ("__name__", "__doc__")]
    assert [*names, repr(add)] == ["add", "Add.", "<Task add>"]
    assert list(inspect.signature(add).parameters) == ["a", "b"]


def test_a_loop_has_the_options_of_its_decorator():
    app, retry = Scheduler("shop"), Retry(7)

    @app.periodic(
        schedule=Every("5s"),
        args={"order": ORDER},
        retry=retry,
        timeout="1h",
        concurrency=1,
        after_failure="pause",
    )
    async def ship(order: Order) -> None: ...

    loop, spec = app.loop("ship"), ship.spec
    assert spec is app.tasks["ship"] is loop.task
    assert (spec.timeout, spec.concurrency) == (timedelta(hours=1), 1)
    assert (spec.policy.retry, spec.policy.after_failure) == (retry, "pause")
    assert loop.schedule == Every("5s")
    assert loop.args == {"order": {"number": 1, "at": "2026-06-01T00:00:00Z", "lines": []}}
    assert spec.arguments.load(loop.args) == {"order": ORDER}


def test_a_task_has_defaults():
    app = Scheduler("shop")
    loop, task = app.periodic(every="1h", name="loop")(nothing).spec, app.task()(nothing).spec
    for spec in (loop, task):
        assert (spec.timeout, spec.concurrency) == (timedelta(minutes=10), 10)
        assert (spec.policy.retry, spec.policy.after_failure) == (Retry(), "continue")
        assert (spec.called, spec.ordered, spec.builtin) == (spec is task, False, False)
        assert spec.reads is spec.rate is spec.expires is None
        assert spec.subscriptions == ()


@pytest.mark.parametrize("expires", ["0s", "1h"])
def test_a_called_task_has_the_options_of_its_decorator(expires: str):
    task = Scheduler("shop").task(
        subscribe=[("orders", "order.*"), ("events", "", "fanout")], rate="50/s", expires=expires
    )
    spec = task(body).spec
    assert spec.called
    assert spec.reads is not None
    assert spec.subscriptions == (
        Subscription("body", "orders", "order.*"),
        Subscription("body", "events", "", "fanout"),
    )
    assert spec.rate == Rate(50, timedelta(seconds=1))
    assert (spec.expires, spec.ordered, spec.shards) == (parse_duration(expires), False, 1)
    spec = Scheduler("shop").task(ordered=True)(nothing).spec
    assert (spec.ordered, spec.concurrency, spec.shards) == (True, 1, 1)
