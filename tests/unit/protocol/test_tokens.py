import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, BaseModel, ValidationError

from scheduler.errors import Undecodable
from scheduler.protocol.epochs import Verb
from scheduler.protocol.messages import Message, problems_of
from scheduler.protocol.tokens import (
    Act,
    Ending,
    LastRun,
    LoopId,
    State,
    Token,
    claims_of,
    decode,
    encode,
)
from scheduler.timing.schedules import Cron, Every

MONDAY = datetime(2026, 6, 1, 9, 0, tzinfo=UTC)
MONDAY_MS = 1_780_304_400_000
MS = timedelta(milliseconds=1)
DELETED: Any = object()
"""Stands for a header that is not there."""

PLAIN = Token(
    loop=LoopId("report"),
    schedule=Every("30s"),
    scheduled_at=MONDAY,
    due_at=MONDAY + timedelta(seconds=2),
    epoch=MONDAY_MS,
    life=MONDAY_MS - 5,
)
FULL = replace(
    PLAIN,
    loop=LoopId("report", "berlin"),
    schedule=Cron("0 9 * * MON-FRI", tz="Europe/Berlin", jitter="10s"),
    seq=41,
    attempt=2,
    state=State.PAUSED,
    args={"city": "Zürich"},
    carry={"cursor": [1, None, "x"]},
    reason="paused by an operator",
    last=LastRun(
        ending=Ending.RETRIED,
        scheduled_at=MONDAY - timedelta(hours=1),
        started_at=MONDAY - timedelta(minutes=59),
        duration=timedelta(seconds=1.5),
        error="OSError: no",
        attempt=2,
    ),
)
FIRST = replace(PLAIN, first=True, act=Act(Verb.TRIGGER, MONDAY))


def body_of(message: Message) -> dict[str, Any]:
    return json.loads(message.body)


def on_the_wire(token: Token = PLAIN, **members: Any) -> Message:
    """A token's message with other members in its body (`a__b`: b of a)."""
    message = encode(token, "shop")
    body = body_of(message)
    for name, value in members.items():
        *path, last = name.split("__")
        inner = body
        for step in path:
            inner = inner[step]
        inner[last] = value
        if value is DELETED:
            del inner[last]
    return replace(message, body=json.dumps(body).encode())


PLAIN_BODY = {
    "version": 1,
    "namespace": "shop",
    "task": "report",
    "key": "",
    "epoch": MONDAY_MS,
    "life": MONDAY_MS - 5,
    "first": False,
    "seq": 0,
    "attempt": 0,
    "state": "armed",
    "scheduled_at_ms": MONDAY_MS,
    "due_at_ms": MONDAY_MS + 2000,
    "schedule": {"every_ms": 30000},
    "args": {},
}


def test_a_small_token_is_exactly_this_and_a_full_one_adds_to_it():
    assert body_of(encode(PLAIN, "shop")) == PLAIN_BODY
    traced = replace(FULL, trace={"traceparent": "00-ab-cd-01"})
    message = encode(traced, "shop", lead=20 * MS)
    assert replace(message, body=b"") == Message(
        content_type="application/json",
        headers={"traceparent": "00-ab-cd-01", "scheduler-lead-ms": 20},
        message_id="shop/report.berlin/41/2",
        type="scheduler.token",
    )
    assert decode(message, "shop") == traced
    assert body_of(message) == {
        **PLAIN_BODY,
        "key": "berlin",
        "seq": 41,
        "attempt": 2,
        "state": "paused",
        "reason": "paused by an operator",
        "last": {
            "outcome": "retried",
            "scheduled_at_ms": MONDAY_MS - 3_600_000,
            "started_at_ms": MONDAY_MS - 59 * 60_000,
            "duration_ms": 1500,
            "error": "OSError: no",
            "attempt": 2,
        },
        "schedule": {"cron": "0 9 * * MON-FRI", "tz": "Europe/Berlin", "jitter_ms": 10_000},
        "args": {"city": "Zürich"},
        "carry": {"cursor": [1, None, "x"]},
    }


LAST = LastRun(Ending.SUCCEEDED, MONDAY, MONDAY, timedelta(0))


@pytest.mark.parametrize(
    "member", ["key", "first", "reason", "previous_at_ms", "args", "carry", "act", "last"]
)
def test_optional_members_may_be_missing(member: str):
    whole = replace(FIRST, reason="why", previous_at=MONDAY, last=LAST)
    missing: dict[str, Any] = {member: DELETED}
    assert decode(on_the_wire(whole, **missing), "shop").seq == whole.seq


