"""The store of messages that could not be sent."""

import sqlite3
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from scheduler import RegistrationError, Scheduler
from scheduler.protocol.messages import Message
from scheduler.queues.unsent import SqliteStore, Unsent

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
CLAIM = timedelta(minutes=1)


def unsent(name: str, **fields: Any) -> Unsent:
    message = Message(
        b"\0{}",
        {"at": NOW, "n": 2**40, "deep": {"list": [1, "x", None, True]}},
        "application/json",
        name,
        priority=3,
        timestamp=NOW,
    )
    return replace(Unsent(None, "sms", message, NOW, NOW), **fields)


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Where the store is."""
    return str(tmp_path / "unsent.db")


def test_a_message_is_kept_as_it_was_once_per_id(store: SqliteStore, path: str) -> None:
    kept = [unsent("b"), unsent("a", exchange="", key="queue"), unsent("c", exchange="orders")]
    for each in [*kept, unsent("b", key="other")]:
        store.keep(each)
    SqliteStore(path, "other").keep(unsent("b"))
    assert SqliteStore(path, "shop").read() == kept
    assert [each.target for each in kept] == ["sms", "/queue", "orders/sms"]
    store.remove(["b", "c", "unknown"])
    assert store.read() == [kept[1]]
    assert len(SqliteStore(path, "other").read()) == 1


def test_one_of_two_processes_claims_a_message(store: SqliteStore, path: str) -> None:
    for n in range(5):
        store.keep(unsent(str(n)))
    other = SqliteStore(path, "shop")
    assert [each.id for each in store.read(most=2, claim=CLAIM)] == ["0", "1"]
    assert [each.id for each in other.read(claim=CLAIM)] == ["2", "3", "4"]
    assert store.read(claim=CLAIM) == other.read(claim=CLAIM) == []
    assert len(other.read()) == 5  # claimed ones are seen


@pytest.mark.parametrize("until", ["- 1", "+ 86400"], ids=["over", "before the clock was set back"])
def test_the_claim_of_a_killed_process_ends(store: SqliteStore, path: str, until: str) -> None:
    store.keep(unsent("a"))
    assert store.read(claim=CLAIM)
    with sqlite3.connect(path) as database:
        database.execute(f"UPDATE unsent SET claimed_until = strftime('%s', 'now') {until}")
    assert store.read(claim=CLAIM)


def test_a_message_is_on_disk_once_it_is_kept(path: str) -> None:
    program = (
        "import os, sys\n"
        "from tests.unit.queues.test_unsent import SqliteStore, unsent\n"
        "store = SqliteStore(sys.argv[1], 'shop')\n"
        "store.keep(unsent('a'))\n"
        "if os.fork() == 0: store.keep(unsent('child')); os._exit(0)\n"
        "os.wait()\n"
        "store.keep(unsent('parent'))\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program, path], timeout=30)
    assert done.returncode == -9
    assert [each.id for each in SqliteStore(path, "shop").read()] == ["a", "child", "parent"]


@pytest.mark.parametrize("fallback", ["unsent.db", "sqlite:///", object()])
def test_a_wrong_fallback_is_refused(fallback: Any) -> None:
    with pytest.raises(RegistrationError, match="fallback= is sqlite:///PATH, or a store with"):
        Scheduler("shop", fallback=fallback)
