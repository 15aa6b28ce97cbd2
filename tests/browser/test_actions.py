"""Each action of each page, in a real browser, with what it does in a RabbitMQ."""

import re
import time
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Locator, Page, expect

from scheduler import Every
from scheduler.control.loops import Where
from scheduler.program import Program
from scheduler.protocol.tokens import LoopId
from scheduler.queues.entries import RosterEntry
from tests.browser.conftest import Reader
from tests.browser.working import Ward

pytestmark = pytest.mark.parametrize("ward", ["rabbitmq"], indirect=True, scope="module")

BY = "a user of this machine at "


def done(page: Page, told: str) -> None:
    """The page says what came of it."""
    expect(page.locator("#doing")).to_contain_text(told, timeout=30_000)


def button(place: Page | Locator, name: str) -> Locator:
    return place.get_by_role("button", name=name, exact=True)


def press(place: Page | Locator, name: str, told: str) -> None:
    """Press a button; the page says what came of it."""
    button(place, name).click()
    done(place.page if isinstance(place, Locator) else place, told)


def undo(page: Page, told: str) -> None:
    press(page.locator("#doing"), "Undo", told)


def row(page: Page, loop: str) -> Locator:
    return page.locator(f"[id='loop-{loop}']")


def listed(ward: Ward, loop: LoopId) -> RosterEntry | None:
    async def read(program: Program) -> RosterEntry | None:
        return (await program.roster.read()).get(loop)

    return ward.ask(read)


def endings(ward: Ward, loop: str) -> list[str]:
    return [entry.what for entry in ward.history(loop)]


def asked(page: Page, title: str) -> Locator:
    """The page asks over itself."""
    question = page.locator("dialog[open]")
    expect(question.locator("h1")).to_have_text(title)
    return question


def refused(visitor: Reader, told: str) -> None:
    """The page says why nothing was done."""
    expect(visitor.page.get_by_role("alert").first).to_contain_text(told)
    wrong = [each for each in visitor.wrong if "status of 400" not in each]
    visitor.wrong[:] = wrong  # a browser tells of each


def parked(ward: Ward, page: Page, task: str, count: int) -> None:
    """The page has counted so many."""
    expect(page.locator("#parked").get_by_role("link", name=f"{task} {count}")).to_be_visible(
        timeout=30_000
    )
    assert len(ward.parked(task)) == count


def remain(ward: Ward, task: str, ids: list[str]) -> None:
    """These messages are parked, and no others; another reader may hold them for a moment."""
    found = set[str]()
    for _ in range(100):
        if (found := {each.id for each in ward.parked(task)}) == set(ids):
            return
        time.sleep(0.1)
    assert found == set(ids)


def test_pause_run_and_resume_from_the_list(visitor: Reader, ward: Ward) -> None:
    page = visitor.open("/loops?q=laundry")
    press(row(page, "laundry"), "Run now", "laundry: triggered")
    expect(row(page, "laundry")).to_contain_text("succeeded")
    # Without a reload, in the same place; and it can be taken back.
    page.evaluate("window.loadedOnce = true")
    press(row(page, "laundry"), "Pause", "laundry: paused")
    expect(row(page, "laundry")).to_contain_text("paused from the dashboard")
    assert ward.is_paused("laundry")
    undo(page, "laundry: resumed")
    assert not ward.is_paused("laundry")
    press(row(page, "laundry"), "Pause", "laundry: paused")
    press(row(page, "laundry"), "Resume", f"It was paused by {BY}")
    undo(page, "laundry: paused")
    page.route("**/do/resume", lambda route: route.abort())
    button(row(page, "laundry"), "Resume").click()
    expect(page.locator("#doing .bad")).to_contain_text("it is not known whether this was done")
    assert ward.is_paused("laundry")
    assert page.evaluate("window.loadedOnce")
    what = ["seeded", "triggered", "succeeded", *["paused", "resumed"] * 2, "paused"]
    assert endings(ward, "laundry") == what


