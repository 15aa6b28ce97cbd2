from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from scheduler.errors import Undecodable
from scheduler.protocol.calls import Call, decode_call, is_call, new_call, retried, spent, task_key
from scheduler.protocol.messages import Message
from scheduler.protocol.tokens import is_token
from scheduler.timing.moments import LATEST_MS
from tests import stage
from tests.bad_input import nested

SENT = datetime(2026, 6, 1, 9, 0, 0, 250_000, tzinfo=UTC)
SENT_MS = 1_780_304_400_250
SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)

CALL = new_call(
    "shop",
    "send_sms",
    {"phone": "+49 1", "text": "hé"},
    message_id="id",
    sent_at=SENT,
    due_at=SENT + SECOND,
    expires_at=SENT + HOUR,
    priority=3,
    correlation_id="order 7",
    headers={"traceparent": "00-ab-cd-01", "scheduler-task": "other"},  # no header replaces ours
)
FOREIGN = replace(
    stage.FOREIGN,
    body=b"\xff<order/>",
    headers={**stage.FOREIGN.headers, "price": Decimal("0.1")},
    expiration=SECOND,
)
FROM_BROKER = {
    "x-death": [{"count": 1, "reason": "expired"}],
    "x-first-death-queue": "shop.v1.later.1s",
    "x-last-death-reason": "expired",
    "x-delivery-count": 2,
}


def read(message: Message, namespace: str = "shop", task: str = "send_sms") -> Call:
    return decode_call(message, namespace, task, exchange="orders", routing_key="order.paid")


def test_a_call_looks_like_this_on_the_wire():
    assert (
        Message(
            body='{"args":{"phone":"+49 1","text":"hé"}}'.encode(),
            headers={
                "traceparent": "00-ab-cd-01",
                "scheduler-version": 1,
                "scheduler-namespace": "shop",
                "scheduler-task": "send_sms",
                "scheduler-sent-at-ms": SENT_MS,
                "scheduler-due-at-ms": SENT_MS + 1000,
                "scheduler-expires-at-ms": SENT_MS + 3_600_000,
            },
            content_type="application/json",
            message_id="id",
            correlation_id="order 7",
            type="scheduler.call",
            priority=3,
            timestamp=SENT,
        )
        == CALL
    )
    assert task_key("send_sms") == "task.send_sms"
    assert is_call(CALL)
    assert not is_token(CALL)


def test_a_call_comes_back_as_it_was_sent():
    assert read(CALL) == Call(
        task="send_sms",
        message=CALL,
        exchange="orders",
        routing_key="order.paid",
        args={"phone": "+49 1", "text": "hé"},
        sent_at=SENT,
        due_at=SENT + SECOND,
        expires_at=SENT + HOUR,
        namespace="shop",
    )
    assert read(CALL).id == "id"
    assert read(Message()).id == ""
    # What somebody else sent is left as it is.
    whole = replace(FOREIGN, expiration=None)
    assert read(FOREIGN) == Call("send_sms", whole, "orders", "order.paid", namespace="shop")


@pytest.mark.parametrize("message", [CALL, FOREIGN], ids=["ours", "foreign"])
def test_a_retried_message_changes_only_its_counting_headers(message: Message):
    failed_at = SENT + 5 * SECOND
    counting = {
        "scheduler-attempt": 1,
        "scheduler-first-failed-at-ms": SENT_MS + 5000,
        "scheduler-exchange": "orders",
        "scheduler-key": "order.paid",
    }
    last = spent(read(message), failed_at=failed_at)
    assert last == replace(message, headers={**message.headers, **counting}, expiration=None)
    again = retried(read(message), due_at=failed_at + SECOND, failed_at=failed_at)
    headers = {**last.headers, "scheduler-due-at-ms": SENT_MS + 6000}
    assert again == replace(last, headers=headers)


def test_a_call_for_a_moment_is_retried_at_another_one() -> None:
    failed_at = SENT + 5 * SECOND
    message = retried(
        read(call_with(CALL, not_before_ms=SENT_MS)), due_at=failed_at + SECOND, failed_at=failed_at
    )
    assert read(message).not_before == failed_at + SECOND


@pytest.mark.parametrize("message", [CALL, FOREIGN], ids=["ours", "foreign"])
def test_every_retry_counts_and_remembers_the_first(message: Message):
    failures = [SENT + n * SECOND for n in (5, 10, 70)]
    for attempt, failed_at in enumerate(failures, 1):
        # It comes back through the timers, over another exchange and with another key.
        back = retried(read(message), due_at=failed_at + SECOND, failed_at=failed_at)
        call = decode_call(back, "shop", "send_sms", exchange="delay.s", routing_key="0.1.task.x")
        assert call.attempt == attempt
        assert call.first_failed_at == failures[0]
        assert (call.exchange, call.routing_key) == ("orders", "order.paid")
        assert (call.message.body, call.id) == (message.body, message.message_id)
        message = replace(back, headers={**back.headers, **FROM_BROKER})


def call_with(message: Message, **headers: Any) -> Message:
    named = {f"scheduler-{name.replace('_', '-')}": value for name, value in headers.items()}
    return replace(message, headers={**message.headers, **named})


BROKEN: list[tuple[dict[str, Any], str]] = [
    ({"version": 0}, "version: "),
    ({"version": True}, "version: "),
    ({"namespace": 5}, "namespace: Input should be a valid string, got 5"),
    ({"task": "other"}, "a call of 'other' in namespace 'shop'; this is 'send_sms'"),
    ({"task": b"send_sms"}, "task: "),
    ({"sent_at_ms": LATEST_MS + 1}, "sent_at_ms: "),
    ({"sent_at_ms": SENT}, "sent_at_ms: "),
    ({"due_at_ms": -1}, "due_at_ms: "),
    ({"expires_at_ms": "1h"}, "expires_at_ms: "),
    ({"attempt": -1}, "attempt: "),
    ({"attempt": 2**63 - 1}, "attempt: "),
    ({"attempt": Decimal(1)}, "attempt: "),
    ({"first_failed_at_ms": -(2**63)}, "first_failed_at_ms: "),
    ({"exchange": nested(5000)}, "exchange: "),
    ({"key": ["order.paid"]}, "key: "),
]


@pytest.mark.parametrize(("headers", "told"), BROKEN)
def test_invalid_headers_are_named(headers: dict[str, Any], told: str):
    with pytest.raises(Undecodable, match=told):
        read(call_with(CALL, **headers))

    if headers.keys() & {"attempt", "first_failed_at_ms", "exchange", "key"}:  # anybody's
        with pytest.raises(Undecodable, match=told):
            read(call_with(FOREIGN, **headers))


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", "The body is not JSON"),
        (b"\xff\xfe", "The body is not JSON"),
        (b"{}", "args: Field required"),
        (b'{"args": [1]}', "args: Input should be a valid dictionary"),
    ],
    ids=range(4),
)
def test_a_foreign_body_is_refused(body: bytes, told: str):
    with pytest.raises(Undecodable, match=told) as caught:
        read(replace(CALL, body=body))
    assert len(str(caught.value)) < 1000
