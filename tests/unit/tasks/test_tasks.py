import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Literal
from uuid import UUID

import pytest
from pydantic import BaseModel, Field

from scheduler import Context, Retry, Scheduler
from scheduler.errors import InvalidArguments, RegistrationError, ScheduleError
from scheduler.protocol.tokens import LoopId
from scheduler.protocol.topology import Subscription
from scheduler.tasks.tasks import Arguments
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


async def only_context(ctx: Context) -> None: ...


async def context_last(city: str, days: int, ctx: Context) -> None: ...


async def context_by_keyword(city: str, *, days: int, run: Context) -> None: ...


async def without_context(city: str, days: int) -> None: ...


async def with_defaults(city: str = "Bonn", *, days: int = 7) -> None: ...


@pytest.mark.parametrize(
    ("function", "context"),
    [
        (nothing, None),
        (only_context, "ctx"),
        (context_last, "ctx"),
        (context_by_keyword, "run"),
        (without_context, None),
    ],
)
def test_the_context_is_found_by_its_type_wherever_it_stands(
    function: Callable[..., Any], context: str | None
):
    assert Arguments(function).context == context


def test_what_has_a_default_may_be_left_out():
    assert Arguments(with_defaults).load({}) == {}
    assert Arguments(with_defaults).load({"days": 1}) == {"days": 1}


