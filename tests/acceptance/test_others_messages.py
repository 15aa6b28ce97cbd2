"""A message that a stranger has published, as its task sees it: first, and when it is retried."""

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiormq
import pytest
from aiormq.abc import AbstractChannel
from pamqp.commands import Basic

from scheduler.protocol.topology import Subscription, topology
from scheduler.tasks.tasks import SUPERVISION
from tests.acceptance.conftest import APPS, CommandLine
from tests.foreign import foreigner
from tests.sweep import clear

FINE = 0
KEY = "order.paid"
THEIRS: dict[str, Any] = {"city": "Bonn", "copies": 3, "CC": ["elsewhere"]}


@pytest.fixture
def orders(broker_url: str, namespace: str, tmp_path: Path) -> Iterator[CommandLine]:
    """The command line for the app in `apps/orders.py`, seeded."""
    command_line = CommandLine(
        tmp_path,
        SCHEDULER_BROKER_URL=broker_url,
        SCHEDULER_APP=f"{APPS}/orders.py:app",
        SHOP_NAMESPACE=namespace,
    )
    done = command_line("seed")
    assert done.code == FINE, done.output
    yield command_line
    subscription = Subscription("audit", f"{namespace}.orders", "order.#", "topic")
    wanted = topology(
        namespace,
        ["audit", SUPERVISION.task],
        subscriptions=[subscription],
        called=["audit"],
    )
    asyncio.run(clear(broker_url, wanted))


@asynccontextmanager
async def channel_of(url: str) -> AsyncGenerator[AbstractChannel]:
    connection = await aiormq.connect(url)
    try:
        yield await connection.channel()
    finally:
        await connection.close()


async def publish(url: str, exchange: str, others_queue: str) -> None:
    """Publish an order without a message id, which comes to a queue of others as well."""
    async with channel_of(url) as channel:
        await channel.queue_declare(others_queue, durable=True)
        await channel.queue_bind(others_queue, exchange, "#")
    # The driver would add an id.
    properties = Basic.Properties(headers=THEIRS, correlation_id="c1", message_type="order")
    async with foreigner(url) as somebody:
        await somebody.publish(
            properties.marshal(), b"eggs", exchange=exchange, routing_key=KEY.encode()
        )


async def came_to(url: str, queue: str) -> int | None:
    """How many messages came to a queue, which is deleted."""
    async with channel_of(url) as channel:
        deleted = await channel.queue_delete(queue)
        return deleted.message_count


def test_a_strangers_message_is_retried_as_the_readme_says(
    orders: CommandLine, broker_url: str, namespace: str
):
    exchange, others_queue = f"{namespace}.orders", f"{namespace}.others"
    asyncio.run(publish(broker_url, exchange, others_queue))
    with orders.processor() as processor:
        lines = [processor.until(" saw {") for _ in range(3)]
        processor.until("failed for the last time")
        processor.signal()
        assert processor.end().code == FINE
    first, second, third = (json.loads(line.partition(" saw ")[2]) for line in lines)
    assert first == {
        "attempt": 0,
        "body": "eggs",
        "headers": THEIRS,
        "message_id": None,
        "correlation_id": "c1",
        "type": "order",
        "routing_key": KEY,
    }
    for attempt, seen in ((1, second), (2, third)):
        added = {name: value for name, value in seen["headers"].items() if name not in THEIRS}
        assert {name for name in added if not name.startswith("scheduler-")} == set()
        counted = (added[f"scheduler-{name}"] for name in ("attempt", "exchange", "key"))
        assert tuple(counted) == (attempt, exchange, KEY)
        assert without_what_is_added(seen) == without_what_is_added(first)
    assert second["message_id"]
    assert second["message_id"] == third["message_id"]
    assert asyncio.run(came_to(broker_url, others_queue)) == 1  # nobody else sees it again


def without_what_is_added(seen: dict[str, Any]) -> dict[str, Any]:
    headers = {name: value for name, value in seen["headers"].items() if name in THEIRS}
    return seen | {"headers": headers, "attempt": 0, "message_id": None}
