"""Processors that are well, and not, as those see it who ask from outside."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from yarl import URL

from tests.contract.proxy import Proxy
from tests.integration.conftest import Field
from tests.integration.watched import APP, Watched, sweep
from tests.rabbitmq import free_ports

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
async def field(broker_url: str, namespace: str, tmp_path: Path) -> AsyncIterator[Field]:
    """A seeded app."""
    field = Field(broker_url, namespace, "quorum", tmp_path / "record", app=APP)
    await asyncio.to_thread(field.call, "seed")
    yield field
    await sweep(field)


async def trigger(field: Field, loop: str) -> None:
    assert (await asyncio.to_thread(field.call, "trigger", loop))["did"] == "triggered"


def live(port: int) -> subprocess.CompletedProcess[str]:
    """What an exec probe runs."""
    return subprocess.run(
        [sys.executable, "-m", "scheduler", "doctor", "--live", "--health-port", str(port)],
        capture_output=True,
        text=True,
        timeout=20,
    )


async def test_a_processor_whose_event_loop_is_blocked_does_not_live(field: Field) -> None:
    watched = Watched(field)
    await watched.until_status("/readyz", 200)
    assert (await watched.asked("/livez")).json == {"live": True, "why": []}
    assert (await asyncio.to_thread(live, watched.port)).returncode == 0
    await trigger(field, "block")
    blocked = await watched.until_status("/livez", 503, seconds=15)
    assert not blocked.json["live"]
    (why,) = blocked.json["why"]
    assert "apps/watched.py" in why
    assert "(block)" in why
    unready = await watched.asked("/readyz")
    assert (unready.status, unready.json["ready"]) == (503, False)
    assert "time.sleep(60)" in watched.log  # the stack, for after it was killed
    probe = await asyncio.to_thread(live, watched.port)
    assert (probe.returncode, probe.stdout.count("(block)")) == (1, 1), probe.stderr


async def test_a_processor_whose_broker_is_away_lives_and_is_ready_again_when_it_is_back(
    field: Field,
) -> None:
    url, (port,) = URL(field.url), free_ports(1)
    assert url.host
    assert url.port
    async with Proxy(url.host, url.port, listen_on=port) as proxy:
        watched = Watched(field, str(url.with_port(proxy.port)))
        await watched.until_status("/readyz", 200)
    gone = await watched.until_status("/readyz", 503, seconds=5)
    assert f"no connection to amqp://guest@127.0.0.1:{port}" in gone.json["why"][0]
    # Longer than an event loop may be silent.
    for _ in range(14):
        lives, ready = await watched.asked("/livez"), await watched.asked("/readyz")
        assert (lives.status, ready.status) == (200, 503)
        await asyncio.sleep(1)
    async with Proxy(url.host, url.port, listen_on=port):
        back = await watched.until_status("/readyz", 200)
        assert back.json == {"ready": True, "why": []}
        await watched.until("/metrics", lambda page: "reconnects_total{" in page.text)
        watched.process.terminate()
        assert await asyncio.to_thread(watched.process.wait, 30) == 0


async def test_a_processor_that_drains_lives_and_is_not_ready(field: Field) -> None:
    watched = Watched(field)
    await watched.until_status("/readyz", 200)
    await trigger(field, "nap")
    running = f'scheduler_running{{loop="nap",namespace="{field.namespace}",task="nap"}} 1.0'
    await watched.until("/metrics", lambda page: running in page.text)
    watched.process.send_signal(signal.SIGTERM)
    draining = await watched.until_status("/readyz", 503, seconds=3)
    assert "draining" in draining.json["why"][0]
    assert (await watched.asked("/livez")).status == 200
    assert await asyncio.to_thread(watched.process.wait, 20) == 0
