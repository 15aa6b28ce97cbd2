"""An app whose code or settings change, and two apps that share a namespace by mistake."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.protocol.topology import topology
from scheduler.tasks.tasks import SUPERVISION
from tests.acceptance.conftest import FINE, MISUSE, WRONG, CommandLine, Done
from tests.sweep import clear

APP = """
import os, sys
from scheduler import Context, Scheduler

app = Scheduler(os.environ["SHOP_NAMESPACE"])

@app.periodic(every="1h")
async def report(ctx: Context) -> None: ...

@app.task(ordered="ORDERED" in os.environ)
async def sell(ctx: Context, n: int) -> None:
    print("sold", n, file=sys.stderr)
"""
OTHER = APP.replace("report", "bill")


@pytest.fixture
def shop(broker_url: str, namespace: str, tmp_path: Path) -> Iterator[CommandLine]:
    for name, text in (("market", APP), ("bazaar", OTHER), ("moved", APP)):
        (tmp_path / f"{name}.py").write_text(text)
    yield CommandLine(tmp_path, SCHEDULER_BROKER_URL=broker_url, SHOP_NAMESPACE=namespace)
    tasks = ["report", "bill", "sell", SUPERVISION.task]
    asyncio.run(clear(broker_url, topology(namespace, tasks, called=["sell"])))


def refused(done: Done, *words: str) -> None:
    assert done.code == MISUSE, done.output
    assert done.out == ""
    (line,) = done.err.splitlines()
    assert [word for word in words if word not in line] == []


def test_queues_of_other_code_are_refused_until_they_are_migrated(shop: CommandLine) -> None:
    assert shop("seed", "market.py").code == FINE
    for n in range(3):
        assert shop("send", "market.py", "sell", "--args", f'{{"n": {n}}}').code == FINE
    told = "ordered= of the task 'sell' was changed", "`scheduler seed --migrate`"
    refused(shop("seed", "market.py", ORDERED="yes"), *told, "Nothing was changed")
    refused(shop("run", "market.py", ORDERED="yes"), *told, "Nothing was started")
    found = shop("doctor", "market.py", ORDERED="yes")
    assert found.code == WRONG
    assert told[0] in " ".join(found.out.split())
    assert shop("seed", "market.py", "--migrate", ORDERED="yes").code == FINE
    with shop.processor("market.py", ORDERED="yes") as processor:
        for n in range(3):
            processor.until(f"sold {n}")
        processor.signal()
        assert processor.end().code == FINE
    refused(shop("run", "market.py"), told[0])


def test_the_namespace_of_another_app_is_refused_until_it_is_taken_over(shop: CommandLine) -> None:
    assert shop("seed", "market.py").code == FINE
    told = "another app: it was seeded from the module 'market'", "`scheduler seed --take-over`"
    refused(shop("seed", "bazaar.py", "--prune"), *told)
    refused(shop("seed", "bazaar.py", "--prune", "--dry-run"), *told)
    refused(shop("run", "bazaar.py"), *told)
    ill = shop("doctor", "bazaar.py")
    assert ill.code == WRONG
    assert "PROBLEM  app: " in ill.out
    assert "Do not run --prune" in " ".join(ill.out.split())
    assert shop("seed", "moved.py", "--take-over", "--dry-run").code == FINE
    refused(shop("run", "moved.py"), told[0])
    assert shop("seed", "moved.py", "--take-over").code == FINE
    assert shop("seed", "moved.py").code == FINE
    refused(shop("seed", "market.py"), "seeded from the module 'moved'")


def test_a_dry_run_of_prune_lists_what_it_would_remove(shop: CommandLine) -> None:
    assert shop("seed", "market.py").code == FINE
    seeded = shop("seed", "bazaar.py", "--take-over")
    assert (seeded.code, "not in this code: report (" in seeded.out) == (FINE, True)
    assert "aliases= of a renamed task takes over" in seeded.out
    tried = shop("seed", "bazaar.py", "--prune", "--dry-run", "--json")
    assert {row["loop"]: row["did"] for row in tried.json["loops"]} == {
        "bill": "unchanged",
        "report": "removed",
    }
    left = {"task": "report", "ready": 0, "parked": 0, "processors": 0}
    assert tried.json["leftovers"] == [left]
    done = shop("seed", "bazaar.py", "--prune", "--json")
    assert {row["loop"]: row["did"] for row in done.json["loops"]}["report"] == "removed"
    assert done.json["leftovers"] == []
    assert "not in this code" not in shop("seed", "bazaar.py").out
