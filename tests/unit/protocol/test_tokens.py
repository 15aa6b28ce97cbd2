import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from scheduler.errors import Undecodable
from scheduler.protocol.epochs import Position, Verb
from scheduler.protocol.messages import LINE_LENGTH, Message, one_line, problems_of, summary_of
from scheduler.protocol.tokens import (
    Act,
    Ending,
    LastRun,
    LoopId,
    State,
    Token,
    decode,
    encode,
)
from scheduler.timing.schedules import Cron, Every

MONDAY = datetime(2026, 6, 1, 9, 0, tzinfo=UTC)
MONDAY_MS = 1_780_304_400_000
LONG_AGO = datetime.fromtimestamp(0, UTC)
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
    ),
)
FIRST = replace(PLAIN, first=True, known=True, act=Act(Verb.TRIGGER, MONDAY))


def on_the_wire(token: Token = PLAIN, body: bytes | None = None, **headers: Any) -> Message:
    """A token's message with other headers (named without prefix, `_` for `-`), or another body."""
    message = encode(token, "shop", expiration=None)
    changed = {f"scheduler-{name.replace('_', '-')}": value for name, value in headers.items()}
    kept = {
        name: value
        for name, value in (dict(message.headers) | changed).items()
        if value is not DELETED
    }
    return replace(message, headers=kept, body=message.body if body is None else body)


def test_a_small_token_has_exactly_these_headers():
    message = encode(PLAIN, "shop", expiration=timedelta(seconds=2))
    assert message == Message(
        body=b'{"schedule":{"every_ms":30000},"args":{},"carry":null}',
        headers={
            "scheduler-version": 1,
            "scheduler-namespace": "shop",
            "scheduler-task": "report",
            "scheduler-key": "",
            "scheduler-epoch": MONDAY_MS,
            "scheduler-life": MONDAY_MS - 5,
            "scheduler-seq": 0,
            "scheduler-attempt": 0,
            "scheduler-state": "armed",
            "scheduler-scheduled-at-ms": MONDAY_MS,
            "scheduler-due-at-ms": MONDAY_MS + 2000,
        },
        content_type="application/json",
        message_id="shop/report/0/0",
        type="scheduler.token",
        expiration=timedelta(seconds=2),
    )


def test_a_full_token_adds_its_reason_and_the_run_before():
    message = encode(FULL, "shop", expiration=None)
    assert message.message_id == "shop/report.berlin/41/2"
    assert message.expiration is None
    assert {name: message.headers[name] for name in sorted(set(message.headers) - PLAIN_NAMES)} == {
        "scheduler-last-duration-ms": 1500,
        "scheduler-last-error": "OSError: no",
        "scheduler-last-outcome": "retried",
        "scheduler-last-scheduled-at-ms": MONDAY_MS - 3_600_000,
        "scheduler-last-started-at-ms": MONDAY_MS - 59 * 60_000,
        "scheduler-reason": "paused by an operator",
    }
    assert message.headers["scheduler-key"] == "berlin"
    assert json.loads(message.body) == {
        "schedule": {"cron": "0 9 * * MON-FRI", "tz": "Europe/Berlin", "jitter_ms": 10_000},
        "args": {"city": "Zürich"},
        "carry": {"cursor": [1, None, "x"]},
    }


@pytest.mark.parametrize(
    ("token", "added"),
    [
        (
            FIRST,
            {
                "scheduler-first": 1,
                "scheduler-known": 1,
                "scheduler-act": "triggered",
                "scheduler-acted-at-ms": MONDAY_MS,
            },
        ),
        (replace(PLAIN, first=True), {"scheduler-first": 1}),
        (replace(FIRST, first=False, act=None), {}),
    ],
)
def test_a_first_token_says_so_and_whether_its_creator_knew(token: Token, added: dict[str, Any]):
    headers = encode(token, "shop", expiration=None).headers
    assert {name: headers[name] for name in set(headers) - PLAIN_NAMES} == added


PLAIN_NAMES = set(encode(PLAIN, "shop", expiration=None).headers)


