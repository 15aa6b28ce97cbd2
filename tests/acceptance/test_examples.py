"""The examples do what their first lines promise."""

import asyncio
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from scheduler.cli.loading import load_app
from scheduler.events import Escalated, RunFinished
from scheduler.protocol.tokens import Ending
from scheduler.testing import simulate
from tests.acceptance.conftest import CommandLine, Done
from tests.sweep import alone_in, clear

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name: str) -> str:
    return f"{EXAMPLES / name}.py:app"


ORDERS, ORDER_SERVICE, DIGESTS = map(example, ("poll_orders", "order_service", "digests"))


def scheduler(*arguments: str, **environment: str) -> Done:
    return CommandLine(EXAMPLES)(*arguments, **environment)


def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def logged(name: str, span: str, caplog: pytest.LogCaptureFixture) -> str:
    """What the tasks of an example log in so much time, which is virtual."""
    with caplog.at_level("INFO"):
        simulate(load_app(example(name)), span)
    return "\n".join(caplog.messages)


def test_the_heartbeat_beats(caplog: pytest.LogCaptureFixture) -> None:
    said = logged("heartbeat", "3500ms", caplog)
    assert said.splitlines() == ["beat 1", "beat 2", "beat 3"]


def test_an_appointment_that_is_moved_has_one_reminder(caplog: pytest.LogCaptureFixture) -> None:
    said = logged("appointments", "11s", caplog)
    told = re.findall(r"reminder of Ann: (\w+)", said)
    assert told == ["created", "unchanged", "rescheduled"]
    assert said.count("Ann, your appointment is in a minute") == 1


def test_blocking_work_runs_in_threads(caplog: pytest.LogCaptureFixture) -> None:
    shrunk = re.findall(r"shrunk picture-(\d+)\.jpg", logged("thumbnails", "3s", caplog))
    assert set(shrunk) >= {"0", "1"}
    assert len(shrunk) == len(set(shrunk))