VALUES: list[tuple[Any, ...]] = [
    (int, 5, 5),
    (str, "a", "a"),
    (bool, True, True),
    (float, 0.5, 0.5),
    (Decimal, Decimal("0.10"), "0.10"),
    (datetime, ORDER.at, "2026-06-01T00:00:00Z"),
    (date, date(2026, 6, 1), "2026-06-01"),
    (timedelta, timedelta(minutes=1), "PT1M"),
    (UUID, UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    (Colour, Colour.RED, "red"),
    (Literal["a", "b"], "b", "b"),
    (int | None, None, None),
    (list[int], [1], [1]),
    (set[int], {1}, [1]),
    (tuple[int, str], (1, "a"), [1, "a"]),
    (dict[str, list[date]], {"a": [date(2026, 6, 1)]}, {"a": ["2026-06-01"]}),
    (Annotated[int, Field(gt=0)], 1, 1),
    (Order, ORDER, {"number": 1, "at": "2026-06-01T00:00:00Z", "lines": []}),
    (list[Order], [ORDER], [{"number": 1, "at": "2026-06-01T00:00:00Z", "lines": []}]),
    (Any, {"a": [None]}, {"a": [None]}),
]


@pytest.mark.parametrize(("kind", "value", "wire"), VALUES)
def test_a_value_travels_as_json_and_arrives_as_it_was(kind: Any, value: Any, wire: Any):
    async def task(value: Any) -> None: ...

    task.__annotations__["value"] = kind
    arguments = Arguments(task)
    assert arguments.dump({"value": value}) == {"value": wire}
    assert arguments.load({"value": wire}) == {"value": value}


@pytest.mark.parametrize(
    ("wire", "told"),
    [
        ({}, "city: Field required.*days: Field required"),
        ({"city": "Bonn"}, "days: Field required"),
        ({"city": 5, "days": 1}, "city: Input should be a valid string, got 5"),
        ({"city": "Bonn", "days": "few"}, "days: .*got 'few'"),
        ({"city": "Bonn", "days": 1, "hours": 2}, "hours: Extra inputs are not permitted"),
        ({"city": "Bonn", "days": 1, "ctx": None}, "ctx: Extra inputs are not permitted"),
    ],
)
def test_arguments_that_do_not_fit_are_named(wire: dict[str, Any], told: str):
    with pytest.raises(InvalidArguments, match=f"The arguments do not fit context_last: .*{told}"):
        Arguments(context_last).load(wire)


async def any_value(value: Any) -> None: ...


@pytest.mark.parametrize("value", [object(), lambda: None, b"\xff", {1: {2: object()}}])
def test_what_json_cannot_hold_is_refused(value: Any):
    with pytest.raises(InvalidArguments, match="any_value cannot be sent as JSON"):
        Arguments(any_value).dump({"value": value})


async def positional_only(city: str, /) -> None: ...


async def many(*cities: str) -> None: ...


async def named(**cities: str) -> None: ...


async def unresolved(city: "Missing") -> None: ...  # pyright: ignore[reportUnknownParameterType]


async def unknown_type(events: asyncio.Event) -> None: ...


UNFIT: list[tuple[Any, ...]] = [
    (positional_only, "positional_only has the parameter 'city: str'.*positional-only"),
    (many, r"many has the parameter '\*cities: str'.*neither \*args"),
    (named, r"named has the parameter '\*\*cities: str'"),
    (unresolved, "unresolved cannot be resolved: .*'Missing'.*outside `if TYPE_CHECKING`"),
    (unknown_type, "unknown_type cannot be checked: (?!.*model_config).*types that pydantic knows"),
]


@pytest.mark.parametrize(("function", "told"), UNFIT)
def test_a_signature_that_no_message_can_fill_is_refused(function: Callable[..., Any], told: str):
    with pytest.raises(RegistrationError, match=f"(?s){told}"):
        Scheduler("shop").periodic(every="1h")(function)


def blocking() -> None: ...


async def generating() -> AsyncIterator[int]:
    yield 1


class Callee:
    async def __call__(self) -> None: ...


def test_a_generator_is_refused_with_what_to_leave_out():
    with pytest.raises(
        RegistrationError, match="'generating' is a generator function.* use ctx.carry"
    ):
        Scheduler("shop").task()(generating)


def test_what_is_no_coroutine_function_blocks():
    app = Scheduler("shop")
    app.task(blocking)
    app.task(nothing)
    assert [task.blocks for task in app.tasks.values()] == [True, False]


@pytest.mark.parametrize("other", [5, Callee(), functools.partial(nothing), Callee])
def test_what_is_no_function_is_refused(other: Any):
    with pytest.raises(RegistrationError, match="A task must be a function, got"):
        Scheduler("shop").task()(other)


NAMES = ["", "a b", "a.b", "a/b", "a#", "*", "ä", "x" * 65, "a\n"]


@pytest.mark.parametrize("name", NAMES[1:])
def test_a_name_that_a_queue_cannot_have_is_refused(name: str):
    with pytest.raises(RegistrationError, match="1 to 64 letters.*pass name="):
        Scheduler("shop").periodic(every="1h", name=name)(nothing)


@pytest.mark.parametrize("name", ["a", "A-b_9", "x" * 64])
def test_a_task_may_have_another_name_than_its_function(name: str):
    app = Scheduler("shop")
    app.periodic(every="1h", name=name)(nothing)
    assert (list(app.tasks), list(app.loops)) == ([name], [LoopId(name)])


@pytest.mark.parametrize("namespace", NAMES)
def test_a_namespace_that_a_queue_cannot_have_is_refused(namespace: str):
    with pytest.raises(RegistrationError, match="A namespace must have 1 to 64 letters"):
        Scheduler(namespace)


@pytest.mark.parametrize(
    ("options", "error", "told"),
    [
        ({}, ScheduleError, "schedule of 'nothing': expected one of every=, cron= and schedule="),
        ({"every": "often"}, ScheduleError, "schedule of 'nothing': .*got: 'often'"),
        ({"every": "1ms"}, ScheduleError, "schedule of 'nothing': every: expected at least"),
        ({"cron": "* * *"}, ScheduleError, "schedule of 'nothing': .*expected five fields"),
        ({"cron": "0 25 * * *"}, ScheduleError, "schedule of 'nothing': .*the hour field"),
        ({"cron": "0 9 * * *", "tz": "Berlin"}, ScheduleError, "did you mean Europe/Berlin"),
        ({"every": "1s", "tz": "UTC"}, ScheduleError, "Every takes no tz="),
        ({"every": "1s", "cron": "* * * * *"}, ScheduleError, "got: every and cron"),
        ({"every": "1h", "timeout": "0s"}, RegistrationError, "timeout of nothing .*longer than"),
        ({"every": "1h", "timeout": "long"}, RegistrationError, "timeout of nothing: .*'long'"),
        ({"every": "1h", "concurrency": 0}, RegistrationError, "concurrency of nothing .*got 0"),
        ({"every": "1h", "concurrency": -1}, RegistrationError, "at least 1"),
        ({"every": "1h", "shards": 0}, RegistrationError, "shards of nothing .*1 to 16, got 0"),
        ({"every": "1h", "shards": 17}, RegistrationError, "1 to 16, got 17"),
        ({"every": "1h", "shards": "4"}, RegistrationError, "1 to 16, got '4'"),
        ({"every": "1h", "shards": True}, RegistrationError, "1 to 16, got True"),
        ({"every": "1h", "retry": 3}, RegistrationError, "Retry"),
        ({"every": "1h", "args": {"a": 1}}, RegistrationError, "a: Extra inputs"),
        (
            {"every": "1h", "after_failure": "paus"},
            RegistrationError,
            "'continue' or 'pause', got 'paus'",
        ),
    ],
)
def test_a_bad_option_is_told(options: dict[str, Any], error: type[Exception], told: str):
    app = Scheduler("shop")
    with pytest.raises(error, match=told):
        app.periodic(**options)(nothing)
    assert not app.tasks
    assert not app.loops


def test_a_context_without_an_annotation_is_told():
    def count(ctx): ...  # pyright: ignore[reportMissingParameterType, reportUnknownParameterType]

    with pytest.raises(RegistrationError, match="ctx of count has no annotation: write `ctx: Cont"):
        Scheduler("shop").task(count)  # pyright: ignore[reportUnknownArgumentType]


def test_what_celery_has_on_a_task_is_answered_with_what_there_is_here():
    task: Any = Scheduler("shop").task(nothing)
    with pytest.raises(AttributeError, match=r"no attribute 'delay': write send\(\.\.\.\)"):
        task.delay(1)
    loop: Any = Scheduler("shop").periodic(every="1h")(nothing)
    for name in ("send", "delay"):
        with pytest.raises(AttributeError, match=f"'{name}': a loop gets no calls"):
            getattr(loop, name)


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (None, "city: Field required.*Give the parameters of without_context defaults, or pass"),
        ({"city": "Bonn"}, "days: Field required.*defaults, or pass args="),
        ({"city": "Bonn", "days": "few"}, "days: .*got 'few'"),
        ({"city": "Bonn", "days": 1, "x": 1}, "x: Extra inputs"),
    ],
)
def test_a_loop_needs_all_arguments_of_its_task(args: dict[str, Any] | None, told: str):
    with pytest.raises(RegistrationError, match=told):
        Scheduler("shop").periodic(every="1h", args=args)(without_context)


