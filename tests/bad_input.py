"""Messages that no task can be run with, and what becomes of each."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from scheduler import Retry, Scheduler
from scheduler.protocol.messages import Message


class Order(BaseModel):
    number: int
    lines: list[str] = []


def tasks_of(app: Scheduler, exchange: str, ran: list[tuple[str, Any]]) -> None:
    """Register the tasks that the messages below are for; they note what they are run with."""

    @app.task(retry=Retry(0))
    async def sms(phone: str, times: int = 1) -> None:
        ran.append(("sms", phone))

    @app.task(retry=Retry(0), subscribe=[(exchange, "order.paid", "topic")])
    async def paid(order: Order) -> None:
        ran.append(("paid", order.number))

    @app.task(retry=Retry(0), subscribe=[(exchange, "scan.#", "topic")])
    async def scan(image: bytes) -> None:
        ran.append(("scan", image))


@dataclass(frozen=True)
class Bad:
    """Attributes: key is what it is published with, to the exchange of others, or of its kind."""

    name: str
    reason: str
    told: str
    body: bytes = b'{"args":{"phone":"1"}}'
    headers: Mapping[str, Any] = field(default_factory=dict[str, Any])
    task: str = "sms"
    key: str = "task.sms"
    content_type: str | None = "application/json"

    @property
    def is_foreign(self) -> bool:
        return self.task != "sms"

    def message(self, namespace: str) -> Message:
        """With the headers of a sound call, unless it is of somebody else."""
        ours: dict[str, Any] = {
            "scheduler-version": 1,
            "scheduler-namespace": namespace,
            "scheduler-task": "sms",
            "scheduler-sent-at-ms": 1_780_304_400_250,
        }
        sound = {} if self.is_foreign else ours
        headers = {n: v for n, v in {**sound, **self.headers}.items() if v is not NO_HEADER}
        return Message(self.body, headers, self.content_type, message_id=self.name)


NO_HEADER = object()


def nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = {"n": value}
    return value


BAD = (
    Bad("not json", "undecodable", "The body is not JSON", body=b"phone=1"),
    Bad("not utf-8", "undecodable", "The body is not JSON", body=b'{"args":{"phone":"\xff"}}'),
    Bad("no object", "undecodable", "The body cannot be understood", body=b"[1]"),
    Bad("deep body", "undecodable", "The body is not JSON", body=b'{"args":' * 50_000),
    Bad(
        "wrong types",
        "invalid-arguments",
        "phone: Input should be a valid string, got 1; times: Input should be a valid integer",
        body=b'{"args":{"phone":1,"times":"x"}}',
    ),
    Bad(
        "too many",
        "invalid-arguments",
        "colour: Extra inputs are not permitted",
        body=b'{"args":{"phone":"1","colour":"red"}}',
    ),
    Bad("unknown task", "unknown-task", "no queue of a task is bound", key="task.nobody"),
    Bad("unknown loop", "unknown-task", "no queue of a task is bound", key="loop.nobody"),
    Bad("future", "undecodable", "version: .* got 2", headers={"scheduler-version": 2}),
    Bad("other app", "undecodable", "namespace 'bank'", headers={"scheduler-namespace": "bank"}),
    Bad("other task", "undecodable", "a call of 'mail'", headers={"scheduler-task": "mail"}),
    Bad(
        "no headers",
        "undecodable",
        "It is not a call, and did not arrive as a token",
        headers=dict.fromkeys(
            ("scheduler-version", "scheduler-namespace", "scheduler-task", "scheduler-sent-at-ms"),
            NO_HEADER,
        ),
    ),
    Bad("text", "undecodable", "sent_at_ms: ", headers={"scheduler-sent-at-ms": "now"}),
    Bad("lead", "undecodable", "lead-ms must be .* got 1501", headers={"scheduler-lead-ms": 1501}),
    Bad("table", "undecodable", "due_at_ms: ", headers={"scheduler-due-at-ms": nested(50)}),
    Bad("far", "undecodable", "expires_at_ms: ", headers={"scheduler-expires-at-ms": 2**63 - 1}),
    Bad(
        "xml",
        "invalid-arguments",
        "The content type 'application/xml' cannot be read into 'order': annotate it as bytes",
        body=b"<order/>",
        task="paid",
        key="order.paid",
        content_type="application/xml",
    ),
    Bad(
        "foreign not json",
        "invalid-arguments",
        "The body does not fit 'order': value: Invalid JSON",
        body=b"<order/>",
        task="paid",
        key="order.paid",
        content_type=None,
    ),
    Bad(
        "foreign wrong types",
        "invalid-arguments",
        "number: Input should be a valid integer",
        body=b'{"number": "seven"}',
        task="paid",
        key="order.paid",
    ),
    Bad(
        "foreign deep",
        "invalid-arguments",
        "The body does not fit 'order'",
        body=b'{"number":' * 50_000,
        task="paid",
        key="order.paid",
    ),
    Bad(
        "foreign hostile",
        "undecodable",
        "due_at_ms: .*; not_before_ms: ",
        body=b'{"number": 1}',
        task="paid",
        key="order.paid",
        headers={"scheduler-due-at-ms": "x", "scheduler-not-before-ms": -5},
    ),
    Bad(
        "pretender",
        "undecodable",
        "version: Field required",
        body=b'{"number": 1}',
        task="paid",
        key="order.paid",
        headers={"scheduler-sent-at-ms": 5},
    ),
)

# Strange, but nothing is wrong with them.
GOOD = (
    Message(b"\xff" * 1000, {"n": nested(50)}, "no/such;type", message_id="bytes are bytes"),
    Message(json.dumps({"args": {"phone": "1"}}).encode(), message_id="a call, by its body only"),
)
