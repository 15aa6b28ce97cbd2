"""The dashboard in a real browser, on RabbitMQ, which may go away."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from scheduler.protocol.administration import rights_to_look
from scheduler.protocol.topology import Names
from tests.acceptance.conftest import CommandLine
from tests.browser.conftest import APPS, reading, shown
from tests.rabbitmq import Users

CLINIC = f"{APPS}/clinic.py:app"


@pytest.fixture
def clinic(broker_url: str, namespace: str) -> Iterator[dict[str, str]]:
    """The environment of an app that is seeded, and at work."""
    environment = {"CLINIC_NAMESPACE": namespace, "SCHEDULER_BROKER_URL": broker_url}
    scheduler = CommandLine(APPS, **environment)
    assert scheduler("seed", CLINIC).code == 0
    with scheduler.processor(CLINIC):
        yield environment
    # In a process of its own: this one has the event loop of the browser.
    sweep = [sys.executable, "-m", "tests.sweep", broker_url, CLINIC]
    subprocess.run(sweep, env=os.environ | environment, check=True)


def test_a_read_only_user_sees_all_until_the_dashboard_is_gone(
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
        page = reader.open("/loops")
        expect(page.locator("tbody tr")).to_have_count(6)
        dashboard.process.terminate()
        expect(page.locator("#offline")).to_be_visible(timeout=20_000)
        expect(page.locator("tbody tr")).to_have_count(6)
