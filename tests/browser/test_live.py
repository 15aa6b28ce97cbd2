"""What is new on a page moves nothing under a hand: in a real browser, on the embedded broker."""

import re
from collections.abc import Iterator
from typing import Any
from urllib.request import urlopen

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.browser.conftest import APPS, Dashboard, Reader, reading, shown
from tests.browser.test_dashboard import LATER, tick_of

NAMES = "[...document.querySelectorAll('tbody tr')].map(row => row.id)"
BEATEN = "was => document.querySelector('#last-pulse time').dateTime !== was"
SHOWN = f"""was => {{
    const note = document.getElementById("waiting");
    if (note.hidden) return false;
    note.click();
    return note.hidden && String({NAMES}) !== String(was);
}}"""
RUN = """name => {
    const form = document.getElementById(`do/trigger/${name}`);
    const body = new URLSearchParams(new FormData(form));
    return fetch(form.action, {method: "POST", body}).then(() => {});
}"""
TO_THE_TOP = {"pointer": "rounds", "focus": "post", "selection": "night_round"}
OPENED = """[...document.querySelectorAll("#events details[open]")]
    .map(each => each.closest("li").innerText.match(/#\\d+/)?.[0])"""
OPEN = """() => {
    const details = [...document.querySelectorAll("#events details")];
    details.find(each => each.closest("li").innerText.includes("#")).open = true;
}"""
TAKE = {
    "pointer": "row => {}",
    "focus": "row => row.querySelector('button').focus()",
    "selection": "row => getSelection().selectAllChildren(row.querySelector('th a'))",
}
HELD = {
    "pointer": "document.querySelector('tr:hover')?.id",
    "focus": "document.activeElement.closest('tr')?.id",
    "selection": "`loop-${getSelection()}`",
}


def beat(page: Page) -> None:
    """Wait until the list has told of one more run."""
    last = page.locator("[id='last-pulse'] time")
    page.wait_for_function(BEATEN, arg=last.evaluate("each => each.dateTime"))


@pytest.mark.parametrize("hand", TAKE)
def test_a_list_in_use_keeps_its_order_and_counts_updates(reader: Reader, hand: str) -> None:
    page = reader.open("/loops?sort=last")
    page.mouse.move(0, 0)
    page.wait_for_function("() => document.querySelectorAll('.c-last time').length > 1")
    order = page.evaluate(NAMES)
    row = page.locator(f"[id='{order[1]}']")
    if hand == "pointer":
        row.hover(position={"x": 300, "y": 5})
    row.evaluate(TAKE[hand])
    order = page.evaluate(NAMES)
    held = page.evaluate(HELD[hand])
    page.evaluate(RUN, TO_THE_TOP[hand])
    for _ in range(4):
        beat(page)
        assert page.evaluate(HELD[hand]) == held
        assert page.evaluate(NAMES) == order
    waiting = page.locator("#waiting")
    expect(waiting).to_be_visible()
    expect(waiting).to_have_text(re.compile(r"^\d+ changes waiting$"))
    # They are shown when that is asked for, also under a hand.
    page.wait_for_function(SHOWN, arg=order)


COUNT_UPDATES = """() => {
    window.updates = 0;
    for (const each of ["parts", "page"]) news.addEventListener(each, () => ++window.updates);
}"""
HOLD_A_ROW = """() => {
    const rows = document.querySelectorAll("tbody tr");
    rows[1].querySelector(".pick input").click();
    rows[2].querySelector(".do button").focus();
    getSelection().selectAllChildren(rows[3].querySelector("th a"));
    scrollTo(0, 120);
}"""
HELD_ROWS = f"""[
    {NAMES}, document.activeElement.closest("tr").id, String(getSelection()), scrollY,
    document.querySelector(":checked[form=picked]").value,
]"""
UPDATES = 30  # one each beat
ROWS = 25
SHOWN_ROWS = """[...document.querySelectorAll('tbody tr')].filter(
    row => row.getBoundingClientRect().bottom <= innerHeight).length"""


