"""The dashboard in a real browser, on RabbitMQ, which may go away."""

import asyncio
import re
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, expect

from scheduler import Scheduler, Settings
from scheduler.brokers.amqp.broker import AmqpBroker
from scheduler.protocol.rights import rights_to_look
from scheduler.protocol.topology import Names
from tests.browser.conftest import APPS, reading, shown
from tests.contract.proxy import Proxy
from tests.rabbitmq import Users
from tests.sweep import sweep as delete_all

CLINIC = f"{APPS}/clinic.py:app"
TASKS = ("pulse", "lab", "night_round", "rounds", "drill", "letter", "post")


class Line:
    """A way to the broker that can be cut, and mended."""

    def __init__(self, proxy: Proxy, loop: asyncio.AbstractEventLoop, url: str) -> None:
        self._proxy = proxy
        self._loop = loop
        self.url = url

    def cut(self) -> None:
        self._proxy.closed = True
        self._loop.call_soon_threadsafe(self._proxy.cut)

    def mend(self) -> None:
        self._proxy.closed = False


@contextmanager
def line_to(url: str) -> Generator[Line]:
    there, opened, ended = urlsplit(url), threading.Event(), asyncio.Event()
    lines: list[Line] = []

    async def keep() -> None:
        async with Proxy(there.hostname or "", there.port or 5672) as proxy:
            ours = there._replace(netloc=f"guest:guest@127.0.0.1:{proxy.port}").geturl()
            lines.append(Line(proxy, asyncio.get_running_loop(), ours))
            opened.set()
            await ended.wait()

    keeping = threading.Thread(target=asyncio.run, args=(keep(),))
    keeping.start()
    opened.wait()
    try:
        yield lines[0]
    finally:
        lines[0]._loop.call_soon_threadsafe(ended.set)  # pyright: ignore[reportPrivateUsage]
        keeping.join()


@pytest.fixture
def clinic(broker_url: str, namespace: str) -> Iterator[dict[str, str]]:
    """The environment of an app that is seeded, and at work."""
    environment = {"CLINIC_NAMESPACE": namespace, "SCHEDULER_BROKER_URL": broker_url}
    command = [sys.executable, "-m", "scheduler"]
    subprocess.run([*command, "seed", CLINIC], env=environment, check=True, capture_output=True)
    processor = subprocess.Popen(
        [*command, "run", CLINIC],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield environment
    finally:
        processor.terminate()
        processor.wait(30)
        sweeping = threading.Thread(target=asyncio.run, args=(sweep(broker_url, namespace),))
        sweeping.start()  # this thread has the event loop of the browser
        sweeping.join()


async def sweep(url: str, namespace: str) -> None:
    app = Scheduler(namespace, Settings())

    async def nothing() -> None: ...

    for name in TASKS:
        app.periodic(every="1h", name=name)(nothing)
    app.task(name="call")(nothing)
    async with AmqpBroker(url) as broker:
        await delete_all(broker, (queue.name for queue in app.topology().queues))


def test_it_shows_what_was_known_while_the_broker_is_away_and_goes_on(
    chromium: Browser, clinic: dict[str, str]
) -> None:
    with line_to(clinic["SCHEDULER_BROKER_URL"]) as line:
        environment = clinic | {"SCHEDULER_BROKER_URL": line.url}
        with (
            shown("dashboard", CLINIC, "--port", "0", **environment) as dashboard,
            reading(chromium, dashboard) as reader,
        ):
            page = reader.open("/loop?name=pulse")
            expect(page.locator("#events")).to_contain_text("succeeded", timeout=20_000)
            page.evaluate("window.loadedOnce = true")
            line.cut()
            health = page.locator("#health")
            expect(health).to_contain_text("The broker cannot be reached", timeout=20_000)
            expect(page.locator("#events")).to_contain_text("succeeded")
            before = int(re.findall(r"#(\d+)", page.locator("#facts").inner_text())[0])
            line.mend()
            expect(health).not_to_contain_text("cannot be reached", timeout=30_000)
            page.wait_for_function(
                "n => Number(document.getElementById('facts').innerText.match(/#(\\d+)/)[1]) > n",
                arg=before,
                timeout=30_000,
            )
            assert page.evaluate("window.loadedOnce")


def test_it_tells_when_it_is_away_itself(chromium: Browser, clinic: dict[str, str]) -> None:
    with (
        shown("dashboard", CLINIC, "--port", "0", **clinic) as dashboard,
        reading(chromium, dashboard) as reader,
    ):
        page = reader.open("/loops")
        expect(page.locator("tbody tr")).to_have_count(6)
        dashboard.process.terminate()
        expect(page.locator("#offline")).to_be_visible(timeout=20_000)
        expect(page.locator("tbody tr")).to_have_count(6)


def test_what_is_done_is_done_in_the_broker(chromium: Browser, clinic: dict[str, str]) -> None:
    with (
        shown("dashboard", CLINIC, "--port", "0", **clinic) as dashboard,
        reading(chromium, dashboard) as reader,
    ):
        page = reader.open("/loop?name=drill")
        page.get_by_role("button", name="Pause").click()
        expect(page.locator("#doing")).to_contain_text("drill: paused", timeout=20_000)
    command = [sys.executable, "-m", "scheduler", "status", CLINIC, "drill"]
    told = subprocess.run(command, env=clinic, capture_output=True, text=True, check=True).stdout
    assert "paused from the dashboard" in told
    assert "somebody at this machine at " in told


def test_who_may_only_read_the_broker_sees_all_that_happens(
    chromium: Browser, clinic: dict[str, str], users: Users
) -> None:
    rights = rights_to_look(Names(clinic["CLINIC_NAMESPACE"]))
    url = users.add(configure=rights.configure, write=rights.write, read=rights.read)
    environment = clinic | {"SCHEDULER_BROKER_URL": url}
    with (
        shown("dashboard", CLINIC, "--port", "0", "--read-only", **environment) as dashboard,
        reading(chromium, dashboard) as reader,
    ):
        page = reader.open("/loop?name=pulse")
        expect(page.locator("#events")).to_contain_text("succeeded", timeout=20_000)
        expect(page.locator("#head button")).to_have_count(0)
        page = reader.open("/tasks")
        expect(page.locator("[id='task-pulse'] .number").nth(4)).to_have_text("1", timeout=20_000)