def test_a_bulk_action_asks_first_and_is_done_to_the_loops_it_named(visitor: Reader, ward: Ward):
    page = visitor.open("/loops?q=bed-")
    page.evaluate("window.loadedOnce = true")
    button(page, "Pause all 2").click()
    question = asked(page, "Pause 2 loops?")
    expect(question).to_contain_text("bed-north")
    question.get_by_role("link", name="No, go back").click()
    expect(question).to_be_hidden()
    assert not ward.is_paused("bed-north")
    button(page, "Pause all 2").click()
    question = asked(page, "Pause 2 loops?")

    async def start(_: Program) -> None:
        sender: Any = ward.app.senders["visit"]
        await sender.start("bed-later", every="1h", args={"ward": "later"})

    ward.ask(start)
    expect(row(page, "visit.bed-later")).to_be_visible()
    press(
        question,
        "Pause 2 loops",
        "1 more match the filter since, and were left alone: visit.bed-later",
    )
    names = ("bed-north", "bed-south", "visit.bed-later")
    assert [ward.is_paused(each) for each in names] == [True, True, False]
    undo(page, "bed-south: resumed")
    assert [ward.is_paused(each) for each in names] == [False] * 3
    assert page.evaluate("window.loadedOnce")
    page = visitor.open("/loop?name=visit.bed-later")
    button(page, "Remove…").click()
    press(asked(page, "Remove 1 loop?"), "Remove 1 loop", "visit.bed-later: removed")


def test_a_run_is_inspected_and_cancelled_in_place(visitor: Reader, ward: Ward) -> None:
    page = visitor.open("/loops?q=dialysis")
    press(row(page, "dialysis"), "Run now", "dialysis: triggered")
    page = visitor.open("/running")
    page.evaluate("window.loadedOnce = true")
    run = page.locator("#runs tr", has_text="dialysis")
    expect(run).to_contain_text("25 %", timeout=30_000)
    expect(run).to_contain_text("a quarter")
    press(run, "Stack", "asyncio.sleep(3600)")
    button(run, "Cancel…").click()
    press(asked(page, "Cancel this run?"), "Cancel the run", "cancelled")
    expect(run).to_have_count(0)
    assert page.evaluate("window.loadedOnce")
    assert endings(ward, "dialysis")[-1] == "cancelled"


def test_rows_are_selected_and_acted_on_by_keyboard(visitor: Reader, ward: Ward) -> None:
    page = visitor.open("/loops?q=bed-")
    page.keyboard.press("?")
    expect(page.locator("#keys")).to_contain_text("pause or resume")
    page.keyboard.press("Escape")
    for key in "jjk":
        page.keyboard.press(key)
    expect(row(page, "bed-north").get_by_role("link")).to_be_focused()
    page.keyboard.press("p")
    done(page, "bed-north: paused")
    expect(row(page, "bed-north")).to_contain_text("paused from the dashboard")
    page.keyboard.press("z")
    done(page, "bed-north: resumed")
    assert not ward.is_paused("bed-north")
    page.evaluate("document.activeElement.blur()")
    expect(page.locator("#picked")).to_be_hidden()
    for key in "jxjx":
        page.keyboard.press(key)
    expect(page.locator("#picked")).to_be_visible()
    button(page.locator("#picked"), "Pause").click()
    press(asked(page, "Pause 2 loops?"), "Pause 2 loops", "bed-south: paused")
    assert ward.is_paused("bed-north")
    expect(page.locator("#picked")).to_be_hidden()
    undo(page, "bed-south: resumed")
    assert not ward.is_paused("bed-south")


def test_a_failure_is_acknowledged_with_a_note_in_place(visitor: Reader, ward: Ward) -> None:
    page = visitor.open("/")
    failure = page.locator("#troubles > li", has_text="the scanner is too warm")
    expect(page.locator("#verdict")).to_contain_text("1 is failing", timeout=30_000)
    expect(page).to_have_title(re.compile(r"^\(1\) "))
    page.evaluate("window.loadedOnce = true")
    failure.get_by_text("Acknowledge…").click()
    failure.get_by_label("Note").fill("a new fan comes on Monday")
    press(failure, "Acknowledge", "scanner: acknowledged, until the next success")
    expect(failure).to_contain_text(re.compile("by a user of .+: a new fan comes on Monday"))
    expect(page.locator("#verdict")).to_contain_text("1 is failing (1 acknowledged)")
    expect(page).to_have_title(re.compile("^Overview"))
    undo(page, "scanner: not acknowledged")
    expect(failure.get_by_text("Acknowledge…")).to_be_visible()
    expect(page).to_have_title(re.compile(r"^\(1\) "))
    assert page.evaluate("window.loadedOnce")


