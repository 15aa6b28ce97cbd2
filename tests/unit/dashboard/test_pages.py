"""The pages and actions over HTTP, on the embedded broker."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from datetime import timedelta
from html import unescape
from typing import Any, cast
from urllib.parse import quote, unquote

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount
from starlette.types import ASGIApp

from scheduler import Context, Cron, Every, Retry, Scheduler
from scheduler.brokers.memory.broker import MemoryBroker
from scheduler.cli.printing import json_of
from scheduler.control.loops import Where
from scheduler.control.rows import Row, row_of_entry, row_of_status
from scheduler.dashboard import data, feed, forms, pages, picture, routes
from scheduler.dashboard.access import Access, Redact, Visitor, basic_access
from scheduler.dashboard.actions import ACTS
from scheduler.dashboard.pages import PAGES, Page
from scheduler.dashboard.rendering import Rendered, Visit
from scheduler.dashboard.routes import Routes
from scheduler.dashboard.serving import prefixed
from scheduler.dashboard.site import Site
from scheduler.dashboard.watch import Pod, Roll
from scheduler.errors import AccessRefused, BrokerUnavailable
from scheduler.protocol.epochs import Entry, LoopState
from scheduler.protocol.messages import Message
from scheduler.protocol.tokens import Ending, LastRun, LoopId, Token, encode
from scheduler.queues.entries import RosterEntry
from scheduler.queues.failed import kind_of
from scheduler.queues.outbox import Posting
from scheduler.queues.roll_call import RollCall
from scheduler.tasks.tasks import SUPERVISION
from scheduler.timing.moments import SystemClock
from tests.stage import Stage, an_app, new_app, program_of

HOST = "http://localhost:8088"
OF_ONE = (
    *("/loop", "/loop/schedule", "/loop/run"),
    *("/tasks/start", "/tasks/send", "/failed/message"),
)
PATHS = [*(page.path for page in PAGES if page.path not in OF_ONE), "/loops?by=task"]
ALICE = Visitor("alice", "all")
REPORT = LoopId("report")


async def nothing() -> None: ...


async def fail() -> None:
    raise RuntimeError("it does not work")


def a_shop() -> Scheduler:
    app = new_app(supervision_interval="1h")

    @app.periodic(every="10s", args={"city": "Oslo"})
    async def report(ctx: Context, city: str) -> None:
        ctx.carry({"cursor": 4711})

    @app.periodic(every="1h", retry=Retry(0))
    async def import_orders() -> None:
        raise ValueError("<b>no orders</b>")

    @app.task(retry=Retry(0))
    async def send_sms(phone: str) -> None:
        if phone.startswith("+49"):
            raise RuntimeError(f"no provider takes {phone!r}")

    return app


class Browser:
    """Somebody who looks at the dashboard of a stage."""

    def __init__(self, client: httpx.AsyncClient, site: Site) -> None:
        self._client = client
        self.site = site

    async def see(self, path: str, code: int = 200) -> str:
        """The text of a page."""
        answer = await self._client.get(path)
        assert answer.status_code == code, answer.text
        return unescape(answer.text)

    async def await_on(self, path: str, text: str) -> str:
        """The page, once it has the text, as it refreshes itself."""
        page = ""
        for _ in range(60):
            if text in (page := await self.see(path)):
                return page
            await asyncio.sleep(0.5)
        raise AssertionError(f"{text!r} is not on {path}: {page}")

    async def get(self, path: str, **headers: str) -> httpx.Response:
        return await self._client.get(path, headers=headers)

    async def press(self, action: str, code: int = 200, /, **fields: Any) -> str:
        """Send a form, and go where that leads to."""
        form = {"back": "/loops", **fields}
        answer = await self._client.post(f"/do/{action}", data=form, follow_redirects=True)
        assert answer.status_code == code, answer.text
        return unescape(answer.text)

    async def post(self, action: str, data: dict[str, str], **headers: str) -> httpx.Response:
        return await self._client.post(f"/do/{action}", data=data, headers=headers)


def printed_row(row: Row) -> Any:
    """A row as a command prints it."""
    return json.loads(json_of(row))


def words_in(html: str) -> str:
    return " ".join(re.sub(r"<[^>]+>|\n", " ", html).split())


def undo_of(page: str, action: str) -> dict[str, str]:
    """The fields of the button Undo, by which this action is done."""
    forms = [each[each.rindex("<form") :] for each in page.split("</form>") if "<form" in each]
    (undo,) = [each for each in forms if f'/do/{action}"' in each and 'class="undo"' in each]
    return dict(re.findall(r'name="(\w+)" value="([^"]*)"', undo))


@asynccontextmanager
async def browsing(
    stage: Stage,
    *,
    access: Access = lambda _: ALICE,
    read_only: bool = False,
    connect: Callable[[], MemoryBroker] | None = None,
    redact: Redact | None = None,
) -> AsyncGenerator[Browser]:
    connect = connect or (lambda: MemoryBroker(stage.server))
    site = Site(stage.app, connect, stage.clock, access, read_only, redact)
    transport = httpx.ASGITransport(Routes(site).app())
    async with httpx.AsyncClient(transport=transport, base_url=HOST) as client:
        try:
            await client.get("/")
            await asyncio.sleep(3)  # of virtual time
            yield Browser(client, site)
        finally:
            await site.stop()


@pytest.fixture
async def shop(stage: Stage) -> Stage:
    await stage.seed(a_shop())
    return stage


@pytest.fixture
async def browser(shop: Stage) -> AsyncGenerator[Browser]:
    """Alice's, at the dashboard of the shop."""
    async with browsing(shop) as browser:
        yield browser


@pytest.mark.parametrize("path", [*PATHS, "/loop?name=report", "/tasks/send?task=send_sms"])
async def test_each_page_is_shown_under_a_strict_policy_and_is_json_on_request(
    shop: Stage, browser: Browser, path: str
) -> None:
    async with shop.processor():
        await asyncio.sleep(15)
        other, page = await browser.get(path), await browser.get(path)
        answer = await browser.get(path, accept="application/json")
        program = browser.site.program
        statuses = {str(each.loop): each for each in await program.survey.status()}
        entries = [each async for each in program.journal.entries()]
    policy = page.headers["content-security-policy"]
    assert policy != other.headers["content-security-policy"]  # a nonce is used once
    nonce = re.search(r"script-src 'nonce-([^']+)'", policy)
    assert nonce
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert page.status_code == 200
    assert f'nonce="{nonce[1]}"' in page.text
    assert "<title>" in page.text
    assert not re.search(r'\sstyle="|\son\w+="|javascript:', page.text)
    assert not re.search(r'(src|href|action)="(https?:)?//', page.text)
    assert answer.headers["content-type"] == "application/json"
    assert isinstance(answer.json(), dict)
    assert "Oslo" not in answer.text
    if path == "/loops":
        loops = {each["loop"]: each for each in answer.json()["loops"]}
        printed = {name: printed_row(row_of_status(each)) for name, each in statuses.items()}
        assert loops.keys() == printed.keys()
        assert all(row.items() <= loops[name].items() for name, row in printed.items())
        assert loops["report"]["runs"][0]["last"]["ending"] == "succeeded"
    if path == "/journal":
        ours = [each for each in entries if each.loop != SUPERVISION.task]
        rows = [printed_row(row_of_entry(each)) for each in reversed(ours)]
        assert [each for each in answer.json()["entries"] if each in rows] == rows