def test_a_loop_has_its_arguments_as_they_travel():
    app = Scheduler("shop")

    @app.periodic(every="1h", args={"order": ORDER})
    async def ship(order: Order) -> None: ...

    assert app.loop("ship").args == {
        "order": {"number": 1, "at": "2026-06-01T00:00:00Z", "lines": []}
    }
    assert ship.spec.arguments.load(app.loop("ship").args) == {"order": ORDER}


async def test_a_decorated_task_is_still_the_coroutine_function_it_was():
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


def test_a_task_has_what_its_decorator_was_given():
    app = Scheduler("shop")
    retry = Retry(7)
    task = app.periodic(
        schedule=Every("5s"), retry=retry, timeout="1h", concurrency=3, after_failure="pause"
    )(nothing)
    spec = app.tasks["nothing"]
    assert task.spec is spec is app.loop("nothing").task
    assert (spec.timeout, spec.concurrency) == (timedelta(hours=1), 3)
    assert (spec.policy.retry, spec.policy.after_failure) == (retry, "pause")
    assert app.loop("nothing").schedule == Every("5s")


def test_a_task_has_defaults():
    app = Scheduler("shop")
    app.periodic(every="1h")(nothing)
    spec = app.tasks["nothing"]
    assert (spec.timeout, spec.concurrency) == (timedelta(minutes=10), 10)
    assert (spec.policy.retry, spec.policy.after_failure) == (Retry(), "continue")
    assert (spec.called, spec.ordered, spec.builtin) == (False, False, False)
    assert spec.reads is spec.rate is spec.expires is None
    assert spec.subscriptions == ()