def test_foreign_headers_and_members_are_ignored():
    message = on_the_wire(FIRST, tracing="abc", act__mood="good")
    other = replace(message, headers={"x-death": [{"count": 1}], "scheduler-seq": 7})
    assert decode(other, "shop") == FIRST


MOMENTS = ("scheduled_at_ms", "due_at_ms")
OPTIONAL_MOMENTS = (
    *("act__at_ms", "last__scheduled_at_ms", "last__started_at_ms", "last__duration_ms"),
)
COUNTERS = ("epoch", "life", "seq", "attempt")
INTEGERS = (*COUNTERS, *MOMENTS, *OPTIONAL_MOMENTS)
STRINGS = ("task", "key", "reason", "last__error")
REQUIRED = ("version", "namespace", "task", "state", "schedule", *INTEGERS)
NO_MILLISECONDS = 253_402_300_799_001
"""The first that no datetime holds."""
WHOLE = replace(PLAIN, act=Act(Verb.PAUSE, MONDAY), last=LAST)


BAD_MEMBERS: list[tuple[str, Any]] = [
    *[(name, DELETED) for name in (*REQUIRED, "act__verb", "last__outcome")],
    *[(name, other) for name in INTEGERS for other in ("5", True, 1.0, -1, 2**63 - 1)],
    *[(name, NO_MILLISECONDS) for name in (*MOMENTS, *OPTIONAL_MOMENTS)],
    *[("first", other) for other in (1, "true", None)],
    *[(name, 5) for name in STRINGS],
    *[("version", other) for other in (0, 2, "1", True)],
    *[("state", other) for other in ("asleep", 1, None)],
    *[("previous_at_ms", other) for other in (-1, "5", NO_MILLISECONDS)],
    *[("last__outcome", other) for other in ("failed", 1)],
    *[("act__verb", other) for other in ("guarded", 1)],
    *[(name, "x") for name in ("act", "last", "args", "schedule")],
    ("task", ""),
]


@pytest.mark.parametrize(("member", "value"), BAD_MEMBERS)
def test_a_bad_member_is_named(member: str, value: Any):
    name = re.escape(member.replace("__", "."))
    with pytest.raises(Undecodable, match=rf"^The token cannot be understood: .*\b{name}\b.*: "):
        decode(on_the_wire(WHOLE, **{member: value}), "shop")


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", "not JSON"),
        (b'{"schedule": \xff}', "not JSON"),
        (b'{"a":' * 100_000, "not JSON"),
        (b"1" * 5000, "not JSON"),  # Python refuses to read a number that long
        (b"[]", "token cannot be understood: value"),
        (b"{}", "version: Field required"),
    ],
)
def test_a_bad_body_is_refused(body: bytes, told: str):
    broken = replace(on_the_wire(), body=body)
    with pytest.raises(Undecodable, match=told):
        decode(broken, "shop")
    assert claims_of(broken) == {}


def test_a_message_that_is_no_token_of_this_namespace_is_refused():
    with pytest.raises(Undecodable, match="belongs to namespace 'shop', this is 'bank'"):
        decode(on_the_wire(), "bank")
    other = on_the_wire(seq="many")
    assert claims_of(other)["seq"] == "many"  # unchecked
    other = replace(other, type=None)
    assert claims_of(other) == {}
    with pytest.raises(Undecodable, match="Not a token: its type is None, not 'scheduler.token'"):
        decode(other, "shop")


def test_a_token_is_triggered_when_it_is_due_before_its_tick():
    dues = [MONDAY - MS, MONDAY, MONDAY + MS]
    assert [replace(PLAIN, due_at=due).triggered for due in dues] == [True, False, False]


def even(number: int) -> int:
    if number > 9:
        raise AssertionError("at most 9")
    if number % 2:
        raise ValueError("expected an even number")
    return number


class Order(BaseModel):
    number: Annotated[int, AfterValidator(even)]
    item: str


@pytest.mark.parametrize(
    ("number", "told"),
    [
        ("many", "number: Input should be .*, got 'many'; item: Field required"),
        # Without the kind of the exception.
        (3, "number: expected an even number, got 3; item: "),
        (10, "number: at most 9, got 10; item: "),
    ],
)
def test_problems_name_each_field_and_its_value(number: Any, told: str):
    wrong: Any = {"number": number}
    with pytest.raises(ValidationError) as refused:
        Order(**wrong)
    assert re.match(told, problems_of(refused.value))