@pytest.mark.parametrize("token", [PLAIN, FULL, FIRST])
def test_all_headers_are_strings_or_whole_numbers(token: Token):
    headers = encode(token, "shop", expiration=None).headers
    assert {type(value) for value in headers.values()} == {str, int}


LAST = LastRun(Ending.SUCCEEDED, MONDAY, MONDAY, timedelta(0))


@pytest.mark.parametrize(
    "token",
    [
        PLAIN,
        FULL,
        FIRST,
        replace(PLAIN, first=True),
        replace(PLAIN, epoch=0, life=0),
        replace(PLAIN, loop=LoopId("report", "a.b")),
        replace(PLAIN, schedule=Every("100ms", mode="fixed_rate", offset="50ms", catch_up="all")),
        replace(PLAIN, schedule=Cron("@daily", catch_up="skip", grace="1h")),
        replace(PLAIN, due_at=MONDAY - MS),
        replace(PLAIN, scheduled_at=LONG_AGO, due_at=LONG_AGO, previous_at=LONG_AGO),
        replace(PLAIN, act=Act(Verb.PAUSE, LONG_AGO), last=replace(LAST, scheduled_at=LONG_AGO)),
        replace(PLAIN, reason=""),
        replace(PLAIN, carry=False),
        replace(PLAIN, carry="\x00 \N{SNOWMAN}"),
        replace(PLAIN, seq=2**62, attempt=2**31),
        replace(PLAIN, last=LAST),
        replace(PLAIN, last=replace(LAST, error="ValueError")),
        *[replace(PLAIN, state=state) for state in State],
        *[replace(PLAIN, act=Act(verb, MONDAY)) for verb in Verb],
        *[replace(PLAIN, last=replace(LAST, ending=ending)) for ending in Ending],
    ],
)
def test_what_was_encoded_is_decoded(token: Token):
    assert decode(encode(token, "shop", expiration=None), "shop") == token


def test_moments_travel_in_whole_milliseconds():
    token = replace(PLAIN, scheduled_at=MONDAY + timedelta(microseconds=1999))
    assert decode(on_the_wire(token), "shop").scheduled_at == MONDAY + MS


@pytest.mark.parametrize(
    "header", ["key", "reason", "last_outcome", "epoch", "life", "first", "known", "act"]
)
def test_a_header_that_may_be_missing_is_not_missed(header: str):
    headers: dict[str, Any] = {header: DELETED}
    assert decode(on_the_wire(FIRST, **headers), "shop").loop == FIRST.loop


def test_when_it_was_may_be_missing_of_an_act_and_of_the_run_before():
    token = decode(on_the_wire(act="paused", last_outcome="succeeded"), "shop")
    assert token.act == Act(Verb.PAUSE, LONG_AGO)
    assert token.last == LastRun(Ending.SUCCEEDED, LONG_AGO, LONG_AGO, timedelta(0))


def made_before_epochs(**headers: Any) -> Message:
    generation = "001780304400000-0123456789ab"
    return on_the_wire(epoch=DELETED, life=DELETED, generation=generation, **headers)


@pytest.mark.parametrize("state", ["armed", "paused", "replay"])
def test_a_token_made_before_there_were_epochs_is_of_epoch_0(state: str):
    token = decode(made_before_epochs(state=state), "shop")
    assert token == replace(PLAIN, epoch=0, life=0, state=State(state))
    assert token.position == Position(0, 0)


def test_what_stood_in_for_a_run_before_there_were_epochs_is_refused():
    with pytest.raises(Undecodable, match=r"state: .* got 'guard'"):
        decode(made_before_epochs(state="guard", act="guarded"), "shop")


def test_headers_and_members_of_others_are_ignored():
    body = b'{"schedule":{"every_ms":30000},"more":1}'
    message = on_the_wire(body=body, tracing="abc")
    other = replace(message, headers=dict(message.headers) | {"x-death": [{"count": 1}]})
    assert decode(other, "shop") == PLAIN