@pytest.mark.parametrize(
    ("settings", "color"),
    [
        ({"environment": "Production"}, "magenta"),
        ({"environment": "staging 2"}, "cyan"),
        ({"environment": "<test>", "environment_color": "cyan"}, "cyan"),
        ({}, None),
    ],
)
async def test_the_environment_is_named_in_its_color(
    stage: Stage, settings: dict[str, Any], color: str | None
) -> None:
    await stage.seed(new_app(**settings))
    async with browsing(stage) as browser:
        page = await browser.see("/")
    assert re.findall('<body data-env="(.*)">', page) == ([] if color is None else [color])
    named = re.findall('<b class="env">(.*)</b>', page)
    assert named == ([] if color is None else [settings["environment"]])


async def test_names_from_another_program_are_text_on_each_page(
    shop: Stage, browser: Browser
) -> None:
    name, now = """<i>&'"x/?#% é""", shop.clock.now()
    failed = LastRun(Ending.ESCALATED, now, now, timedelta(0), error=name)
    for loop in (LoopId(name), LoopId(name, name), LoopId("send_sms", name)):
        entry = RosterEntry(loop, Every("10s"), {}, Entry(5, LoopState.ACTIVE, 5), at=now)
        browser.site.picture.listing.enter(entry)
        browser.site.picture.enter(entry)
        token = Token(loop, Every("10s"), now, now, epoch=5, seq=2, last=failed)
        browser.site.picture.hear(encode(token, shop.app.namespace))
        for path in (*PATHS, f"/loop?name={quote(str(loop))}"):
            answer = await browser.get(path)
            assert answer.status_code == 200
            assert "<i>&" not in answer.text
    page = await browser.see("/loops")
    assert re.findall(r'<tr id="loop-(.*)">', page)[0] == name


async def test_search_finds_loops_tasks_errors_and_messages(
    shop: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "MOST_FOUND", 2)
    for name in ("daily_report", "report_all"):
        shop.app.periodic(every="1h", name=name)(nothing)
    await shop.seeding.seed()
    await parked(shop, "+491")
    (message,) = await shop.parked()

    async def found(words: str) -> str:
        page = await browser.see(f"/search?q={quote(words)}")
        return words_in(page[page.index('id="found"') :].partition("</section>")[0])

    async with browsing(shop) as browser:
        await browser.await_on("/failed", 'name="kind"')
        # Those that begin so come first; a task with one loop is found as its loop.
        loops = "Loops report waiting report_all waiting all 3"
        assert (await found("report")).endswith(loops)
        for words in ("ORDERS import", "import_orders"):
            assert (await found(words)).endswith("Loops import_orders waiting")
        assert "Nothing matches" in await found("import nothing")
        assert "Tasks send_sms" in await found("sms")
        error = "Errors send_sms RuntimeError: no provider takes '+491'"
        assert error in await found("runtimeerror PROVIDER")
        assert f"Parked messages {message.id}" in await found(message.id[:8])
        told = await found("reprot")
        assert "Nothing matches “reprot”. Did you mean report ? Look for a parked message" in told
        assert re.search("> Search for a part of the name", await found(""))
        answer = await browser.get("/search?q=all", accept="application/json")
        assert [each["loop"] for each in answer.json()["loops"]] == ["report_all"]
        await shop.app.senders["send_sms"].send("+1")
        async with shop.processor():
            await asyncio.sleep(15)
        assert error in await found("provider")  # though its task has succeeded since
        assert 'href="/failed?task=send_sms"' in await browser.see("/search?q=provider")


