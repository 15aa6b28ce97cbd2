from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel, Field, SecretStr

from scheduler.errors import InvalidArguments, RegistrationError
from scheduler.protocol.messages import Message
from scheduler.tasks.context import Context
from scheduler.tasks.tasks import Arguments, BodyReader


async def ships(ctx: Context, order: int, city: str = "Bonn", *, times: int = 1) -> None: ...


@pytest.mark.parametrize(
    ("args", "kwargs", "wire"),
    [
        ((5, "Kiel"), {"times": 2}, {"order": 5, "city": "Kiel", "times": 2}),
        ((), {"order": 5}, {"order": 5}),  # what has a default may be left out
    ],
)
def test_the_arguments_of_a_call_travel_by_name(
    args: tuple[Any, ...], kwargs: dict[str, Any], wire: dict[str, Any]
):
    assert Arguments(ships).bind(*args, **kwargs) == Arguments(ships).load(wire) == wire


class Renamed(BaseModel):
    number: int = Field(alias="orderNumber")


async def takes_renamed(order: Renamed) -> None: ...


def test_a_model_travels_by_its_aliases():
    arguments, order = Arguments(takes_renamed), Renamed(orderNumber=5)
    assert arguments.dump({"order": order}) == {"order": {"orderNumber": 5}}
    assert arguments.load({"order": {"orderNumber": 5}}) == {"order": order}


class Tagged(BaseModel):
    tags: frozenset[str]


@dataclass(slots=True)
class Labelled:
    labels: set[str]


async def takes_sets(
    names: set[str], *, each: list[Labelled], of: dict[int, tuple[set[str], int]], tagged: Tagged
) -> None: ...


def test_the_items_of_a_set_travel_in_one_order():
    items = [f"{number}" for number in range(9)]
    some = {*items}
    tagged = Tagged(tags=frozenset(some))
    wire = Arguments(takes_sets).bind(some, each=[Labelled(some)], of={7: (some, 5)}, tagged=tagged)
    assert wire == {
        "names": items,
        "each": [{"labels": items}],
        "of": {"7": [items, 5]},
        "tagged": {"tags": items},
    }


async def takes_number(number: float) -> None: ...


async def takes_anything(number: Any) -> None: ...


async def takes_secret(number: SecretStr) -> None: ...


@pytest.mark.parametrize(
    ("function", "value", "told"),
    [
        (takes_number, float("nan"), "cannot be sent as JSON"),
        (takes_anything, -float("inf"), "would change on the way"),
        (takes_anything, b"\xff", "cannot be sent as JSON"),
        (takes_anything, {1: {2: object()}}, "cannot be sent as JSON"),
        (takes_secret, SecretStr("open-sesame"), "would change on the way"),
    ],
)
def test_values_that_json_cannot_hold_are_refused(function: Any, value: Any, told: str):
    with pytest.raises(InvalidArguments, match=f"{function.__name__} {told}") as refused:
        Arguments(function).dump({"number": value})
    assert "sesame" not in str(refused.value)


# What somebody else sent


class Order(BaseModel):
    number: int


async def takes_bytes(ctx: Context, body: bytes) -> None: ...


async def takes_text(body: str) -> None: ...


async def takes_order(order: Order) -> None: ...


async def takes_any(body) -> None:  # pyright: ignore[reportMissingParameterType, reportUnknownParameterType]
    ...


async def takes_default(body: int = 5) -> None: ...


def read(function: Any, message: Message) -> dict[str, Any]:
    return BodyReader(function, Arguments(function)).read(message)


JSON = b'{"number": 5}'


ORDER = {"order": Order(number=5)}
CLOUD_EVENT = "application/cloudevents+json"
READ: list[tuple[Any, Message, Any]] = [
    (takes_bytes, Message(b"\xff", content_type="image/png"), {"body": b"\xff"}),
    (takes_text, Message("é".encode(), content_type="text/plain"), {"body": "é"}),
    (takes_text, Message(JSON), {"body": JSON.decode()}),
    (takes_order, Message(JSON, content_type=""), ORDER),
    (takes_order, Message(JSON, content_type="application/json; charset=utf-8"), ORDER),
    (takes_order, Message(JSON, content_type="Application/JSON ;x"), ORDER),
    (takes_order, Message(JSON, content_type=CLOUD_EVENT), ORDER),
    (takes_any, Message(b"[1, null]"), {"body": [1, None]}),
    (takes_default, Message(b"3"), {"body": 3}),
]


@pytest.mark.parametrize(("function", "message", "argument"), READ)
def test_a_foreign_message_fills_the_one_parameter(
    function: Any, message: Message, argument: dict[str, Any]
):
    assert read(function, message) == argument


NO_JSON = "The content type .* cannot be read into 'order': annotate it as bytes"
UNREADABLE: list[tuple[Any, Message, str]] = [
    (takes_order, Message(JSON, content_type="application/xml; not=application/json"), NO_JSON),
    *((takes_order, Message(JSON, content_type=kind), NO_JSON) for kind in ("json", "+json/x")),
    (takes_order, Message(JSON, content_type="text/json5"), NO_JSON),
    (takes_any, Message(b"[" * 100_000), "recursion limit exceeded"),
    (takes_text, Message(b"\xff"), "is not UTF-8 text: 'utf-8' codec can't decode byte 0xff"),
]


@pytest.mark.parametrize(("function", "message", "told"), UNREADABLE)
def test_a_body_that_cannot_be_read_is_refused(function: Any, message: Message, told: str):
    with pytest.raises(InvalidArguments, match=told):
        read(function, message)


async def takes_none(ctx: Context) -> None: ...


async def takes_two(a: int, b: int = 2) -> None: ...


@pytest.mark.parametrize(("function", "count"), [(takes_none, 0), (takes_two, 2)])
def test_a_message_fills_exactly_one_parameter(function: Any, count: int):
    with pytest.raises(RegistrationError, match=f"{function.__name__} has {count}"):
        BodyReader(function, Arguments(function))