def test_start_a_keyed_loop_and_remove_it(visitor: Reader, ward: Ward) -> None:
    loop = LoopId("visit", "north.1")
    page = visitor.open("/tasks")
    page.locator("[id='task-visit']").get_by_role("link", name="Start a loop").click()
    expect(page.locator("main")).to_contain_text("ward: str")
    page.get_by_label("Key").fill("north/1")
    page.get_by_label("Every", exact=True).fill("90s")
    page.get_by_label("Arguments").fill('{"ward": "north"}')
    button(page, "Start…").click()
    refused(visitor, "A key has 1 to 100")
    assert listed(ward, loop) is None
    expect(page.get_by_label("Arguments")).to_have_value('{"ward": "north"}')
    page.get_by_label("Key").fill("north.1")
    button(page, "Start…").click()
    question = asked(page, "Start visit.north.1?")
    expect(question).to_contain_text("every 1m30s, from the end of a run")
    expect(question).not_to_contain_text('"ward"')
    question.get_by_role("link", name="No, go back").click()
    page.get_by_label("Every", exact=True).fill("1h")
    button(page, "Start…").click()
    assert listed(ward, loop) is None
    press(page, "Start visit.north.1", "visit.north.1: created")
    found = listed(ward, loop)
    assert found is not None
    assert (found.schedule, dict(found.args)) == (Every("1h"), {"ward": "north"})
    assert ward.where("visit.north.1") is Where.WAITING
    assert ward.history("visit.north.1")[0].by.startswith(BY)
    row(page, "visit.north.1").get_by_role("link").click()
    button(page, "Remove…").click()
    question = asked(page, "Remove 1 loop?")
    assert ward.tokens(loop) == 1
    press(question, "Remove 1 loop", "visit.north.1: removed")
    assert ward.tokens(loop) == 0
    gone = listed(ward, loop)
    assert gone is not None
    assert gone.is_gone
    assert endings(ward, "visit.north.1")[-1] == "removed"


def test_parked_messages_are_edited_replayed_and_deleted(visitor: Reader, ward: Ward) -> None:
    ward.mended = False
    ward.send("bill", "dora", "emil", "fritz", "gerda")
    page = visitor.open("/failed?task=bill")
    parked(ward, page, "bill", 4)
    ids = [each.id for each in ward.parked("bill")]
    page.get_by_text("The messages", exact=True).click()
    page.get_by_role("link", name=ids[0]).click()
    page.get_by_role("link", name="Show them").click()
    for typed, told in (('{"to": 7', "JSON object"), ('{"to": 7}', "stays parked")):
        page.get_by_label("Arguments").fill(typed)
        button(page, "Replay with these").click()
        refused(visitor, told)
        expect(page.get_by_label("Arguments")).to_have_value(typed)
    remain(ward, "bill", ids)
    page.get_by_label("Arguments").fill('{"to": "dora@example.org"}')
    press(page, "Replay with these", "replayed")
    remain(ward, "bill", ids[1:])
    # The address of another one is the same, though there was a replay.
    ward.mended = True
    page = visitor.open(f"/failed/message?id={quote(ids[1])}")
    press(page, "Replay", "replayed")
    remain(ward, "bill", ids[2:])
    page = visitor.open(f"/failed/message?id={quote(ids[2])}")
    button(page, "Delete…").click()
    press(asked(page, "Delete 1 message?"), "Delete 1 message", "deleted")
    remain(ward, "bill", ids[3:])
    undo(page, "restored")
    remain(ward, "bill", ids[2:])
    page = visitor.open("/failed?task=bill")
    page.evaluate("window.loadedOnce = true")
    button(page.locator("article", has_text="bill"), "Delete all 2…").click()
    remain(ward, "bill", ids[2:])
    question = asked(page, "Delete 2 messages?")
    # A key that is held down deletes nothing.
    expect(question.get_by_role("link", name="No, go back")).to_be_focused()
    press(question, "Delete 2 messages", "deleted")
    assert ward.parked("bill") == []
    undo(page, "restored")
    remain(ward, "bill", ids[2:])
    button(page.locator("article", has_text="bill"), "Replay all 2…").click()
    press(asked(page, "Replay 2 messages?"), "Replay 2 messages", "replayed")
    assert ward.parked("bill") == []
    assert page.evaluate("window.loadedOnce")