def test_a_task_shows_what_was_written_about_it():
    app = Scheduler("shop")
    app.periodic(every="1h")(nothing)
    assert repr(app.tasks["nothing"]).startswith("TaskSpec(name='nothing', policy=")


def test_a_task_may_run_one_at_a_time():
    app = Scheduler("shop")
    assert app.periodic(every="1h", concurrency=1)(nothing).spec.concurrency == 1
    with pytest.raises(RegistrationError, match="at least 1, got 1.5"):
        app.periodic(every="1h", name="other", concurrency=1.5)(nothing)  # pyright: ignore[reportArgumentType]


async def body(body: bytes) -> None: ...


def test_a_task_that_is_called_has_what_its_decorator_was_given():
    task = Scheduler("shop").task(
        subscribe=[("orders", "order.*"), ("events", "", "fanout")], rate="50/s", expires="1h"
    )(body)
    spec = task.spec
    assert spec.called
    assert spec.reads is not None
    assert spec.subscriptions == (
        Subscription("body", "orders", "order.*"),
        Subscription("body", "events", "", "fanout"),
    )
    assert spec.rate == Rate(50, timedelta(seconds=1))
    assert (spec.expires, spec.ordered) == (timedelta(hours=1), False)


def test_a_task_that_is_called_has_defaults():
    spec = Scheduler("shop").task()(nothing).spec
    assert (spec.called, spec.ordered, spec.builtin) == (True, False, False)
    assert spec.reads is spec.rate is spec.expires is None


def test_messages_may_expire_at_once():
    assert Scheduler("shop").task(expires="0s")(nothing).spec.expires == timedelta(0)


def test_an_ordered_task_runs_one_message_at_a_time():
    spec = Scheduler("shop").task(ordered=True)(nothing).spec
    assert (spec.ordered, spec.concurrency) == (True, 1)
    with pytest.raises(RegistrationError, match="nothing takes no concurrency="):
        Scheduler("shop").task(ordered=True, concurrency=9)(nothing)


@pytest.mark.parametrize("option", [{"ordered": True}, {"rate": "5/s"}])
def test_a_task_whose_messages_take_turns_has_one_queue(option: dict[str, Any]):
    with pytest.raises(RegistrationError, match="shards of nothing: .* has one queue"):
        Scheduler("shop").task(shards=2, **option)(nothing)
    assert Scheduler("shop").task(**option)(nothing).spec.shards == 1


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"subscribe": [("orders",)]}, r"subscribe of body must be a list of \(exchange, rou"),
        ({"subscribe": [5]}, r"subscribe of body must be a list of \(exchange, rou"),
        ({"subscribe": 5}, r"subscribe of body must be a list of .*, got 5"),
        (
            {"subscribe": ("orders", "order.paid")},
            "subscribe of body must be a list of .*, got 'orders'",
        ),
        ({"subscribe": "orders"}, "subscribe of body must be a list of .*, got 'orders'"),
        ({"subscribe": [("orders", 5)]}, "subscribe of body must be a list of "),
        (
            {"subscribe": [("orders", "order.*", "topik")]},
            "subscribe of body: There is no type of exchange 'topik'; did you mean 'topic'",
        ),
        ({"subscribe": [("orders", "#", "headers")]}, "there are: direct, fanout, topic"),
        ({"expires": "old"}, "expires of body: .*got: 'old'"),
        ({"expired": "bin"}, "expired must be 'park' or 'drop', got 'bin'"),
        ({"retry": 3}, r"retry must be a Retry, such as Retry\(3\), got 3"),
        ({"rate": 50}, 'such as "50/s" or "100/m", got 50'),
        ({"name": "_supervision"}, "cannot be named '_supervision': the name is reserved"),
    ],
)
def test_a_bad_option_of_a_task_that_is_called_is_told(options: dict[str, Any], told: str):
    app = Scheduler("shop")
    with pytest.raises(RegistrationError, match=told):
        app.task(**options)(body)
    assert not app.tasks
