"""The dashboard in a real browser, on the embedded broker."""

import re
from collections.abc import Iterator
from importlib.resources import files
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import Dashboard, Reader, reading

PATHS = (
    *("/", "/wall", "/loops", "/loops?by=task", "/loop?name=lab"),
    *("/loop?name=night_round&args=1", "/tasks", "/failed"),
    *("/running", "/calendar", "/processors", "/journal", "/doctor", "/search?q=night"),
    *("/loop/schedule?loop=drill", "/tasks/start?task=letter", "/tasks/send?task=letter"),
    "/loop/run?loop=night_round",
)
AXE = (files("axe_playwright_python") / "axe.min.js").read_text()
# Without this option, axe describes all elements that pass as well.
VIOLATIONS = "async () => (await axe.run({resultTypes: ['violations']})).violations"
WIDTHS = (390, 1600)
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
EMPTY = """[...document.querySelectorAll("main > *")].filter(
    each => each.offsetHeight && !each.innerText.trim() && !each.querySelector("svg"),
).map(each => each.outerHTML)"""
NAME = """() => {
    const brand = document.querySelector(".brand");
    brand.querySelector("span").textContent = "a-namespace-with-a-long-name";
    brand.insertAdjacentHTML("beforeend", "<b class=env>Production</b>");
    const box = (each) => document.querySelector(each).getBoundingClientRect();
    window.is_before = (one, other) => box(one).right <= box(other).left;
}"""
LATER = """before => {
    const tick = document.getElementById("facts").innerText.match(/#(\\d+)/);
    return Number(tick[1]) > before + 1;
}"""


@pytest.fixture(scope="module")
def visits(chromium: Browser, dev: Dashboard) -> Iterator[Reader]:
    """Open page after page in one window: to open a window takes longer than to look."""
    with reading(chromium, dev) as reader:
        yield reader


@pytest.fixture(scope="module")
def without_javascript(chromium: Browser, dev: Dashboard) -> Iterator[Reader]:
    """Open page after page in one window that runs no script."""
    with reading(chromium, dev, java_script_enabled=False) as reader:
        yield reader


@pytest.mark.parametrize("path", PATHS)
def test_each_page_is_accessible_and_fits_its_window(visits: Reader, path: str) -> None:
    page = visits.open(path)
    expect(page.locator("h1")).to_be_visible()
    page.evaluate(AXE)
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme)
        page.evaluate("Promise.all(document.getAnimations().map(each => each.finished))")
        found: list[dict[str, Any]] = page.evaluate(VIOLATIONS)
        told = [(each["id"], [node["html"] for node in each["nodes"]]) for each in found]
        assert (scheme, told) == (scheme, [])
    assert page.evaluate(EMPTY) == []
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 800})
        over = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert (width, page.evaluate(over)) == (width, 0)
    assert visits.wrong == []


@pytest.mark.parametrize("path", PATHS)
def test_each_page_says_the_same_without_javascript(without_javascript: Reader, path: str):
    page = without_javascript.open(path)
    told = page.locator("main").inner_text()
    times = page.locator("main time").all_text_contents()
    assert without_javascript.wrong == []
    assert len(told) > 30
    # In UTC, or in the zone of a schedule.
    exact = r"(\w{3} \d+ \w{3} \d{4}, \d\d:\d\d:\d\d|\d\d:\d\d) \w+"
    assert all(re.fullmatch(exact, each) for each in times)


def tick_of(page: Page) -> int:
    """The tick that a loop's page is at."""
    facts = page.locator("#facts", has_text=re.compile(r"#\d+"))  # none until it has run once
    found = re.search(r"#(\d+)", facts.inner_text())
    assert found
    return int(found[1])


def test_times_are_relative_with_the_exact_one_on_hover(reader: Reader) -> None:
    page = reader.open("/loop?name=night_round")
    due = page.locator("#facts time").first
    expect(due).to_have_text(re.compile(r"^in \d+ (h \d+ m|m|s)$"))
    title = due.get_attribute("title") or ""
    assert re.search(r"02:30:00 CES?T", title), title
    assert "here: " in title


