"""Pictures of the dashboard of 200 loops under load: `make screenshots`.

All pages go to `docs/dashboard/`, in three widths, in light and dark; two of them to README, too.
"""

import argparse
import sys
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.browser.conftest import APPS, Dashboard, find_chromium, shown

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "dashboard"
PAGES = {
    "overview": "/",
    "wall": "/wall",
    "loops": "/loops?sort=state",
    "by-task": "/loops?by=task",
    "search": "/search?q=oslo",
    "loop": "/loop?name=crawl-tokyo",
    "nightly": "/loop?name=close-books-oslo",
    "schedule": "/loop/schedule?loop=close-books-oslo",
    "running": "/running",
    "tasks": "/tasks",
    "start": "/tasks/start?task=send_sms",
    "send": "/tasks/send?task=send_sms",
    "failed": "/failed",
    "calendar": "/calendar",
    "processors": "/processors",
    "journal": "/journal",
    "doctor": "/doctor",
}
IN_README = {("overview", 1600, "light"): "overview", ("loops", 1600, "dark"): "loops"}
QUALITY = 60
WIDTHS, SCHEMES = (1600, 1280, 390), ("light", "dark")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--warm", type=float, default=100, help="seconds before the first picture")
    warm: float = options.parse_args().warm
    program = find_chromium()
    if program is None:
        sys.exit("There is no browser: install Chromium, or name it in SCHEDULER_TEST_CHROMIUM.")
    PICTURES.mkdir(parents=True, exist_ok=True)
    app, named = f"{APPS}/store.py:app", {"SCHEDULER_ENVIRONMENT": "Production"}
    with shown("dev", app, "--port", "0", **named) as dashboard, sync_playwright() as it:
        browser = it.chromium.launch(executable_path=program, args=["--no-sandbox"])
        prepare(browser, dashboard, warm)
        for path in pictures(browser, dashboard):
            sys.stdout.write(f"{path}\n")
        browser.close()


def prepare(browser: Browser, dashboard: Dashboard, warm: float) -> None:
    """Let it work for a while, and have done what pages show then."""
    page = browser.new_page()
    page.goto(f"{dashboard.address}/loops?q=poll-&task=poll-oslo")
    page.wait_for_timeout(warm * 1000)
    page.goto(f"{dashboard.address}/loop?name=poll-oslo")
    page.get_by_label("Reason (optional)").fill("stocktaking until noon")
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("#doing")).to_contain_text("paused")
    page.goto(f"{dashboard.address}/doctor")
    expect(page.locator("#findings")).to_contain_text("broker version", timeout=60_000)
    page.close()


def pictures(browser: Browser, dashboard: Dashboard) -> Iterator[Path]:
    for width in WIDTHS:
        for scheme in SCHEMES:
            size = {"width": width, "height": 900 if width > 1000 else 844}
            context = browser.new_context(viewport=size, color_scheme=scheme)  # pyright: ignore[reportArgumentType]
            page = context.new_page()
            for name, path in PAGES.items():
                yield picture(page, dashboard.address + path, name, width, scheme)
            context.close()


def picture(page: Page, address: str, name: str, width: int, scheme: str) -> Path:
    page.goto(address)
    page.wait_for_timeout(1_500)
    path = PICTURES / f"{name}-{width}-{scheme}.webp"
    devtools: Any = page.context.new_cdp_session(page)
    taken = devtools.send("Page.captureScreenshot", {"format": "webp", "quality": QUALITY})
    path.write_bytes(b64decode(taken["data"]))
    if (known := IN_README.get((name, width, scheme))) is not None:
        page.screenshot(path=ROOT / "docs" / f"dashboard-{known}.png")
    return path


if __name__ == "__main__":
    main()
