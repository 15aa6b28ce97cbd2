"""A real browser, and somebody who looks at a dashboard with it."""

import os
import shutil
import uuid
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Request, sync_playwright

from tests.browser.working import Dashboard, Ward, shown
from tests.rabbitmq import found_or_installed

APPS = Path(__file__).parent / "apps"
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
NO_BROWSER = (
    "These tests need a browser, and none was found: install Chromium (Debian: apt-get install "
    "chromium), or name its program in SCHEDULER_TEST_CHROMIUM."
)


def find_chromium() -> str | None:
    named = os.environ.get("SCHEDULER_TEST_CHROMIUM")
    return named or next((found for name in PROGRAMS if (found := shutil.which(name))), None)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """A browser without a window; installed where that can be done. Without one, tests fail.

    It has an event loop of its own, so that it has to be gone before other tests begin theirs.
    """
    program = found_or_installed("chromium", find_chromium)
    if program is None:
        pytest.fail(NO_BROWSER, pytrace=False)
    with sync_playwright() as playwright:
        # Root has no sandbox to be in.
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def dev() -> Iterator[Dashboard]:
    """An app at work on the embedded broker."""
    with shown("dev", f"{APPS}/clinic.py:app", "--port", "0") as dashboard:
        yield dashboard


class Reader:
    """Somebody who looks; what goes wrong unseen is looked at in the end."""

    def __init__(self, page: Page, dashboard: Dashboard | Ward) -> None:
        self.page = page
        self.wrong: list[str] = []
        self._address = dashboard.address.rstrip("/")
        page.on("console", self._note)
        page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        page.on("request", self._watch)

    def open(self, path: str) -> Page:
        """Go to a page."""
        self.page.goto(self._address + path)
        return self.page

    def _note(self, message: Any) -> None:
        # A browser says so of each lost connection; what a test breaks is its own.
        if message.type in ("error", "warning") and "ERR_" not in message.text:
            self.wrong.append(f"{message.type}: {message.text}")

    def _watch(self, request: Request) -> None:
        if not request.url.startswith((self._address, "data:")):
            self.wrong.append(f"asks elsewhere: {request.url}")


@contextmanager
def reading(chromium: Browser, dashboard: Dashboard | Ward, **options: Any) -> Generator[Reader]:
    """A reader with a browser of their own, who meets no error."""
    context = chromium.new_context(**options)
    context.set_default_timeout(15_000)
    reader = Reader(context.new_page(), dashboard)
    try:
        yield reader
        assert reader.wrong == []
    finally:
        context.close()


@pytest.fixture
def reader(chromium: Browser, dev: Dashboard) -> Iterator[Reader]:
    with reading(chromium, dev) as reader:
        yield reader


@pytest.fixture(scope="module")
def ward(request: pytest.FixtureRequest) -> Iterator[Ward]:
    """An app at work, on the embedded broker unless told otherwise, whose queues can be seen."""
    broker = getattr(request, "param", "embedded")
    url = request.getfixturevalue("broker_url") if broker == "rabbitmq" else None
    ward = Ward(f"t{uuid.uuid4().hex[:8]}", url)
    with ward.at_work():
        yield ward


@pytest.fixture
def visitor(chromium: Browser, ward: Ward) -> Iterator[Reader]:
    with reading(chromium, ward) as reader:
        yield reader
