import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, TypeAdapter

from scheduler.errors import Undecodable
from scheduler.protocol.messages import (
    LEAD,
    LONGEST_LEAD_MS,
    Message,
    hatched_at,
    lead_of,
    one_line,
    own_headers,
    parsed,
    parsed_json,
    printable,
    summary_of,
    trace_of,
    validated,
)

SECOND = datetime(2026, 6, 1, 9, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Grüße, 漢字 😀", "Grüße, 漢字 😀"),
        ("a\n\tb", "a\n\tb"),
        ("a\x1b[31mb\n", "a\\x1b[31mb\n"),
        ("\r\0\x7f", "\\r\\x00\\x7f"),
        ("\ud800", "\\ud800"),
        ("\u202e", "\\u202e"),
    ],
)
def test_control_characters_are_escaped(text: str, shown: str):
    assert printable(text) == shown


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_an_exception_without_a_readable_text_has_a_summary():
    assert summary_of(Unspeakable()) == ("Unspeakable: (its message cannot be shown: RuntimeError)")
    summary = summary_of(ValueError("\udcff \x1b[31m"))
    assert summary.encode()
    assert summary.isprintable()


class Huge(str):
    """A text that is only read in part."""

    def split(self, sep: Any = None, maxsplit: Any = -1) -> list[str]:
        raise AssertionError("all of it was read")


def test_only_the_beginning_of_a_long_text_becomes_a_line():
    assert one_line(Huge("\x1b " * 1_000_000)) == "\\x1b " * 99 + "\\x1b…"
    assert one_line(Huge(" " * 1_000_000 + "x")) == "…"
    assert summary_of(ValueError("\n" * 1_000_000)) == "ValueError:…"


HEADERS: dict[str, Any] = {
    "scheduler-sent-at-ms": 5,
    "scheduler-task": "mail",
    "traceparent": "00-ab-cd-01",
    "tracestate": 7,
    "colour": "red",
    "x-death": [],
    "x-first-death-queue": "q",
    "x-last-death-reason": "expired",
    "x-delivery-count": 2,
    "x-acquired-count": 3,
}


def test_headers_of_the_broker_are_removed():
    sent = ["scheduler-sent-at-ms", "scheduler-task", "traceparent", "tracestate", "colour"]
    assert own_headers(HEADERS) == {name: HEADERS[name] for name in sent}
    assert trace_of(HEADERS) == {"traceparent": "00-ab-cd-01"}


def death(**values: Any) -> dict[str, Any]:
    return {"queue": "q", "count": 1, **values}


@pytest.mark.parametrize(
    ("deaths", "moment"),
    [
        ([death(reason="expired", time=SECOND), death(reason="rejected")], SECOND),
        ([death(reason="rejected", time=SECOND), death(reason="expired", time=SECOND)], None),
        ([death(reason="expired")], None),
        ([death(reason="expired", time=5)], None),
        ("expired", None),
        (None, None),
    ],
)
def test_the_broker_dates_the_end_of_the_last_wait(deaths: Any, moment: Any):
    assert hatched_at(Message(headers={"x-death": deaths})) == moment


class Form(BaseModel):
    model_config = ConfigDict(strict=True)

    count: int = 0
    text: str | None = None
    anything: Any = None


FORM = TypeAdapter(Form)


def told_by(read: Callable[[bytes], Form], body: bytes) -> str:
    """What comes of it: also what equals something else, as 1 does 1.0, is told apart."""
    try:
        return repr(read(body))
    except Undecodable as error:
        return f"refused: {error}"


@given(
    st.sampled_from(["count", "text", "anything", "unknown"]),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    ).map(json.dumps),
)
@example("count", "1.0")
@example("count", "true")
@example("count", "9" * 5000)
@example("text", '"\\ud800"')
@example("anything", '"\\ud800"')
@example("anything", "[" * 300 + "]" * 300)
@example("anything", "[" * 100_000 + "]" * 100_000)
@example("anything", '{"a": 1, "a": 2}')
@example("anything", "1e400")
@example("anything", "01")
def test_a_body_is_read_at_once_as_it_would_be_in_two_steps(place: str, value: str):
    body = f'{{"{place}": {value}}}'
    for encoding in ("utf-8", "utf-16"):
        told = told_by(lambda body: parsed(FORM, body, "form"), body.encode(encoding))
        steps = told_by(
            lambda body: validated(FORM, parsed_json(body), "form"), body.encode(encoding)
        )
        assert told == steps


@pytest.mark.parametrize(
    "body", ['{"a": 1}'.encode("utf-16"), '{"a": 1}'.encode("utf-32"), b'{"a": "\xed\xa0\x80"}']
)
def test_a_body_that_was_parsed_is_a_text(body: bytes):
    with pytest.raises(Undecodable, match="not JSON"):
        parsed_json(body)


@pytest.mark.parametrize("lead", [-1, LONGEST_LEAD_MS + 1, 20.0, "20", True, None])
def test_an_impossible_lead_is_not_zero(lead: object):
    for fits in (0, 20, LONGEST_LEAD_MS):
        assert lead_of({LEAD: fits}) == timedelta(milliseconds=fits)
    assert lead_of({}) == timedelta(0)
    # It would run the message too early.
    with pytest.raises(Undecodable, match="scheduler-lead-ms must be an integer from 0 to 1500"):
        lead_of({LEAD: lead})