@pytest.fixture
def shop() -> Iterator[str]:
    """The URL of the example's shop."""
    process = subprocess.Popen(
        [sys.executable, str(EXAMPLES / "orders_api.py"), "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    yield process.stdout.readline().split()[-1].removesuffix("/orders")
    process.kill()
    process.communicate()


def tell(shop: str, what: str) -> None:
    urllib.request.urlopen(urllib.request.Request(f"{shop}/{what}", method="POST")).close()


def test_polling_survives_a_shop_that_fails_and_replays_what_was_parked(
    shop: str, broker_url: str, tmp_path: Path
) -> None:
    vhostless = {"SCHEDULER_BROKER_URL": broker_url, "SHOP_URL": shop}
    environment = vhostless | {"ORDERS_DIR": str(tmp_path / "orders")}

    def stored() -> list[int]:
        return sorted(int(path.stem) for path in (tmp_path / "orders").glob("*.json"))

    def parked() -> list[str]:
        listed = scheduler("failed", "list", ORDERS, "--json", **environment)
        assert listed.code == 0, listed.output
        return [message["id"] for message in listed.json]

    with swept(broker_url, ORDERS):
        assert scheduler("seed", ORDERS, **environment).code == 0
        with CommandLine(EXAMPLES).processor(ORDERS, **environment) as processor:
            until(lambda: len(stored()) >= 3)
            tell(shop, "fail")
            until(lambda: bool(parked()))
            before = len(stored())
            tell(shop, "heal")
            until(lambda: len(stored()) >= before + 3)
            orders = stored()  # there may be more a moment later
            assert orders == list(range(1, len(orders) + 1)), "an order was lost"
            replayed = scheduler("failed", "replay", ORDERS, "--all", **environment)
            assert replayed.code == 0, replayed.err
            processor.until("known already")
            assert parked() == []
            processor.signal()
            assert processor.end().code == 0


def test_an_id_follows_each_order_and_every_task_is_measured() -> None:
    done = scheduler("dev", example("request_ids"), "--for", "5s")
    assert done.code == 0, done.err
    steps = {
        number: re.findall(
            rf"\[(\w+)\] (?:order {number}( charged)?|receipt of order {number})\b", done.err
        )
        for number in (0, 1)
    }
    for number, said in steps.items():
        ids = [request_id for request_id, _ in said]
        assert (len(ids), len(set(ids))) == (3, 1), (number, done.err)
    assert steps[0][0] != steps[1][0]
    measured = dict(re.findall(r"^(\w+): (\d+ runs, \d failed), [\d.]+ ms each$", done.out, re.M))
    assert list(measured) == ["order", "charge", "receipt"]
    assert measured["charge"].endswith((" 1 failed", " 2 failed"))


def test_an_export_that_does_not_get_on_is_ended_and_the_others_are_not() -> None:
    events = simulate(load_app(example("exports")), "15s")
    runs = [event for event in events if isinstance(event, RunFinished)]
    ended = {run.ending: run.duration for run in runs if run.loop.task == "export"}
    assert set(ended) == {Ending.SUCCEEDED, Ending.ESCALATED}
    assert timedelta(seconds=1) < ended[Ending.ESCALATED] < timedelta(seconds=4)
    (given_up,) = [event for event in events if isinstance(event, Escalated)]
    assert str(given_up.error).startswith("cancelled by ")
    endings = {run.ending for run in runs if run.loop.task == "look_after"}
    assert endings == {Ending.SUCCEEDED}


@pytest.mark.timeout(180)
def test_a_retry_of_one_subscriber_does_not_reach_the_other(broker_url: str) -> None:
    environment = {"SCHEDULER_BROKER_URL": broker_url}
    with swept(broker_url, ORDER_SERVICE):
        done = place_orders("tea", **environment)
        assert done.returncode == 1
        assert "Nobody listens" in done.stderr
        assert scheduler("seed", ORDER_SERVICE, **environment).code == 0
        # Placed before anybody runs: what was seeded does not miss them.
        assert place_orders("tea", "honey", **environment).returncode == 0
        with CommandLine(EXAMPLES).processor(ORDER_SERVICE, **environment) as processor:
            for _ in range(2):
                processor.until("shipped, as order.paid asked")
            processor.signal()
            done = processor.end()
    assert done.code == 0
    for order in (1, 2):
        assert done.err.count(f"WarehouseAsleep: nobody takes order {order}") == 2
        assert done.err.count(f"order {order} shipped") == 1
        assert done.err.count(f"order {order} confirmed") == 1


def place_orders(*items: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(EXAMPLES / "place_order.py"), *items],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=50,
    )


def test_digests_are_sent_as_a_file_says(broker_url: str, tmp_path: Path) -> None:
    file = tmp_path / "digests.toml"
    file.write_text((EXAMPLES / "digests.toml").read_text().replace('"10s"', '"300ms"'))
    url = {"SCHEDULER_BROKER_URL": broker_url}

    def sync(*options: str) -> list[str]:
        done = scheduler("sync", DIGESTS, str(file), *options, **url)
        assert (done.code, done.err) == (0, "")
        return done.out.splitlines()

    anna, bert = "send_digest.anna", "send_digest.bert@example.org"
    with swept(broker_url, DIGESTS):
        assert scheduler("seed", DIGESTS, **url).code == 0
        started = [
            "send_digest: 2 started, 0 rescheduled, 0 stopped, 0 unchanged",
            f"  started      {anna}",
            f"  started      {bert}",
        ]
        assert sync("--dry-run") == [*started, "Dry run: nothing was changed."]
        assert sync() == started
        assert scheduler("schedule", "set", DIGESTS, "count", "--every", "300ms", **url).code == 0
        with CommandLine(EXAMPLES).processor(DIGESTS, **url) as processor:
            processor.until("a digest of invoices for anna")
            processor.until("2 digests are ordered")
            file.write_text("[send_digest]")
            assert sync()[1:] == [f"  stopped      {anna}", f"  stopped      {bert}"]
            processor.until("0 digests are ordered")
            processor.signal()
            assert processor.end().code == 0


@contextmanager
def swept(url: str, app: str) -> Generator[None]:
    """Nothing of an app is in the broker before and after."""
    with alone_in(url, [load_app(app).namespace]):
        asyncio.run(sweep(url, app))
        try:
            yield
        finally:
            asyncio.run(sweep(url, app))


async def sweep(url: str, app: str) -> None:
    await clear(url, load_app(app).topology())
