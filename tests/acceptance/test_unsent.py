"""Messages that could not be sent, as an operator deals with them: listed, sent, purged."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduler import Scheduler, Settings
from tests.acceptance.conftest import CommandLine, seeded_app

SHOP = """
import os
from scheduler import Scheduler

app = Scheduler(os.environ["SHOP_NAMESPACE"], fallback="sqlite:///unsent.db")
plain = Scheduler(os.environ["SHOP_NAMESPACE"])

async def remind(order: int = 0) -> None: ...

app.task(remind)
plain.task(remind)
"""


@pytest.fixture
def shop(broker_url: str, namespace: str, tmp_path: Path) -> Iterator[CommandLine]:
    with seeded_app(broker_url, namespace, tmp_path, SHOP, ["remind"]) as shop:
        yield shop


@pytest.fixture
def away(namespace: str, tmp_path: Path) -> Scheduler:
    """The app in a program that cannot reach the broker."""
    settings: Any = {"broker_url": "amqp://127.0.0.1:1/", "send_deadline": "100ms"}
    return Scheduler(namespace, Settings(**settings), fallback=f"sqlite:///{tmp_path}/unsent.db")


def test_what_is_stored_is_listed_and_sent(shop: CommandLine, away: Scheduler) -> None:
    @away.task
    async def remind(order: int = 0) -> None: ...

    def told() -> dict[str, str]:
        found = shop("doctor", "--json").json
        return {each["verdict"]: each["detail"] for each in found if each["about"][:2] == "un"}

    assert shop("unsent", "list").out == "No message is stored.\n"
    assert told() == {"ok": "none is stored"}
    assert remind.options(message_id="now").blocking.send(1).stored
    assert remind.options(message_id="later").blocking.send_later("1h").stored

    first, *rest = shop("unsent", "list").out.splitlines()
    assert first.split() == ["ID", "TO", "DUE", "STORED"]
    assert [line.split()[:2] for line in rest] == [["now", "remind"], ["later", "remind"]]
    assert told()["warning"].startswith("2 stored, the oldest at 20")

    sent = shop("unsent", "send")
    assert (sent.code, sent.out) == (0, "2 sent, 0 left\n")
    assert shop("unsent", "list", "--json").json == []
    assert shop("unsent", "send", "--json").json == {"sent": 0, "left": 0}


def test_what_cannot_be_sent_is_left_until_it_is_purged(shop: CommandLine, away: Scheduler) -> None:
    assert asyncio.run(away.publish("nowhere", "order.paid", b"", message_id="m")).stored
    sent = shop("unsent", "send")
    assert (sent.code, sent.out) == (1, "0 sent, 1 left\n")
    assert "1 stored message could not be sent: The exchange 'nowhere' does not exist" in sent.err
    (row,) = shop("unsent", "list", "--json").json
    assert (row["id"], row["task"], row["exchange"]) == ("m", None, "nowhere")
    assert shop("unsent", "purge", answer="n\n").code == 1
    assert shop("unsent", "purge", "--yes", "--json").json == {"purged": ["m"]}
    assert shop("unsent", "list").out == "No message is stored.\n"
    plain = shop("unsent", "send", "shop.py:plain")
    assert plain.code == 2
    assert 'give it Scheduler(..., fallback="sqlite:///unsent.db")' in plain.err
