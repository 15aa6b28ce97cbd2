"""Named one-offs, as an operator deals with them: listed, moved, taken back."""

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from scheduler import Scheduler, Settings
from scheduler.control.reports import Effect
from tests.acceptance.conftest import CommandLine, seeded_app

SHOP = """
import os
from scheduler import Scheduler

app = Scheduler(os.environ["SHOP_NAMESPACE"])

@app.task
async def remind(order: int = 0) -> None: ...
"""
TOMORROW = datetime.now(UTC) + timedelta(days=1)


@pytest.fixture
def shop(broker_url: str, namespace: str, tmp_path: Path) -> Iterator[CommandLine]:
    with seeded_app(broker_url, namespace, tmp_path, SHOP, ["remind"]) as shop:
        yield shop
        for name in listed(shop):
            shop("scheduled", "cancel", name)


@pytest.fixture
def once(broker_url: str, namespace: str) -> Callable[..., Effect]:
    """A program that schedules."""
    settings: dict[str, Any] = {"broker_url": broker_url}
    app = Scheduler(namespace, Settings(**settings))

    @app.task
    async def remind(order: int = 0) -> None: ...

    async def schedule(name: str, when: dict[str, Any]) -> Effect:
        async with app:
            return await remind.once(name, **when)

    def schedule_now(name: str, **when: Any) -> Effect:
        return asyncio.run(schedule(name, when))

    return schedule_now


def listed(shop: CommandLine) -> dict[str, str]:
    return {each["name"]: each["at"] for each in shop("scheduled", "list", "--json").json}


def test_what_is_scheduled_is_listed_moved_and_taken_back(
    shop: CommandLine, once: Callable[..., Effect]
) -> None:
    assert shop("scheduled", "list").out == "No named one-off is scheduled.\n"
    assert once("order-8", at=TOMORROW + timedelta(hours=1)) is Effect.CREATED
    assert once("order-7", at=TOMORROW, args={"order": 7}) is Effect.CREATED
    first, *rest = shop("scheduled", "list").out.splitlines()
    assert first.split() == ["NAME", "AT", "ARGS"]
    assert [line.split()[0] for line in rest] == ["remind.order-7", "remind.order-8"]

    moved = shop("scheduled", "move", "remind.order-7", "--at", "2040-06-01T09:00")
    assert (moved.code, moved.out) == (0, "remind.order-7: rescheduled\n")
    assert listed(shop)["remind.order-7"] == "2040-06-01T00:00:00Z"  # nine o'clock here
    assert shop("scheduled", "move", "remind.order-7", "--after", "2h").code == 0
    assert listed(shop)["remind.order-7"] < TOMORROW.isoformat()

    gone = shop("scheduled", "cancel", "remind.order-8")
    assert (gone.code, gone.out) == (0, "remind.order-8: removed\n")
    for command in ("move", "remind.order-8", "--after", "1s"), ("cancel", "remind.order-8"):
        done = shop("scheduled", *command)
        assert (done.code, done.err.count("\n")) == (2, 1)
        assert "did you mean 'remind.order-7'?" in done.err
    assert list(listed(shop)) == ["remind.order-7"]
    assert shop("scheduled", "list", "--task", "remind").out.count("\n") == 2