@pytest.fixture(scope="module")
def busy() -> Iterator[Dashboard]:
    """Ten loops that run each 250 ms, as fast as pages are told; and thirty that seldom do."""
    environment = {"CLINIC_WARDS": "9", "CLINIC_VISITS": "30", "CLINIC_BEAT_S": "0.25"}
    with shown("dev", f"{APPS}/clinic.py:app", "--port", "0", **environment) as dashboard:
        yield dashboard


def test_nothing_moves_during_use_over_30_updates(chromium: Browser, busy: Dashboard) -> None:
    size: Any = {"width": 1000, "height": 400}
    with (
        reading(chromium, busy, viewport=size) as reader,
        reading(chromium, busy, viewport=size) as other,
    ):
        rows = reader.open("/loops?sort=due")
        rows.wait_for_function("() => document.querySelectorAll('.c-last time').length > 9")
        rows.evaluate(HOLD_A_ROW)
        before = rows.evaluate(HELD_ROWS)
        rows.evaluate(COUNT_UPDATES)
        page = other.open("/loop?name=lab")
        page.wait_for_function("() => document.querySelectorAll('#events details').length > 1")
        page.evaluate(OPEN)
        (opened,) = page.evaluate(OPENED)
        page.get_by_label("Reason (optional)").focus()
        page.evaluate(COUNT_UPDATES)
        typed = ""
        for number in range(UPDATES):
            page.keyboard.type(f"{number} ")
            typed += f"{number} "
            page.wait_for_function("was => updates > was", arg=number)
        expect(page.get_by_label("Reason (optional)")).to_be_focused()
        expect(page.get_by_label("Reason (optional)")).to_have_value(typed)
        assert page.evaluate(OPENED) == [opened]
        rows.wait_for_function("most => updates >= most", arg=UPDATES, timeout=60_000)
        assert rows.evaluate(HELD_ROWS) == before


def test_a_window_of_1280_by_900_shows_25_loops(chromium: Browser, busy: Dashboard) -> None:
    size: Any = {"width": 1280, "height": 900}
    with reading(chromium, busy, viewport=size) as reader:
        page = reader.open("/loops")
        expect(page.locator("tbody tr")).to_have_count(45)
        expect(page.get_by_text("Nothing was seeded yet")).to_have_count(0)
        assert page.evaluate(SHOWN_ROWS) >= ROWS


def test_a_slow_answer_to_a_search_is_dropped(reader: Reader) -> None:
    page = reader.open("/loops")
    slow: list[Route] = []
    page.route(re.compile(r"/loops\?q=ni&"), lambda route: slow.append(route))
    page.keyboard.press("/")
    with page.expect_request(re.compile(r"/loops\?q=ni&")):
        page.keyboard.type("ni")
    page.keyboard.type("ght_round")
    page.wait_for_url("**/loops?q=night_round*")
    slow[0].fulfill(body="<main id=main><p>stale</p></main>", content_type="text/html")
    page.wait_for_timeout(500)
    expect(page).to_have_url(re.compile("q=night_round&"))
    expect(page.locator("main")).not_to_contain_text("stale")
    expect(page.get_by_label("Search")).to_have_value("night_round")


def test_live_updates_can_be_switched_off_and_on(reader: Reader) -> None:
    page = reader.open("/loop?name=pulse")
    news = page.locator("main").get_attribute("data-live")
    with urlopen(page.url.partition("/loop")[0] + str(news)) as stream:
        assert stream.headers["X-Accel-Buffering"] == "no"
    page.wait_for_function(LATER, arg=tick_of(page))
    page.get_by_label("Live").uncheck()
    before = tick_of(page)
    page.wait_for_timeout(2500)
    assert tick_of(page) == before
    page.reload()
    expect(page.get_by_label("Live")).not_to_be_checked()
    before = tick_of(page)
    page.get_by_label("Live").check()
    page.wait_for_function(LATER, arg=before)
