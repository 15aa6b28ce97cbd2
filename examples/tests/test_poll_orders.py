"""A loop that hands a cursor on: nothing is lost while the shop is down."""

from pathlib import Path
from typing import Any

import pytest

from examples import poll_orders
from examples.poll_orders import app
from scheduler.testing import Kit

__all__ = ["app"]  # which the fixture scheduler_app returns


class Shop:
    """Takes an order whenever it is asked."""

    down = False
    taken = 0

    def orders(self, after: int) -> list[dict[str, Any]]:
        if self.down:
            raise ConnectionError("the shop is down")
        self.taken += 1
        return [{"number": number, "item": "tea"} for number in range(after + 1, self.taken + 1)]


@pytest.fixture(autouse=True)
def shop(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Shop:
    shop = Shop()
    monkeypatch.setattr(poll_orders, "fetch_orders", shop.orders)
    monkeypatch.setattr(poll_orders, "STORE", tmp_path)
    return shop


def stored(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


async def test_each_tick_continues_at_the_cursor_of_the_last(
    scheduler_kit: Kit, tmp_path: Path
) -> None:
    await scheduler_kit.advance("6s")
    scheduler_kit.assert_ran("poll_orders", times=3)
    assert stored(tmp_path) == ["1.json", "2.json", "3.json"]


async def test_a_tick_that_fails_is_parked_and_loses_no_order(
    scheduler_kit: Kit, shop: Shop, tmp_path: Path
) -> None:
    await scheduler_kit.advance("2s")
    shop.down = True
    await scheduler_kit.advance("4s")
    assert [run.ending for run in scheduler_kit.runs] == [
        *("succeeded", "retried", "retried", "escalated")
    ]
    assert [each.error for each in scheduler_kit.parked] == ["ConnectionError: the shop is down"]
    shop.down = False
    await scheduler_kit.advance("10s")
    assert len(stored(tmp_path)) == shop.taken