async def test_a_loop_beyond_the_limit_is_found_by_its_name_or_key_and_shown(
    shop: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(picture, "MOST_LOOPS", 0)
    await shop.app.senders["send_sms"].start("oslo.7", every="3m", args={"phone": "+1"})
    name = "send_sms.oslo.7"
    async with browsing(shop) as browser:
        assert name not in await browser.see("/loops")
        assert name not in await browser.see("/search?q=oslo")
        for words in (name, "oslo.7"):
            assert f'name={name}">{name}</a>' in await browser.see(f"/search?q={words}")
        async with shop.processor():
            assert "waiting" in await browser.see(f"/loop?name={name}")
            await asyncio.sleep(190)
            assert "succeeded" in await browser.see(f"/loop?name={name}")
        await browser.see("/loop?name=send_sms.bergen", 404)


@pytest.mark.parametrize("looks_before", [True, False])
async def test_calls_that_fail_are_in_the_verdict(shop: Stage, looks_before: bool) -> None:
    async def send() -> None:
        async with shop.processor():
            for number in range(300):
                await shop.app.senders["send_sms"].send(f"+49 {number}")
            await asyncio.sleep(12)
        await asyncio.sleep(1)

    if not looks_before:
        await send()
    async with browsing(shop) as browser:
        if looks_before:
            assert "send_sms" not in await browser.see("/")
            await send()
        page = await browser.see("/")
        assert "300 calls of send_sms failed in the last 15 minutes." in page
        assert '<h1><svg class="mark level-bad"' in page
        assert "300 of 300 failed in 15 min" in page
        (group,) = re.findall(r'<li id="failure/.*?</li>', page, re.S)
        told = words_in(group)
        assert "RuntimeError: no provider takes '+49 299'" in told
        assert re.search(r"300 parked\. First seen .+, last seen .+\.", told)
        assert "No success found." in told
        assert 'aria-label="300 failures in the last 90 minutes"' in group
        await asyncio.sleep(960)  # they wait for an operator still
        page = await browser.see("/")
        assert "300 messages of send_sms are parked, and no run has succeeded since." in page
        assert '<h1><svg class="mark level-bad"' in page
        await shop.app.senders["send_sms"].send("+1")
        async with shop.processor():
            await asyncio.sleep(12)
        assert 'id="failure/' not in await browser.see("/")


async def test_a_wall_has_the_worst_failures_and_the_first_processors(
    shop: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MOST_ON_WALL", "MOST_PODS"):
        monkeypatch.setattr(pages, name, 2)
    await parked(shop, "+491")
    for task in ("mail", "fax"):
        shop.app.task(name=task, retry=Retry(0))(fail)
    await shop.seeding.seed()
    async with browsing(shop) as browser:
        async with shop.processor():
            for task in ("mail", "fax"):
                await shop.app.outbox.send(task, {}, Posting())
            await asyncio.sleep(10)
        now, silent = shop.clock.now(), Pod("pod-2", has_answered=False)
        browser.site.watch.roll = Roll(now, [Pod("pod-1"), silent, Pod("pod-3")])
        page = await browser.see("/wall")
        assert '<html lang="en" class="wall">' in page
        assert len(re.findall('<li id="failure/', page)) == 2
        assert re.search(r'<li id="failures/more">.*>1 more<', page)
        assert "2 of 3 responding, version unknown" in page
        assert re.findall(r'<li id="pod/([^"]+)"( class="silent")?>', page) == [
            ("pod-1", ""),
            ("pod-2", ' class="silent"'),
        ]
        assert "and 1 more" in page
        assert not re.search('id="(census|coming|lately)"', page)
        assert len(re.findall('<li id="failure/', await browser.see("/"))) == 3


async def test_a_task_is_paused_and_resumed_with_its_calls_and_loops(
    shop: Stage, browser: Browser
) -> None:
    await shop.app.senders["send_sms"].start("daily", every="1d", args={"phone": "+1"})
    await browser.press("pause", loop="send_sms", reason="no credit", back="/tasks")
    assert (await shop.survey.pauses())["send_sms"].by.startswith("alice at ")
    await shop.app.senders["send_sms"].send("+1")
    await asyncio.sleep(10)
    told = await browser.see("/")
    assert "Task send_sms is paused by alice at " in told
    assert ": no credit; 1 message waiting." in told
    assert ": no credit" in await browser.see("/tasks")
    assert "its task is paused by alice" in await browser.see("/loops")
    assert "Its task is paused: no credit, since" in await browser.see("/loop?name=send_sms.daily")
    await browser.press("resume", loop="send_sms", back="/tasks")
    await asyncio.sleep(10)
    assert "no credit" not in await browser.see("/tasks")
    assert await shop.where(LoopId("send_sms", "daily")) is Where.WAITING


async def test_the_overview_links_a_failed_loop(shop: Stage, browser: Browser) -> None:
    async with shop.processor():
        await asyncio.sleep(3700)
        page = await browser.see("/")
        assert "1 loop failing, 1 attempt in a row" in page
        assert "; 1 attempt failed;" in page
        assert 'aria-label="1 failure in the last 90 minutes"' in page
        loops = (await browser.get("/loops?state=failing")).text
        assert "import_orders" in loops
        assert "name=report" not in loops
        assert "&lt;b&gt;no orders&lt;/b&gt;" in loops
        assert "/loops?state=failing&task=import_orders" in await browser.see("/search?q=no+orders")
        assert 'data-failing="1"' in page
        assert "The newest failure began" in page
        kind = kind_of("ValueError: <b>no orders</b>")
        page = await browser.press("acknowledge", task="import_orders", kind=kind, back="/")
        assert "The newest failure began" not in page
        assert "Acknowledged by alice" in await browser.see("/loop?name=import_orders")


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("/loop?name=nobody", "such loop, task or parked message, or no longer"),
        ("/tasks/send?task=nothing", "such loop, task or parked message, or no longer"),
        ("/failed/message?id=x", "such loop, task or parked message, or no longer"),
        ("/nowhere", "such page"),
    ],
)
async def test_unknown_addresses_are_not_found(browser: Browser, path: str, what: str) -> None:
    assert f"There is no {what}." in await browser.see(path, 404)
    answer = await browser.get(path, accept="application/json")
    assert answer.status_code == 404
    assert answer.json() == {"error": "NotFound", "message": f"There is no {what}."}


async def test_bulk_actions_ask_first_and_name_failed_loops(shop: Stage, browser: Browser) -> None:
    assert "Now 2 waiting." in await browser.press("pause", filter="")
    assert await shop.history("report") == ["seeded"]
    page = await browser.press("pause", loops="report\nnobody", sure="yes")
    assert "1 of 2 failed" in page
    assert "nobody: The loop is gone." in page
    assert '<section class="done bad"' in page
    assert "is in the code" in await browser.press("remove", 409, loop="report", sure="yes")
    json_ = {"accept": "application/json"}
    for fields, code, error in (
        ({"filter": ""}, 400, "NotConfirmed"),
        ({"filter": "state=wating", "sure": "yes"}, 400, "NotDone"),
        ({"filter": "%", "sure": "yes"}, 400, "NotDone"),
        ({}, 400, "NotDone"),
        ({"loop": "nobody"}, 409, "NotDone"),
    ):
        answer = await browser.post("pause", fields, **json_)
        assert (answer.status_code, answer.json()["error"]) == (code, error)


async def test_a_schedule_is_set_cleared_and_restored(shop: Stage, browser: Browser) -> None:
    wanted: dict[str, Any] = {"loop": "report", "cron": "0 9 * * MON-FRI", "tz": "Europe/Oslo"}
    for shown in ("", "&theme=dark"):
        assert 'value="10s"' in await browser.see(f"/loop/schedule?loop=report{shown}")
    page = await browser.press("schedule-set", 400, loop="report", cron="0 9 * *")
    assert "expected five fields" in page
    assert 'value="0 9 * *"' in page
    assert "any more" in await browser.press("schedule-set", 400, loop="other", every="5m")
    page = await browser.press("schedule-set", **wanted, back="/loop?name=report")
    words = "at 09:00, Monday to Friday, by the clock of Europe/Oslo"
    assert f"report: rescheduled; schedule: {words}; next: " in page
    override = (await shop.listing())[REPORT].override
    assert override is not None
    assert override.by == "alice"
    await asyncio.sleep(1)
    page = await browser.see("/loop?name=report")
    assert "set by alice (code: every 10s, from the end of a run)" in page
    page = await browser.press("schedule-clear", loop="report")
    assert "report: rescheduled; schedule: every 10s" in page
    assert (await shop.listing())[REPORT].override is None
    await asyncio.sleep(1)
    fields = undo_of(page, "schedule-set")
    assert "rescheduled" in await browser.press("schedule-set", **fields)
    assert str((await shop.listing())[REPORT].schedule) == str(
        Cron(wanted["cron"], tz=wanted["tz"])
    )
    assert await shop.history("report") == ["seeded", *["rescheduled"] * 3]


