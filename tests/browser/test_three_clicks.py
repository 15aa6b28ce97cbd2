"""The overview leads to each answer in at most three clicks."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Locator, Page, expect

from scheduler.control.reports import acting_as
from scheduler.program import Program
from tests.browser.conftest import Reader
from tests.browser.working import NOBODYS, Ward

WITHIN_MS = 30_000


class Finger:
    """A user at the overview, with three clicks."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.left = 3

    def click(self, what: Locator) -> None:
        assert self.left, "that would be the fourth click"
        self.left -= 1
        what.click(timeout=WITHIN_MS)


@pytest.fixture
def finger(visitor: Reader) -> Finger:
    return Finger(visitor.open("/"))


def test_a_missed_run_is_explained_by_a_pause(finger: Finger, ward: Ward) -> None:
    async def pause(program: Program) -> None:
        with acting_as("maria"):
            await program.verbs.pause(await program.loops.find("garden"), "frost until March")

    ward.ask(pause)
    page = finger.page
    finger.click(page.locator("#census").get_by_role("link", name=re.compile("paused")))
    finger.click(page.get_by_role("link", name="garden", exact=True))
    expect(page.locator("#head")).to_contain_text("Paused: frost until March")
    expect(page.locator("#head")).to_contain_text("by maria at ")


@pytest.mark.parametrize(
    ("loop", "reason"),
    [
        ("scanner", re.compile("Paused: .*the scanner is too warm", re.DOTALL)),
        (NOBODYS, "no processor takes messages of its task"),
    ],
)
def test_a_missed_run_is_explained_by_a_failure_or_by_missing_processors(
    finger: Finger, loop: str, reason: str | re.Pattern[str]
) -> None:
    finger.click(finger.page.locator("#troubles").get_by_role("link", name=loop, exact=True))
    expect(finger.page.locator("#head")).to_contain_text(reason)


@pytest.fixture
def dialysis(ward: Ward) -> Iterator[None]:
    """A run that goes on until the test has ended."""

    async def begin(program: Program) -> str:
        await program.verbs.trigger(await program.loops.find("dialysis"))
        while True:
            runs = (await program.cancellation.running()).runs
            if found := [run.id for run in runs if run.loop == "dialysis"]:
                return found[0]

    run = ward.ask(begin)
    yield
    ward.ask(lambda program: program.cancellation.cancel(run, by="the test"))


@pytest.mark.usefixtures("dialysis")
def test_running_runs_are_shown_with_their_pod(finger: Finger, ward: Ward) -> None:
    (name,) = ward.ask(lambda it: it.roll_call.ask_all({})).said
    page = finger.page
    finger.click(page.get_by_role("navigation").get_by_role("link", name="Running"))
    run = page.locator("#runs tr", has_text="dialysis")
    expect(run).to_contain_text(name, timeout=WITHIN_MS)
    assert page.locator("#due tr", has_text="dialysis").count() == 0


def test_all_messages_of_one_error_are_replayed(finger: Finger, ward: Ward) -> None:
    ward.mended = False
    ward.send("letter", "anna", "bert")
    ward.send("bill", "carla")
    page = finger.page
    tile = page.locator("[id='vital/Calls']")
    expect(tile).to_contain_text(
        re.compile("[4-9] parked"), timeout=WITHIN_MS
    )  # the scanner has one
    ward.mended = True
    finger.click(tile)
    group = page.locator("article", has_text="no address")
    finger.click(group.get_by_role("button", name="Replay all 2"))
    finger.click(page.get_by_role("button", name="Replay 2 messages"))
    expect(page.locator("#doing")).to_contain_text("replayed", timeout=WITHIN_MS)
    assert ward.parked("letter") == []
    assert len(ward.parked("bill")) == 1
