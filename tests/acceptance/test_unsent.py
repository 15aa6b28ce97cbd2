"""Messages that could not be sent, as an operator deals with them: listed, sent, purged."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduler import Scheduler, Settings
from tests.acceptance.conftest import CommandLine
from tests.sweep import clear

pytestmark = pytest.mark.timeout(120)

SHOP = """
from scheduler import Scheduler

app = Scheduler({namespace!r}, fallback="sqlite:///unsent.db")
plain = Scheduler({namespace!r})

async def remind(order: int = 0) -> None: ...

app.task(remind)
plain.task(remind)
"""


class Shop:
    """The command line, and a program that cannot reach the broker."""

    def __init__(self, url: str, namespace: str, directory: Path) -> None:
        (directory / "shop.py").write_text(SHOP.format(namespace=namespace))
        self.run = CommandLine(
            directory, SCHEDULER_BROKER_URL=url, SCHEDULER_APP="shop.py:app", TZ="Asia/Tokyo"
        )
        away: Any = {"broker_url": "amqp://127.0.0.1:1/", "send_deadline": "100ms"}
        fallback = f"sqlite:///{directory}/unsent.db"
        self.app = Scheduler(namespace, Settings(**away), fallback=fallback)

        @self.app.task
        async def remind(order: int = 0) -> None: ...

        self.remind = remind


@pytest.fixture
def shop(broker_url: str, namespace: str, tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(broker_url, namespace, tmp_path)
    assert shop.run("seed").code == 0
    yield shop
    asyncio.run(clear(broker_url, shop.app.topology()))


def unsent(shop: Shop) -> dict[str, str]:
    """What the doctor says of them."""
    (found,) = [
        each for each in shop.run("doctor", "--json").json if each["about"].startswith("un")
    ]
    return {found["verdict"]: found["detail"]}


def test_what_is_stored_is_listed_and_sent(shop: Shop) -> None:
    assert shop.run("unsent", "list").out == "No message is stored.\n"
    assert unsent(shop) == {"ok": "none is stored"}
    assert shop.remind.options(message_id="now").blocking.send(1).stored
    assert shop.remind.options(message_id="later").blocking.send_later("1h").stored

    first, *rest = shop.run("unsent", "list").out.splitlines()
    assert first.split() == ["ID", "TO", "DUE", "STORED"]
    assert [line.split()[:2] for line in rest] == [["now", "remind"], ["later", "remind"]]
    (verdict, detail), *_ = unsent(shop).items()
    assert verdict == "warning"
    assert detail.startswith("2 stored, the oldest at 20")

    sent = shop.run("unsent", "send")
    assert (sent.code, sent.out) == (0, "2 sent, 0 left\n")
    assert shop.run("unsent", "list", "--json").json == []
    assert shop.run("unsent", "send", "--json").json == {"sent": 0, "left": 0}


def test_what_cannot_be_sent_is_left_until_it_is_purged(shop: Shop) -> None:
    name = asyncio.run(shop.app.publish("nowhere", "order.paid", b"", message_id="m"))
    assert name.stored
    sent = shop.run("unsent", "send")
    assert (sent.code, sent.out) == (1, "0 sent, 1 left\n")
    assert "1 stored message could not be sent: The exchange 'nowhere' does not exist" in sent.err
    (row,) = shop.run("unsent", "list", "--json").json
    assert (row["id"], row["task"], row["exchange"]) == ("m", None, "nowhere")
    assert shop.run("unsent", "purge", answer="n\n").code == 1
    assert shop.run("unsent", "purge", "--yes", "--json").json == {"purged": ["m"]}
    assert shop.run("unsent", "list").out == "No message is stored.\n"

    for command in "list", "send", "purge":
        done = shop.run("unsent", command, "shop.py:plain")
        assert done.code == 2
        assert 'give it Scheduler(..., fallback="sqlite:///unsent.db")' in done.err