async def test_a_call_is_sent_from_a_form_of_its_signature(shop: Stage) -> None:
    sent: list[Any] = []

    @shop.app.task
    async def visit(ward: str, beds: int = 2, tags: list[str] = [], urgent: bool = False) -> None:  # noqa: B006
        sent.append((ward, beds, tags, urgent))

    await shop.seeding.seed()
    async with browsing(shop) as browser, shop.processor():
        assert "/tasks/send?task=visit" in await browser.see("/tasks")
        page = await browser.see("/tasks/send?task=visit")
        for each in ("<b>ward</b> <code>str</code>", "list[str]", 'placeholder="default: 2"'):
            assert each in page
        wrong = {"task": "visit", "arg.ward": "7", "arg.beds": "many"}
        page = await browser.press("send", 400, **wrong, back="/tasks/send?task=visit")
        assert "beds" in page
        assert 'name="back" value="/tasks/send?task=visit"' in page
        assert "beds" in await browser.press("send", 400, **wrong | {"arg.beds": "[" * 100_000})
        assert 'name="arg.ward" value="7"' in page
        late = {"task": "visit", "arg.ward": "7", "in": "1h", "at": "2026-01-01T00:00"}
        assert "not both" in await browser.press("send", 400, **late)
        for at in ("x", "9999-12-31T23:00-14:00"):
            page = await browser.press("send", 400, **{**late, "in": "", "at": at})
            assert "At: expected a moment" in page
        fields = {"arg.ward": "7", "arg.beds": "3", "arg.tags": '["a"]', "arg.urgent": "true"}
        page = await browser.press("send", task="visit", **fields)
        assert "sent, and confirmed by the broker" in page
        await asyncio.sleep(1)
        assert sent.pop() == ("7", 3, ["a"], True)
        await browser.press("send", task="visit", **{"arg.ward": "8", "in": "1m"})
        at = (shop.clock.now() + timedelta(minutes=2)).isoformat()
        await browser.press("send", task="visit", **{"arg.ward": "9", "at": at})
        await asyncio.sleep(50)
        assert sent == []
        await asyncio.sleep(80)
        assert [ward for ward, *_ in sent] == ["8", "9"]
        assert "is not a task that accepts calls" in await browser.press("send", 400, task="report")


async def test_a_loop_is_run_once_with_other_arguments(shop: Stage) -> None:
    cities: list[str] = []

    @shop.app.periodic(every="1h", args={"city": "Oslo", "days": 1})
    async def weather(city: str, days: int, unit: str = "C", rain: bool = False) -> None:
        cities.append(f"{city} {days} {unit} {rain}")

    await shop.seeding.seed()
    async with browsing(shop) as browser, shop.processor():
        assert "/loop/run?loop=weather" in await browser.see("/loop?name=weather")
        page = await browser.see("/loop/run?loop=weather")
        assert 'placeholder="default of the loop: "Oslo""' in page
        assert """placeholder="default: 'C'" """ in page
        assert '<option value="" selected>default: False</option>' in page
        assert " required " not in page
        assert "days" in await browser.press("run", 400, loop="weather", **{"arg.days": "x"})
        page = await browser.press("run", loop="weather", **{"arg.city": "Rome"})
        assert "weather: triggered once, with city" in page
        await asyncio.sleep(1)
        assert cities.pop() == "Rome 1 C False"
        await browser.press("run", loop="weather", **{"arg.city": "", "arg.days": "2"})
        await asyncio.sleep(1)
        assert cities.pop() == "Oslo 2 C False"
        await asyncio.sleep(3600)
        assert cities == ["Oslo 1 C False"]


