"""Named one-offs, as an operator deals with them: listed, moved, taken back."""

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from scheduler import Scheduler, Settings
from scheduler.control.reports import Effect
from tests.acceptance.conftest import CommandLine
from tests.sweep import clear

pytestmark = pytest.mark.timeout(120)

SHOP = """
from scheduler import Scheduler

app = Scheduler({namespace!r})

@app.task
async def remind(order: int = 0) -> None: ...
"""
TOMORROW = datetime.now(UTC) + timedelta(days=1)


class Shop:
    """The command line, and a program that schedules."""

    def __init__(self, url: str, namespace: str, directory: Path) -> None:
        self.namespace = namespace
        (directory / "shop.py").write_text(SHOP.format(namespace=self.namespace))
        self.run = CommandLine(
            directory, SCHEDULER_BROKER_URL=url, SCHEDULER_APP="shop.py:app", TZ="Asia/Tokyo"
        )
        settings: dict[str, Any] = {"broker_url": url}
        self.app = Scheduler(self.namespace, Settings(**settings))

        @self.app.task
        async def remind(order: int = 0) -> None: ...

        self.remind = remind

    def once(self, name: str, **when: Any) -> Effect:
        async def schedule() -> Effect:
            async with self.app:
                return await self.remind.once(name, **when)

        return asyncio.run(schedule())

    def listed(self) -> dict[str, str]:
        found = json.loads(self.run("scheduled", "list", "--json").out)
        return {each["name"]: each["at"] for each in found}


@pytest.fixture
def shop(broker_url: str, namespace: str, tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(broker_url, namespace, tmp_path)
    assert shop.run("seed").code == 0
    yield shop
    for name in shop.listed():
        shop.run("scheduled", "cancel", name)
    asyncio.run(clear(broker_url, shop.app.topology()))


def test_what_is_scheduled_is_listed_moved_and_taken_back(shop: Shop) -> None:
    assert shop.run("scheduled", "list").out == "No named one-off is scheduled.\n"
    assert shop.once("order-8", at=TOMORROW + timedelta(hours=1)) is Effect.CREATED
    assert shop.once("order-7", at=TOMORROW, args={"order": 7}) is Effect.CREATED
    first, *rest = shop.run("scheduled", "list").out.splitlines()
    assert first.split() == ["NAME", "AT", "ARGS"]
    assert [line.split()[0] for line in rest] == ["remind.order-7", "remind.order-8"]
    assert list(shop.listed()) == ["remind.order-7", "remind.order-8"]

    moved = shop.run("scheduled", "move", "remind.order-7", "--at", "2040-06-01T09:00")
    assert (moved.code, moved.out) == (0, "remind.order-7: rescheduled\n")
    assert shop.listed()["remind.order-7"] == "2040-06-01T00:00:00Z"  # nine o'clock here
    assert shop.run("scheduled", "move", "remind.order-7", "--after", "2h").code == 0
    assert shop.listed()["remind.order-7"] < TOMORROW.isoformat()

    gone = shop.run("scheduled", "cancel", "remind.order-8")
    assert (gone.code, gone.out) == (0, "remind.order-8: removed\n")
    assert list(shop.listed()) == ["remind.order-7"]
    assert shop.run("scheduled", "list", "--task", "remind").out.count("\n") == 2


def test_a_name_that_is_not_there_is_told_with_the_nearest(shop: Shop) -> None:
    shop.once("order-7", at=TOMORROW)
    for command in ("move", "remind.order-8", "--after", "1s"), ("cancel", "remind.order-8"):
        done = shop.run("scheduled", *command)
        assert (done.code, done.err.count("\n")) == (2, 1)
        assert "did you mean 'remind.order-7'?" in done.err
    assert list(shop.listed()) == ["remind.order-7"]