INTEGERS = ("seq", "attempt", "scheduled_at_ms", "due_at_ms")
OPTIONAL_INTEGERS = (
    *("acted_at_ms", "last_scheduled_at_ms", "last_started_at_ms", "last_duration_ms"),
)
COUNTERS = ("epoch", "life", "first")
STRINGS = ("namespace", "task", "key")
OPTIONAL_STRINGS = ("reason", "last_error")
REQUIRED = ("version", "namespace", "task", "state", *INTEGERS)
NO_MILLISECONDS = 253_402_300_799_001
"""The first that no datetime holds."""


BAD_HEADERS: list[tuple[str, Any]] = [
    *[(name, DELETED) for name in REQUIRED],
    *[(name, "5") for name in (*INTEGERS, *OPTIONAL_INTEGERS, "version")],
    *[(name, True) for name in (*INTEGERS, *OPTIONAL_INTEGERS, *COUNTERS)],
    *[(name, 1.0) for name in (*INTEGERS, *OPTIONAL_INTEGERS, *COUNTERS)],
    *[(name, -1) for name in (*INTEGERS, *OPTIONAL_INTEGERS, *COUNTERS)],
    *[(name, None) for name in (*INTEGERS, *OPTIONAL_INTEGERS, *COUNTERS)],
    *[(name, 5) for name in (*STRINGS, *OPTIONAL_STRINGS)],
    *[(name, b"report") for name in (*STRINGS, *OPTIONAL_STRINGS)],
    *[(name, ["report"]) for name in (*STRINGS, *OPTIONAL_STRINGS)],
    *[(name, NO_MILLISECONDS) for name in INTEGERS[2:] + OPTIONAL_INTEGERS],
    *[(name, 2**63 - 1) for name in (*INTEGERS, *OPTIONAL_INTEGERS, "epoch", "life")],
    *[("version", other) for other in (0, 2, None, [1])],
    *[("state", other) for other in ("", "ARMED", "asleep", 1, None, ["armed"])],
    *[("previous_at_ms", other) for other in (-1, "5", True, 1.0, NO_MILLISECONDS)],
    *[("last_outcome", other) for other in ("", "failed", 1, ["retried"])],
    ("task", ""),
    *[("first", other) for other in (2, 2**63 - 1, "1")],
    *[("known", other) for other in (True, 1.0, -1, 2, "1")],
    *[("act", other) for other in ("", "guarded", "START", 1, ["seeded"])],
]


@pytest.mark.parametrize(("header", "value"), BAD_HEADERS)
def test_a_bad_header_is_named(header: str, value: Any):
    with pytest.raises(Undecodable, match=rf"^The headers cannot be understood: .*\b{header}: "):
        decode(on_the_wire(**{header: value}), "shop")


def schedule(text: str) -> bytes:
    return b'{"schedule":%s}' % text.encode()


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", "not JSON"),
        (b"hello", "not JSON"),
        (b"{", "not JSON"),
        (b'{"schedule": \xff}', "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"\x80abc", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"a":' * 100_000, "not JSON"),
        (b"1" * 5000, "not JSON"),  # Python refuses to read a number that long
        (b"null", "body cannot be understood: value"),
        (b"[]", "body cannot be understood: value"),
        (b'"token"', "body cannot be understood: value"),
        (b"7", "body cannot be understood: value"),
        (b"{}", "schedule: Field required"),
        (schedule("null"), "schedule: Input should be"),
        (schedule('"30s"'), "schedule: Input should be"),
        (b'{"schedule":{"every_ms":30000},"args":[]}', "args: Input should be"),
        (b'{"schedule":{"every_ms":30000},"args":null}', "args: Input should be"),
        (schedule("{}"), "every_ms or cron"),
        (schedule('{"every_ms":30000,"cron":"* * * * *"}'), "every_ms or cron"),
        (schedule('{"every_ms":"30s"}'), "every_ms: expected"),
        (schedule('{"every_ms":true}'), "every_ms: expected"),
        (schedule('{"every_ms":-1}'), "every_ms: expected"),
        (schedule('{"every_ms":1}'), "period: expected"),
        (schedule('{"every_ms":1e400}'), "every_ms: expected"),
        (schedule('{"every_ms":99999999999999999999}'), "every_ms: expected"),
        (schedule('{"every_ms":30000,"often":1}'), "often"),
        (schedule('{"every_ms":30000,"mode":"weekly"}'), "mode: expected"),
        (schedule('{"cron":"61 * * * *"}'), "minute field"),
        (schedule('{"cron":5}'), "cron: expected"),
        (schedule('{"cron":"* * * * *","tz":"Mars/Olympus"}'), "tz: expected"),
        (schedule('{"cron":"* * * * *","tz":["UTC"]}'), "tz: expected"),
        (schedule('{"cron":"* * * * *","catch_up":"never"}'), "catch_up: expected"),
    ],
)
def test_a_bad_body_is_refused_and_told(body: bytes, told: str):
    with pytest.raises(Undecodable, match=told):
        decode(on_the_wire(body=body), "shop")


