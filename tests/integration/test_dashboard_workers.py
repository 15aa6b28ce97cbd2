"""One dashboard in three worker processes of uvicorn, behind nginx with its default proxy_pass."""

import asyncio
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from html import unescape
from pathlib import Path

import httpx
import pytest

from scheduler.brokers.amqp.broker import AmqpBroker
from scheduler.protocol.calls import task_key
from scheduler.protocol.messages import Message
from scheduler.queues.failed import Reason
from tests import rabbitmq
from tests.integration.apps import ward
from tests.integration.conftest import Field
from tests.stage import program_of

APPS = Path(__file__).parent / "apps"
NO_NGINX = "These tests need nginx, and none was found (Debian: apt-get install nginx-light)."
NGINX = """
daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log;
events {{}}
http {{
  access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://127.0.0.1:{pages}; }} }}
}}
"""
START_LIMIT_S = 30
WORKERS = 3
ACTIONS = 50
VIEWERS = 9
AS_A_BROWSER = {"Sec-Fetch-Site": "same-origin"}
SEEN_WITHIN_S = 1.5


def find_nginx() -> str | None:
    return shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")


@pytest.fixture(scope="module")
def nginx() -> str:
    """The program, which is installed where it is missing."""
    if (program := rabbitmq.found_or_installed("nginx-light", find_nginx)) is None:
        pytest.fail(NO_NGINX, pytrace=False)
    return program


def is_open(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def address(field_: Field, nginx: str, tmp_path: Path) -> Iterator[str]:
    """Where nginx answers."""
    field_.app = f"{APPS}/ward.py:app"
    field_.declares = ward.made(field_.namespace).topology()
    field_.call("seed")
    port, pages = rabbitmq.free_ports(2)
    config = tmp_path / "nginx.conf"
    config.write_text(NGINX.format(folder=tmp_path, port=port, pages=pages))
    environment = os.environ | {"NAMESPACE": field_.namespace, "SCHEDULER_BROKER_URL": field_.url}
    uvicorn = [sys.executable, "-m", "uvicorn", "tests.integration.apps.ward:pages"]
    commands = (
        [*uvicorn, "--workers", str(WORKERS), "--port", str(pages), "--log-level", "warning"],
        [nginx, "-c", str(config)],
    )
    processes = [
        subprocess.Popen(command, env=environment, start_new_session=True) for command in commands
    ]
    until = time.monotonic() + START_LIMIT_S
    while not is_open(port):
        assert time.monotonic() < until
        time.sleep(0.05)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        for process in processes:
            os.killpg(process.pid, signal.SIGTERM)
        for process in processes:
            process.wait(30)


def a_visitor(address: str) -> httpx.AsyncClient:
    user = (ward.NAME, ward.PASSWORD)
    return httpx.AsyncClient(base_url=address, auth=user, headers=AS_A_BROWSER, timeout=30)


async def knows_all(client: httpx.AsyncClient) -> None:
    """Wait until every worker has heard of every loop: requests go to any of them."""
    in_a_row = 0
    async with asyncio.timeout(60):
        while in_a_row < 10 * WORKERS:
            page = (await client.get("/loops")).text
            if all(bed in page for bed in ward.BEDS) and "Reading the journal" not in page:
                in_a_row += 1
            else:
                in_a_row = 0
                await asyncio.sleep(0.1)


async def test_any_worker_acts_and_tells_what_others_do(address: str, field_: Field) -> None:
    await park(field_, 50)
    async with a_visitor(address) as client:
        await knows_all(client)
        await fifty_of_fifty_actions_succeed(client)
        await a_change_is_seen_in_all_live_pages(client)
        await an_operation_is_shown_and_stopped(client)


async def fifty_of_fifty_actions_succeed(client: httpx.AsyncClient) -> None:
    succeeded = 0
    for number in range(ACTIONS // 2):
        bed = ward.BEDS[number % len(ward.BEDS)]
        paused = {"loop": bed, "reason": f"reason {number}", "back": f"/loop?name={bed}"}
        for action, fields, told in (
            ("pause", paused, f"{bed}: paused"),
            ("resume", {"loop": bed, "back": "/loops"}, f"{bed}: resumed"),
        ):
            answer = await client.post(f"/do/{action}", data=fields, follow_redirects=True)
            assert answer.status_code == 200
            succeeded += told in unescape(answer.text)
    assert succeeded == ACTIONS


async def an_operation_is_shown_and_stopped(client: httpx.AsyncClient) -> None:
    names = {"loops": "\n".join(ward.BEDS)}
    asked = await client.post("/do/pause", data=names)
    assert f"Pause {len(ward.BEDS)} loops?" in asked.text
    done = await client.post("/do/pause", data=names | {"sure": "yes", "back": "/loops"})
    place = done.headers["location"]
    for _ in range(VIEWERS):
        await shows(client, place, f"{ward.BEDS[-1]}: paused")
    slow = {"task": "letter", "rate": "2/s", "count": "50", "sure": "yes", "back": "/failed"}
    place = (await client.post("/do/replay", data=slow)).headers["location"]
    assert re.search(r"\d+ of 50 done", (await client.get(place)).text)
    stopped = {"operation": place.partition("done=")[2], "back": "/failed"}
    place = (await client.post("/do/stop", data=stopped)).headers["location"]
    await shows(client, place, "stopped after")


async def shows(client: httpx.AsyncClient, path: str, text: str) -> None:
    """Wait until a page has a text: a worker may still hear of it."""
    async with asyncio.timeout(10):
        while text not in unescape((await client.get(path)).text):  # noqa: ASYNC110 - of others
            await asyncio.sleep(0.05)


async def park(field: Field, count: int) -> None:
    async with AmqpBroker(field.url) as broker:
        failed = program_of(ward.made(field.namespace), broker).failed
        for number in range(count):
            message, error = Message(b"{}", message_id=f"letter-{number}"), ValueError("no address")
            await failed.park(message, task_key("letter"), Reason.EXHAUSTED, error)


async def a_change_is_seen_in_all_live_pages(client: httpx.AsyncClient) -> None:
    """A machine under load may be late once, but not each time."""
    slowest = list[float]()
    async with AsyncExitStack() as stack:
        viewers = [
            await stack.enter_async_context(following(client, "/loops")) for _ in range(VIEWERS)
        ]
        for bed in ward.BEDS[:3]:
            fields = {"loop": bed, "reason": f"{bed} is broken", "back": "/loops"}
            seeing = [asyncio.create_task(seen(each, f"{bed} is broken")) for each in viewers]
            await asyncio.sleep(0)
            await client.post("/do/pause", data=fields)
            changed = time.monotonic()
            slowest.append(max(await asyncio.gather(*seeing)) - changed)
    assert min(slowest) < SEEN_WITHIN_S, slowest


@asynccontextmanager
async def following(client: httpx.AsyncClient, path: str) -> AsyncGenerator["Lines"]:
    async with client.stream("GET", f"/live/nothing{path}") as answer:
        assert answer.status_code == 200
        lines = answer.aiter_lines()
        async for line in lines:
            if line.startswith("data:"):
                break
        yield lines


Lines = AsyncIterator[str]


async def seen(lines: Lines, text: str) -> float:
    """Wait until a live page shows a text; when it did."""
    async with asyncio.timeout(30):
        async for line in lines:
            if text in unescape(line):
                return time.monotonic()
    raise AssertionError("The stream has ended.")