async def test_many_loops_are_shown_by_task_with_links_to_lists(
    shop: Stage, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in ("anna", "bert", "carla"):
        await shop.app.senders["send_sms"].start(key, every="1m", args={"phone": "+49"})
    async with shop.processor():
        await browser.press("pause", loop="report")
        await asyncio.sleep(300)
        page = await browser.see("/loops")
        assert 'id="loop-report"' in page
        assert '<option value="due">next first</option>' in page
        monkeypatch.setattr(forms, "GROUPED_FROM", 4)
        page = await browser.see("/loops")
        assert '<option value="late">latest first</option>' in page
        assert 'id="loop-report"' not in page
        (sms,) = re.findall(r'<tr id="task-send_sms".*?</tr>', page, re.S)
        (report,) = re.findall(r'<tr id="task-report".*?</tr>', page, re.S)
        assert 'aria-label="3 failing"' in sms
        assert 'aria-label="1 paused"' in report
        assert ["Pause all…" in each for each in (sms, report)] == [True, False]
        assert ["Resume all…" in each for each in (sms, report)] == [False, True]
        assert "/loops?by=loop&task=send_sms&state=failing" in sms
        found = await browser.see("/loops?by=loop&task=send_sms&state=failing")
        assert found.count('<tr id="loop-send_sms.') == 3
        assert re.findall('<tr id="task-([^"]+)"', page) == ["send_sms", "import_orders", "report"]
        page = await browser.see("/loops?by=task&state=paused")
        assert re.findall('<tr id="task-([^"]+)"', page) == ["report"]
        assert "No task matches." in await browser.see("/loops?by=task&q=nobody")
        assert "\0doing\0" in await browser.see("/loops?q=%00doing%00")
        answer = await browser.get("/loops", accept="application/json")
        first = answer.json()["by_task"][0]
        assert (first["task"], first["loops"], first["failing"]) == ("send_sms", 3, 3)
        assert first["states"] == {"failing": 3}
        assert len(answer.json()["loops"]) == 5
        monkeypatch.setattr(data, "MOST_OF_VERDICT", 2)
        verdict = (await browser.get("/", accept="application/json")).json()["verdict"]
        for kind in ("troubles", "failures"):
            (found,) = verdict[kind]
            assert (len(found["loops"]), found["count"]) == (2, 3)
        page = await browser.press("pause", filter="task=send_sms")
        assert "Pause 3 loops?" in page


async def test_loops_that_are_not_judged_are_counted(
    shop: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(picture, "MOST_LOOPS", 1)
    monkeypatch.setattr(feed, "MOST_LOOPS", 1)
    for key in ("anna", "bert", "carla"):
        await shop.app.senders["send_sms"].start(key, every="1d", args={"phone": "+49"})
    async with browsing(shop) as browser:
        assert "Only 2 of 5 loops are judged." in await browser.see("/")
        page = await browser.see("/loops?by=task")
        assert "3 tasks, 5 loops The list has 2 of them." in words_in(page)
        (sms,) = re.findall(r'<tr id="task-send_sms".*?</tr>', page, re.S)
        assert words_in(sms) == "send_sms 3 0 0+ – –"
        assert ">3</a>" in await browser.see("/tasks")


async def test_a_chart_has_axes_units_and_marks(shop: Stage, browser: Browser) -> None:
    async with shop.processor():
        await browser.press("pause", loop="import_orders")
        await asyncio.sleep(200)
        for span, step in (("1h", "minute"), ("24h", "15"), ("7d", "2")):
            page = await browser.see(f"/?span={span}")
            assert re.search(rf"Runs of loops in each {step}", page)
        page = await browser.see("/")
        assert re.search(r'<p class="scale"[^>]*><span>10 runs</span><span>5</span>', page)
        assert '<span class="key p99">p99</span>' in page
        assert "import_orders paused by alice at " in page
        assert re.search(r"UTC, 6 runs succeeded", page)


async def test_tasks_show_their_backlog(shop: Stage) -> None:
    async with shop.processor():
        await asyncio.sleep(60)
    await shop.app.outbox.send("send_sms", {"phone": "+1"}, Posting(delay=timedelta(minutes=5)))
    async with browsing(shop) as browser:
        await browser.see("/tasks")
        await asyncio.sleep(6)
        page = words_in(await browser.see("/tasks"))
    assert "1 message waits for its time, including retries." in page
    assert re.search(r"report 1 0 \d+ \d", page), page


async def test_a_loop_shows_why_it_missed_a_run(shop: Stage) -> None:
    @shop.app.periodic(cron="30 2 * * *", tz="Europe/Oslo")
    async def backup() -> None: ...

    await shop.seeding.seed()
    await asyncio.sleep(20 * 3600)  # nobody is there at half past two
    async with shop.processor():
        await asyncio.sleep(60)
    async with browsing(shop) as browser:
        assert '<td data-label="Lateness, 99th" class="number late">7' in await browser.see(
            "/loops?by=task"
        )
        page = await browser.see("/loop?name=backup")
        assert "It began 7\N{NO-BREAK SPACE}h\N{NO-BREAK SPACE}30\N{NO-BREAK SPACE}m late" in page


async def parked(stage: Stage, *phones: str) -> None:
    for phone in phones:
        await stage.app.outbox.send("send_sms", {"phone": phone}, Posting())
    async with stage.processor():
        await asyncio.sleep(1)


async def test_parked_messages_are_shown_in_groups_and_replayed(
    shop: Stage, browser: Browser
) -> None:
    await parked(shop, "+491", "+492", "+4933")
    await asyncio.sleep(30)
    assert "3 messages are parked" in words_in(await browser.see("/failed"))
    page = await browser.await_on("/failed", 'name="kind"')
    assert "3 × send_sms" in page
    assert 'aria-label="3 failures in the last 24 hours"' in page
    kind = re.search(r'name="kind" value="([^"]+)"', page)
    assert kind
    until = re.search(r'name="until" value="([^"]+)"', page)
    assert until
    await parked(shop, "+4944")  # since: it stays
    shown = {"task": "send_sms", "reason": "exhausted", "kind": kind[1]}
    shown |= {"back": "/failed", "count": "4", "until": until[1]}
    assert "Replay 4 messages?" in await browser.press("replay", **shown)
    assert len(await shop.parked()) == 4
    page = await browser.press("replay", sure="yes", **shown)
    assert page.count("replayed ") == 3
    assert "3 of the 4 shown; the rest were gone already." in page
    assert "1 message parked since: left alone." in page
    assert len(await shop.parked()) == 1
    assert "1 × send_sms" in page  # the page shows what is left


async def test_parked_messages_of_tasks_that_left_the_code_are_shown(shop: Stage) -> None:
    await parked(shop, "+491")
    await shop.app.senders["send_sms"].send("+1")
    await shop.seed(an_app(shop.app.namespace, ["render"]))
    rerouted = shop.app.names.rerouted
    for key in ("task.gone", "foreign"):
        picture = Message(b"\x89PNG\r\n\xff", message_id=key)
        await shop.broker.publish(picture, exchange=rerouted, routing_key=key)
    async with browsing(shop) as browser:
        told = "a task that the code does not have: send_sms (1 ready, 1 parked, 0 processors)"
        assert told in await browser.see("/")
        await browser.await_on("/failed", "1 × send_sms")
        page = await browser.await_on("/failed", ">3</b> messages are parked")
        assert {"1 × send_sms", "1 × gone", "1 × unknown"} <= {*re.findall(r"1 × \w+", page)}
        assert "1 × send_sms" in await browser.await_on("/failed?task=send_sms", "1 × ")
        links = re.findall(r'href="(/failed/message\?id=[^"]+)"', page)
        assert len(links) == 3
        for link in links:
            page = await browser.see(f"{link}&show=1")
            assert "Delete…" in page
            assert ("<pre>89 50 4e 47 0d 0a ff</pre>" in page) is ("send_sms" not in link)
        shown = {"task": "", "reason": "unknown-task", "count": "1", "sure": "yes"}
        question = await browser.press("purge", **{**shown, "sure": ""})
        assert "task: unknown" in question
        page = await browser.press("purge", **shown)
        assert "deleted foreign" in page
        assert page.count("deleted ") == 1
        (sms,) = [each for each in await shop.failed.browse(["send_sms"]) if each.task != "gone"]
        assert f"deleted {sms.id}" in await browser.press(
            "purge", id=sms.id, task="send_sms", sure="yes"
        )


async def test_a_failure_is_acknowledged_in_all_processes_until_the_next_success(
    shop: Stage,
) -> None:
    await parked(shop, "+491", "+492")
    async with browsing(shop) as browser, browsing(shop) as other:
        page = await other.await_on("/failed", "Acknowledge…")
        (form,) = re.findall(r'action="/do/acknowledge">(.*?)</form>', page, re.S)
        fields = dict(re.findall(r'name="(task|kind)" value="([^"]*)"', form))
        assert "does not fail" in await browser.press(
            "acknowledge", 400, task="send_sms", kind="other", back="/"
        )
        note = "INC-4711\nsecond line"
        acknowledged = await browser.press("acknowledge", **fields, reason=note, back="/")
        assert "send_sms: acknowledged, until the next success" in acknowledged
        assert "alice has acknowledged" in await browser.press("acknowledge", 400, **fields)
        by_alice = re.compile(
            r"Acknowledged by alice <time[^>]+>[^<]+</time>: INC-4711 second line\."
        )
        for each in (browser, other):
            await asyncio.sleep(1)
            page = await each.see("/")
            assert by_alice.search(page)
            assert "2 calls of send_sms failed in the last 15 minutes (acknowledged)." in page
            assert by_alice.search(await each.await_on("/failed", "Unacknowledge"))
            assert "acknowledged" in await each.see("/journal")
        data = (await other.get("/failed", accept="application/json")).json()
        (failure,) = data["failures"]
        assert failure["is_current"]
        assert failure["acknowledged"]["by"] == "alice"
        assert failure["acknowledged"]["note"].startswith("INC-4711")
        assert '<article class="held"' in await browser.see("/failed")
        withdrawal = undo_of(acknowledged, "unacknowledge")
        assert "any more" in await other.press("unacknowledge", 400, **withdrawal | {"by": "bob"})
        assert not by_alice.search(page := await other.press("unacknowledge", **withdrawal))
        assert by_alice.search(await other.press("acknowledge", **undo_of(page, "acknowledge")))
    async with browsing(shop) as later, shop.processor():
        assert by_alice.search(await later.await_on("/failed", "Unacknowledge"))
        await shop.app.senders["send_sms"].send("+1")
        await asyncio.sleep(20)
        assert "Acknowledged" not in await later.see("/")


async def test_a_message_is_replayed_with_other_arguments(shop: Stage, browser: Browser) -> None:
    await parked(shop, "+491")
    for action in ("replay", "purge", "edit"):  # of no message
        await browser.press(action, 400, sure="yes", args="{}")
    (one,) = await shop.parked()
    assert "no provider takes" in await browser.see(f"/failed/message?id={one.id}")
    await browser.press("edit", id=one.id, args='{"phone": "+1"}')
    assert await shop.parked() == []
    assert "another visitor was faster" in await browser.press("replay", 409, id=one.id)
    again = {"id": one.id, "task": "send_sms", "args": '{"phone": "+2"}'}
    page = await browser.press("edit", 409, **again)
    assert "another visitor was faster" in page
    assert '<pre>{"phone": "+2"}</pre>' in page  # what was typed is not lost
    assert "not in the trash" in await browser.press("restore", 409, deletion="gone")
    async with shop.processor():
        await asyncio.sleep(1)
    assert await shop.parked() == []


async def test_the_address_of_a_message_is_valid_in_any_process(shop: Stage) -> None:
    await parked(shop, "+491", "+492", "+493")
    first, middle, last = await shop.parked()
    async with browsing(shop) as browser:
        page = await browser.await_on("/failed", "/failed/message")
        links = re.findall(r'href="(/failed/message\?id=[^"]+)"', page)
        assert len(links) == 3
        await browser.press("replay", id=first.id)
    async with browsing(shop) as colleague:
        for link in links:
            answer = await colleague.get(link)
            assert answer.status_code == (404 if first.id in unquote(link) else 200)
        await colleague.press("edit", id=last.id, args='{"phone": "+1"}')
        # Another reader holds all messages for a moment: none is ready meanwhile.
        failed = program_of(shop.app, shop.broker, shop.clock).failed
        async with aclosing(failed.look(["send_sms"])) as held:
            await anext(held)
            asking = asyncio.create_task(colleague.see(f"/failed/message?id={middle.id}"))
            await asyncio.sleep(0.2)
        assert middle.id in await asking
    assert [each.id for each in await shop.parked()] == [middle.id]


async def test_an_action_on_many_shows_its_progress_and_is_stopped(
    shop: Stage, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: Any, **_options: Any) -> None:
        raise BrokerUnavailable("The broker is away.")

    await parked(shop, "+491", "+492", "+493")
    fields = {"task": "send_sms", "count": "3", "rate": "1/m", "sure": "yes"}
    page = await browser.press("replay", **fields)
    assert "1 of 3 done" in page
    assert '<progress max="3" value="1"' in page
    (operation,) = re.findall(r'name="operation" value="([^"]+)"', page)
    with monkeypatch.context() as away:
        away.setattr(MemoryBroker, "publish", refuse)
        assert "is away" in await browser.press("stop", 503, operation=operation)
    await browser.press("stop", operation=operation)
    await asyncio.sleep(120)
    assert "stopped after 2 of 3" in await browser.see(f"/loops?done={operation}")
    answer = await browser.get(f"/failed?done={operation}", accept="application/json")
    assert answer.json()["operation"]["state"] == "stopped after 2 of 3"
    assert len(await shop.parked()) == 1
    times = dict.fromkeys(("begun_at", "told_at"), "2026-06-01T12:00:00")  # of another program
    record = {"operation": {"id": "x", "what": "x", "by": "x", "right": "x", **times}}
    browser.site.operations.hear(Message(json.dumps(record).encode()))
    await browser.see("/loops?done=x")


async def test_concurrent_actions_are_attributed_to_their_users(shop: Stage) -> None:
    users = {"ada": "report", "bob": "import_orders"}

    def access(request: Request) -> Visitor:
        return Visitor(request.headers.get("x-user", "ada"), "all")

    async with browsing(shop, access=access) as browser:

        async def pause(user: str, loop: str) -> httpx.Response:
            form = {"loop": loop, "reason": f"for {user}"}
            return await browser.post("pause", form, **{"x-user": user})

        question = await browser.press("resume", loops="report\nimport_orders")
        assert "Resume 2 loops?" in question
        assert "Paused" not in question
        answers = await asyncio.gather(*(pause(*each) for each in users.items()))
        assert [answer.status_code for answer in answers] == [303, 303]
        # Who resumes what somebody else has paused, is told of that first.
        question = await browser.press("resume", loops="report\nimport_orders")
        for user in users:
            assert re.search(rf"1 by {user} at \S+ \(for {user}\)", question), question
        await asyncio.sleep(1)
        assert "Paused: for ada" in await browser.see("/loop?name=report")
        assert "report: resumed" in await browser.press("now", loop="report")
    for user, loop in users.items():
        entries = [entry async for entry in shop.journal.entries(loop=loop)]
        (pause_of_user,) = [each for each in entries if each.what == "paused"]
        assert pause_of_user.by.startswith(f"{user} at ")
        assert pause_of_user.note == f"for {user}"


async def test_an_undo_leaves_alone_what_another_user_has_changed_since(shop: Stage) -> None:
    bob = Visitor("bob", "all")
    async with browsing(shop) as browser, browsing(shop, access=lambda _: bob) as other:
        page = await browser.press("pause", loops="report\nimport_orders", sure="yes")
        undo = undo_of(page, "resume")
        await asyncio.sleep(1)
        await other.press("resume", loop="report")
        await other.press("pause", loop="report", reason="a release")
        await asyncio.sleep(1)
        page = await browser.press("resume", **undo)
        assert "import_orders: resumed" in page
        assert "1 changed since, and left alone: report by bob at " in page
        assert await shop.where(REPORT) is Where.PAUSED
        await asyncio.sleep(1)
        page = await browser.press("resume", 400, **undo)
        assert "Changed since: report by bob at " in page
        page = await browser.press("schedule-set", loop="report", every="1m", sure="yes")
        undo = undo_of(page, "schedule-clear")
        await asyncio.sleep(1)
        await other.press("schedule-set", loop="report", every="2m", sure="yes")
        await asyncio.sleep(1)
        page = await browser.press("schedule-clear", 400, **undo)
        assert "Changed since: report by bob at " in page


async def test_values_are_redacted(shop: Stage) -> None:
    def redact(task: str, value: Any) -> Any:
        by_name = cast("dict[str, Any]", value)
        return dict.fromkeys(by_name, f"{task}: secret") if isinstance(value, dict) else "secret"

    await parked(shop, "+491")
    async with browsing(shop, redact=redact) as browser, shop.processor():
        await asyncio.sleep(15)
        page = await browser.see("/loop?name=report&args=1")
        assert '"city": "report: secret"' in page
        assert "Oslo" not in page
        assert "4711" not in page
        assert "Oslo" not in await browser.see("/loop/run?loop=report")
        (one,) = await shop.parked()
        page = await browser.see(f"/failed/message?id={one.id}&show=1")
        assert '"phone": "send_sms: secret"' in page
        assert '"+491"' not in page
        assert "<textarea" not in page  # what is not shown cannot be edited
    async with browsing(shop, redact=lambda _task, _value: "hidden") as browser:
        assert '"default of the loop"' in await browser.see("/loop/run?loop=report")


@pytest.mark.parametrize(
    ("may", "read_only", "sees"),
    [
        ("all", True, True),
        ({"arguments", "trigger"}, False, True),
        ("read-only", False, False),
        ({"edit", "trigger"}, False, False),
    ],
)
async def test_arguments_and_carried_values_need_a_right_and_a_request(
    shop: Stage, may: Any, read_only: bool, sees: bool
) -> None:
    await parked(shop, "+491")
    (one,) = await shop.parked()
    visitor = Visitor("eve", may)
    async with browsing(shop, access=lambda _: visitor, read_only=read_only) as browser:
        async with shop.processor():
            await asyncio.sleep(15)
        assert not re.search("Oslo|4711", await browser.see("/loop?name=report"))
        for path, text in (
            ("/loop?name=report&args=1", "Oslo"),
            ("/loop?name=report&args=1", "4711"),
            ("/loop/run?loop=report", "Oslo"),
            (f"/failed/message?id={one.id}&show=1", r'phone\\?":'),
        ):
            data = (await browser.get(path, accept="application/json")).text
            assert bool(re.search(text, data)) is sees
            has_form = "trigger" in may or "/run" not in path
            assert bool(re.search(text, await browser.see(path))) is (sees and has_form)


async def test_read_only_visitors_see_fresh_processors_runs_and_messages(shop: Stage) -> None:
    async with browsing(shop, read_only=True) as browser:
        async with shop.processor():
            await browser.await_on("/processors", "Responding")
            await browser.await_on("/processors", "1 processor is running.")
            await browser.await_on("/running", "No runs.")
            await browser.await_on("/failed", "None were found.")
            await browser.await_on("/doctor", "broker version")
            await shop.app.outbox.send("send_sms", {"phone": "+491"}, Posting())
            await browser.await_on("/failed", "1 × send_sms")
        await browser.await_on("/processors", "Gone")
        await browser.await_on("/processors", "No processor is running.")
        page = await browser.await_on("/", "1 parked")
        assert "First seen" in page
        assert "No success found." in page


EVE = Visitor("eve", "read-only")


@pytest.mark.parametrize(("visitor", "read_only"), [(EVE, False), (ALICE, True)])
async def test_read_only_visitors_get_no_buttons_and_are_refused(
    shop: Stage, visitor: Visitor, read_only: bool
) -> None:
    await parked(shop, "+491")
    async with browsing(shop, access=lambda _: visitor, read_only=read_only) as browser:
        await browser.await_on("/failed", "1 × send_sms")
        for path in (*PATHS, "/loop?name=report"):
            assert 'method="post"' not in await browser.see(path)
        for action in ACTS:
            answer = await browser.post(action, {"loop": "report", "sure": "yes"})
            assert answer.status_code == 403
    assert await shop.history("report") == ["seeded"]


async def test_partial_rights_allow_their_actions(shop: Stage) -> None:
    async def access(_: object) -> Visitor:  # which may be a plain function, too
        return Visitor("bob", {"pause"})

    async with browsing(shop, access=access) as browser:
        assert "bob" in await browser.see("/")
        await browser.press("pause", loop="report")
        await browser.press("resume", 403, loop="report")
        # Nor does a form of another site do anything.
        answer = await browser.post("pause", {"loop": "report"}, origin="http://evil.example")
        assert answer.status_code == 403
        assert (await browser.get("/do/pause")).status_code == 405
    assert await shop.history("report") == ["seeded", "paused"]


async def test_visitors_without_access_see_nothing(shop: Stage) -> None:
    async with browsing(shop, access=basic_access(["alice:wonder"])) as browser:
        for path in ("/loops", "/nowhere"):
            answer = await browser.get(path)
            assert (answer.status_code, "www-authenticate" in answer.headers) == (401, True)
    async with browsing(shop, access=lambda _: None) as browser:
        for path in (*PATHS, "/live/x/loops", "/nowhere"):
            assert "report" not in await browser.see(path, 403)
        told = (await browser.get("/loops", accept="application/json")).json()
        assert told["error"] == "AccessRefused"
        assert (await browser.post("pause", {"loop": "report"})).status_code == 403


async def test_a_refusing_broker_and_a_failed_feed_are_reported_and_retried(
    shop: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = [AccessRefused("The password is wrong.")]

    async def fail(_: object) -> None:
        raise RuntimeError("a fault")

    async def wait(*_: object) -> None:
        await asyncio.sleep(1000)

    def connect() -> MemoryBroker:
        if refused:
            raise refused.pop()
        return MemoryBroker(shop.server)

    async with browsing(shop, connect=connect) as browser:
        assert browser.site.shown()  # the depths that are asked for
        await asyncio.sleep(31)
        assert not browser.site.shown()
        browser.site.picture.fail("The password is wrong.", shop.clock.now())
        assert "The password is wrong." in await browser.see("/")
        await asyncio.sleep(3)
        assert "The broker cannot be reached" not in await browser.see("/")
        browser.site.picture.be(False, shop.clock.now() - timedelta(minutes=1))
        page = await browser.see("/")
        assert "The broker cannot be reached" in page
        assert "on time" in page  # the last picture stays
    assert not refused
    with monkeypatch.context() as blocked:
        async with browsing(shop) as browser:
            blocked.setattr(MemoryBroker, "is_blocked", True)
            await asyncio.sleep(1)
            told = "The broker blocks publishers: low on memory or disk."
            assert told in await browser.see("/")
            blocked.setattr(RollCall, "ask", wait)
            answer = await browser.post("stack", {"run": "report#0"})
            assert "0 done" in await browser.see(answer.headers["location"])
            await asyncio.sleep(30)
            told = "has not responded for 30 s: a memory or disk alarm blocks it"
            assert told in await browser.see(answer.headers["location"])
            told = "Processors cannot be asked: the broker blocks publishers"
            for path in ("/running", "/processors"):
                assert told in await browser.see(path)
    with monkeypatch.context() as faulty:
        faulty.setattr(feed.Feed, "_read_back", fail)
        async with browsing(shop) as browser:
            assert "The dashboard failed: see its log." in await browser.see("/")
            faulty.undo()
            await asyncio.sleep(60)
            assert "The broker cannot be reached" not in await browser.see("/")


def mounted(application: ASGIApp, prefix: str) -> ASGIApp:
    return Starlette(routes=[Mount(prefix, application)])


@pytest.mark.parametrize(
    ("under", "asked"),
    [(mounted, "/ops"), (prefixed, "/ops"), (prefixed, "")],
    ids=["mounted", "prefix kept", "prefix stripped"],
)
async def test_the_dashboard_works_under_a_path(
    shop: Stage, under: Callable[[ASGIApp, str], ASGIApp], asked: str
) -> None:
    site = Site(shop.app, lambda: MemoryBroker(shop.server), shop.clock, lambda _: ALICE, False)
    transport = httpx.ASGITransport(under(Routes(site).app(), "/ops"))
    async with httpx.AsyncClient(transport=transport, base_url=HOST) as client:
        try:
            await client.get(f"{asked}/loops")
            await asyncio.sleep(3)
            page = (await client.get(f"{asked}/loops")).text
            links = re.findall(r'(?:href|action|src|data-live)="(/[^"]*)"', page)
            assert "/ops/do/pause" in links
            assert all(link.startswith("/ops/") for link in links), links
            assert (await client.get(f"{asked}/static/dashboard.css")).status_code == 200
            form = {"loop": "report", "back": "/loops"}
            answer = await client.post(f"{asked}/do/pause", data=form)
            assert answer.headers["location"].startswith("/ops/loops?done=")
        finally:
            await site.stop()


def follower(site: Site, path: str, last: str = "", seen: str = "nothing") -> tuple[Page, Visit]:
    """Somebody whose browser has seen a page, and after a reconnect its last update."""
    headers = [(b"last-event-id", last.encode())] if last else []
    scope: dict[str, Any] = {
        "type": "http",
        "method": "GET",
        "path": f"/live/{seen}{path}",
        "headers": headers,
    }
    request = Request({**scope, "query_string": b"", "server": ("localhost", 80)})
    request.scope["path_params"] = {"seen": seen, "path": path.removeprefix("/")}
    page = next(page for page in PAGES if page.path == path)
    return page, Visit(site, request, ALICE)


async def news_of(browser: Browser, path: str, seen: str) -> AsyncGenerator[tuple[str, Any]]:
    """What a viewer is told, as events and their data."""
    routes = Routes(browser.site)
    async with aclosing(routes.news(*follower(browser.site, path, seen=seen))) as news:
        async for each in news:
            if each.startswith("event: "):
                event, id, data = each.split("\n", 2)
                assert id.startswith("id: ")
                yield event.removeprefix("event: "), json.loads(data.removeprefix("data: "))


async def test_updates_contain_changes_only_or_the_page_if_it_is_another(
    shop: Stage, browser: Browser
) -> None:
    async with shop.processor():
        found = re.search(r'data-live="/live/(\w+)/loops"', (await browser.get("/loops")).text)
        assert found
        async with aclosing(news_of(browser, "/loops", found[1])) as news:
            while "last-report" not in (told := await anext(news))[1]:
                assert told[0] == "parts"
            assert told[0] == "parts"
            assert "last-import_orders" not in told[1]
            assert "succeeded" in told[1]["last-report"]
        async with aclosing(news_of(browser, "/loops", "what-was-before")) as news:
            event, page = await anext(news)
            assert event == "page"
            assert "report" in page


async def test_a_client_with_too_many_live_pages_asks_again(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "MOST_STREAMS", 2)
    live = Routes(browser.site)
    for _ in range(2):  # those that were closed do not count
        async with AsyncExitStack() as stack:
            for _ in range(2):
                news = live.news(*follower(browser.site, "/loops"))
                await stack.enter_async_context(aclosing(news))
                assert await anext(news) == "retry: 2000\n\n"
                assert (await anext(news))[:6] == "event:"
            news = live.news(*follower(browser.site, "/loops"))
            polled = [each async for each in news]
            assert polled[0] == "retry: 10000\n\n"
            (seen,) = re.findall(r"\nid: (\w+)\n", polled[1])
            news = live.news(*follower(browser.site, "/loops", seen))
            again = [each async for each in news]
            assert again == polled[:1]  # nothing has changed


async def test_live_pages_leave_half_of_the_time_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    time, begun = asyncio.get_running_loop().time, list[float]()

    async def render(*_: object) -> Rendered:
        begun.append(time())
        while time() - begun[-1] < 0.01:
            pass
        return Rendered("", {})

    monkeypatch.setattr(Routes, "_rendered", render)
    site = Site(a_shop(), MemoryBroker, SystemClock(), lambda _: ALICE, False)
    live = Routes(site)

    async def follow() -> None:
        async with aclosing(live.news(*follower(site, "/loops"))) as news:
            assert [(await anext(news))[:5] for _ in range(2)] == ["retry", "event"]

    began = time()
    await asyncio.gather(*(follow() for _ in range(10)))
    assert len(begun) == 10
    assert time() - began >= 0.2