def test_a_search_is_in_the_address_and_survives_a_reload(reader: Reader) -> None:
    page = reader.open("/loops")
    page.keyboard.press("/")
    page.keyboard.type("night")
    page.wait_for_url("**/loops?q=night*")
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.get_by_label("Search")).to_be_focused()
    page.reload()
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.get_by_label("Search")).to_have_value("night")
    # Who writes goes on when the page comes anew.
    page.keyboard.press("/")
    page.keyboard.press("End")
    page.evaluate("showPage(document.getElementById('main').innerHTML)")
    expect(page.get_by_label("Search")).to_be_focused()
    page.keyboard.type("ly")
    page.wait_for_url("**/loops?q=nightly*")


def test_a_loop_is_found_and_opened_from_any_page_by_keyboard(reader: Reader) -> None:
    page = reader.open("/journal")
    find, hits = page.get_by_label("Find"), page.locator("#hits")
    find.fill("nigth_round")
    expect(hits).to_contain_text("Did you mean night_round?")
    find.fill("")
    expect(hits).to_be_hidden()
    page.route("**/search?q=ni", lambda _: None)  # the answer does not come
    with page.expect_request("**/search?q=ni"):
        find.fill("ni")
    with page.expect_event("requestfailed"):  # nor is it waited for
        find.fill("night")
    expect(hits.get_by_role("link")).to_have_count(1)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_url("**/loop?name=night_round")
    page.keyboard.press("/")
    page.keyboard.type("centrifuge")
    page.keyboard.press("Enter")
    page.wait_for_url("**/search?q=centrifuge")
    expect(page.locator("#found")).to_contain_text("the centrifuge is out of balance")


def test_search_and_acknowledgement_work_on_a_phone(chromium: Browser, dev: Dashboard) -> None:
    size: Any = {"width": 390, "height": 844}
    with reading(chromium, dev, viewport=size) as reader:
        page = reader.open("/")
        page.evaluate(NAME)
        assert page.evaluate("is_before('.env', '.find')")
        page.get_by_label("Find").fill("night")
        expect(page.locator("#hits").get_by_role("link")).to_be_visible()
        expect(page.locator(".find")).to_be_in_viewport(ratio=1)
        assert page.locator(".find").evaluate("field => field.offsetWidth") > 300
        page.get_by_text("Acknowledge…").first.click()
        expect(page.locator(".ask[open] form")).to_be_in_viewport(ratio=1)


def test_the_wall_is_large_and_updates_itself(chromium: Browser, dev: Dashboard) -> None:
    size: Any = {"width": 1920, "height": 1080}
    with reading(chromium, dev, viewport=size) as reader:
        page = reader.open("/wall?theme=dark")
        title = page.locator("h1")
        expect(title).to_contain_text("failing")
        expect(page.locator("#processors li")).to_have_count(1, timeout=30_000)
        expect(page.get_by_role("navigation", name="Pages")).to_be_hidden()
        expect(page.get_by_text("Acknowledge…")).to_be_hidden()
        font = "element => parseFloat(getComputedStyle(element).fontSize)"
        assert title.evaluate(font) > 36
        assert page.evaluate("getComputedStyle(document.body).colorScheme") == "dark"
        page.evaluate("window.loadedOnce = true")
        itself = re.compile(r"//[^/]+/wall\?")
        with page.expect_response(itself):
            page.evaluate("listen()")  # as after a lost connection
        assert page.evaluate("window.loadedOnce")
        later = "<!doctype html><title>of a later version</title>"
        page.route(itself, lambda route: route.fulfill(body=later), times=1)
        page.evaluate("listen()")
        page.wait_for_function("() => !window.loadedOnce")
        expect(title).to_contain_text("failing")


def test_every_control_is_reached_by_keyboard(reader: Reader) -> None:
    page = reader.open("/loops")
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    reached: set[str] = set()
    for _ in range(30):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.textContent.trim()"))
    assert "drill" in reached
    assert "Pause" in reached


HIDE = """hidden => {
    Object.defineProperty(document, "hidden", {value: hidden, configurable: true});
    document.dispatchEvent(new Event("visibilitychange"));
}"""


def test_a_hidden_tab_stops_updates_until_it_is_visible(reader: Reader) -> None:
    page = reader.open("/loop?name=pulse")
    page.wait_for_function(LATER, arg=tick_of(page))
    page.evaluate(HIDE, True)
    assert page.evaluate("news.readyState") == 2  # closed
    before = tick_of(page)
    page.evaluate(HIDE, False)
    page.wait_for_function(LATER, arg=before)