def test_a_token_of_another_namespace_is_refused():
    with pytest.raises(Undecodable, match="belongs to namespace 'shop', this is 'bank'"):
        decode(on_the_wire(), "bank")


def test_a_message_that_is_no_token_at_all_is_refused():
    with pytest.raises(Undecodable, match="version: Field required"):
        decode(Message(b"hello"), "shop")


def test_a_token_is_triggered_when_it_is_due_before_its_tick():
    dues = [MONDAY - MS, MONDAY, MONDAY + MS]
    assert [replace(PLAIN, due_at=due).triggered for due in dues] == [True, False, False]


def test_a_token_stands_where_its_epoch_its_ticks_and_its_attempts_say():
    steps = [(0, 0), (0, 1), (1, 0), (1, 3), (2, 0)]
    positions = [replace(PLAIN, seq=s, attempt=a).position for s, a in steps]
    assert positions == [Position(MONDAY_MS, s, a) for s, a in steps]
    assert positions == sorted(positions)


def test_a_first_token_stands_before_the_one_that_has_joined():
    assert replace(PLAIN, first=True).position < PLAIN.position


@pytest.mark.parametrize(
    ("loop", "name"), [(LoopId("report"), "report"), (LoopId("report", "berlin"), "report.berlin")]
)
def test_a_loop_is_called_by_its_task_and_key(loop: LoopId, name: str):
    assert str(loop) == name


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", ""),
        (" a\n\n b\tc\r\n", "a b c"),
        ("x" * LINE_LENGTH, "x" * LINE_LENGTH),
        ("x" * (LINE_LENGTH + 1), "x" * (LINE_LENGTH - 1) + "…"),
        ("x\n" * 10_000, ("x " * LINE_LENGTH)[: LINE_LENGTH - 1] + "…"),
    ],
)
def test_a_text_becomes_one_line_that_fits(text: str, line: str):
    assert one_line(text) == line


@pytest.mark.parametrize(
    ("error", "summary"),
    [
        (ValueError("no"), "ValueError: no"),
        (ValueError(), "ValueError"),
        (ValueError("a\nb"), "ValueError: a b"),
        (KeyError("k"), "KeyError: 'k'"),
        (TimeoutError(), "TimeoutError"),
    ],
)
def test_an_exception_is_told_by_its_type_and_message(error: Exception, summary: str):
    assert summary_of(error) == summary


def test_the_summary_of_a_talkative_exception_is_cut():
    assert len(summary_of(ValueError("x" * 10_000))) == LINE_LENGTH


class Order(BaseModel):
    number: int
    item: str


def refusal_of(model: Callable[..., object], **values: object) -> ValidationError:
    with pytest.raises(ValidationError) as refused:
        model(**values)
    return refused.value


def test_problems_name_each_field_and_what_came_instead():
    told = problems_of(refusal_of(Order, number="many"))
    assert told.startswith("number: ")
    assert "got 'many'" in told
    assert "; item: Field required" in told


def test_problems_are_one_line_however_much_came():
    told = problems_of(refusal_of(Order, number="x\n" * 100_000, item=["y"] * 100_000))
    assert len(told) <= LINE_LENGTH
    assert "\n" not in told
